package kubecache

import (
	"slices"
	"strings"
)

// An index contains all entries, and for each group a list of its entries.
type index[T any] struct {
	groupsOf func(T) []string // nil means no groups
	all      entries[T]
	groups   map[string]entries[T] // without entries that have a decode error
}

// put adds an entry. If an entry with the same name exists, put replaces and returns that entry.
func (x *index[T]) put(e *Entry[T]) (before *Entry[T]) {
	if before = x.all.put(e); before != nil {
		x.ungroup(before)
	}
	if x.groupsOf == nil || e.Err != nil {
		return before
	}
	if x.groups == nil {
		x.groups = map[string]entries[T]{}
	}
	for _, name := range x.groupsOf(e.Value) {
		group := x.groups[name]
		group.put(e)
		x.groups[name] = group
	}
	return before
}

func (x *index[T]) remove(name string) {
	if e := x.all.remove(name); e != nil {
		x.ungroup(e)
	}
}

// ungroup removes an entry from its groups.
func (x *index[T]) ungroup(e *Entry[T]) {
	if x.groupsOf == nil || e.Err != nil {
		return
	}
	for _, name := range x.groupsOf(e.Value) {
		group := x.groups[name]
		group.remove(e.Name)
		if x.groups[name] = group; len(group) == 0 {
			delete(x.groups, name)
		}
	}
}

// entries is a list of entries, sorted by name.
type entries[T any] []*Entry[T]

// find returns the position of a name, or the position at which to insert it.
func (e entries[T]) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(e, name, func(e *Entry[T], name string) int { return strings.Compare(e.Name, name) })
}

// get returns the entry with this name, or nil.
func (e entries[T]) get(name string) *Entry[T] {
	if at, found := e.find(name); found {
		return e[at]
	}
	return nil
}

// put adds an entry. If an entry with the same name exists, put replaces and returns that entry.
func (e *entries[T]) put(one *Entry[T]) (before *Entry[T]) {
	at, found := e.find(one.Name)
	if found {
		before, (*e)[at] = (*e)[at], one
		return before
	}
	*e = slices.Insert(*e, at, one)
	return nil
}

// remove deletes the entry of an object, and returns it, or nil if there was none.
func (e *entries[T]) remove(name string) *Entry[T] {
	at, found := e.find(name)
	if !found {
		return nil
	}
	one := (*e)[at]
	*e = slices.Delete(*e, at, at+1)
	return one
}

func (e entries[T]) values() []T {
	all := make([]T, 0, len(e))
	for _, one := range e {
		if one.Err == nil {
			all = append(all, one.Value)
		}
	}
	return all
}

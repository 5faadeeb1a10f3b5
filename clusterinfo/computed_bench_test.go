package clusterinfo_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

// many is a store of many tokens in memory, like the cache of package secretstore.
type many struct {
	tokens.Store
	tokens.Hints
	records []tokens.Record // by ID
}

func newMany(n int) *many {
	m := &many{}
	for len(m.records) < n {
		m.add(tokens.Generate())
	}
	return m
}

func (m *many) find(id string) (int, bool) {
	return slices.BinarySearchFunc(m.records, id, func(r tokens.Record, id string) int { return strings.Compare(r.Token.ID(), id) })
}

func (m *many) add(t tokens.Token) {
	if at, found := m.find(t.ID()); !found {
		m.records = slices.Insert(m.records, at, tokens.Record{Token: t, Signing: true, Groups: []string{tokens.DefaultGroup}, Created: start})
	}
}

func (m *many) Get(_ context.Context, id string, _ tokens.Read) (tokens.Record, error) {
	at, found := m.find(id)
	if !found {
		return tokens.Record{}, tokens.ErrNotFound
	}
	return m.records[at], nil
}

func (m *many) List(context.Context) ([]tokens.Record, error) {
	all := slices.Clone(m.records)
	for i := range all {
		all[i].Groups = slices.Clone(all[i].Groups)
	}
	return all, nil
}

func (m *many) Watch(ctx context.Context) <-chan struct{} { return m.Hints.Watch(ctx) }

// The cost of a request, of a new token, and of both in turns with 20,000 live tokens.
func BenchmarkComputed(b *testing.B) {
	store := newMany(20_000)
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	create := func() {
		t := tokens.Generate()
		at, _ := store.find(t.ID())
		store.records[min(at, len(store.records)-1)].Token = t // replaces one token with another
		store.Send()
		must.Value(c.WaitSigned(b.Context(), t))(b)
	}
	ask := func() {
		c.Rested()
		must.Value(c.JSON(b.Context()))(b)
	}
	ask()
	for name, do := range map[string]func(){"create": create, "ask": ask, "create and ask": func() { create(); ask() }} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				do()
			}
		})
	}
}

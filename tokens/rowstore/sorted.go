package rowstore

import (
	"slices"
	"strings"
)

// Sorted are rows in memory, sorted by key.
type Sorted []Row

// find returns the index of a key, or the index at which to insert it.
func (s Sorted) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s, key, func(r Row, key string) int { return strings.Compare(r.Key, key) })
}

// Get returns the row of each key. The Version is empty if there is no row.
func (s Sorted) Get(keys ...string) []Row {
	rows := make([]Row, len(keys))
	for n, key := range keys {
		if i, found := s.find(key); found {
			rows[n] = s[i]
		}
	}
	return rows
}

// In returns a copy of the rows of a range.
func (s Sorted) In(keys Range) Sorted {
	first, _ := s.find(keys.From)
	end, _ := s.find(keys.To)
	end = max(first, end)
	if keys.Limit > 0 {
		end = min(end, first+keys.Limit)
	}
	return slices.Clone(s[first:end])
}

// Set adds or replaces a row. A row with an empty Version is deleted.
func (s *Sorted) Set(row Row) {
	i, found := s.find(row.Key)
	switch {
	case row.Version == "" && found:
		*s = slices.Delete(*s, i, i+1)
	case row.Version == "":
	case found:
		(*s)[i] = row
	default:
		*s = slices.Insert(*s, i, row)
	}
}

// Visit calls visit with each row until visit returns an error.
func (s Sorted) Visit(visit func(Row) error) error {
	for _, row := range s {
		if err := visit(row); err != nil {
			return err
		}
	}
	return nil
}

package boltstore

import (
	"bytes"
	"sync"

	"go.etcd.io/bbolt"
)

// A listing remembers what it decoded the last time. It compares the rows, so that the file stays
// the only truth: most of the time of a List of thousands would go into JSON.
type listing[T any] struct {
	mu   sync.Mutex
	rows map[string]decodedRow[T]
}

type decodedRow[T any] struct {
	row   []byte
	value T
}

// list gives all rows of a bucket in the order of their keys. It keeps what values point at.
func (l *listing[T]) list(bucket *bbolt.Bucket, decode func(k, v []byte) (T, error)) ([]T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []T
	rows := make(map[string]decodedRow[T], len(l.rows))
	err := bucket.ForEach(func(k, v []byte) error {
		d, known := l.rows[string(k)]
		if !known || !bytes.Equal(d.row, v) {
			value, err := decode(k, v)
			if err != nil {
				return err
			}
			d = decodedRow[T]{bytes.Clone(v), value}
		}
		rows[string(k)] = d
		all = append(all, d.value)
		return nil
	})
	if err != nil {
		return nil, err
	}
	l.rows = rows
	return all, nil
}

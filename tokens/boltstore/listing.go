package boltstore

import (
	"bytes"
	"sync"

	"go.etcd.io/bbolt"
)

// A listing caches decoded rows, because a List of thousands of rows spends most of its time decoding JSON.
// It uses a cached value only if the row in the file has not changed.
type listing[T any] struct {
	mu   sync.Mutex
	rows map[string]decodedRow[T]
}

type decodedRow[T any] struct {
	row   []byte
	value T
}

// list returns the values of all rows of a bucket, sorted by key. The values share memory with the cache.
func (l *listing[T]) list(bucket *bbolt.Bucket, decode func(k, v []byte) (T, error)) ([]T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []T
	rows := make(map[string]decodedRow[T], len(l.rows))
	err := bucket.ForEach(func(k, v []byte) error {
		d, _, err := l.decoded(k, v, decode)
		if err != nil {
			return err
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

// maxKnown is the number of cached rows at which one clears the cache. Without it, deleted rows would stay
// in the cache until the next list.
const maxKnown = 1 << 14

// one returns the value of one row. The value shares memory with the cache.
func (l *listing[T]) one(k, v []byte, decode func(k, v []byte) (T, error)) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, known, err := l.decoded(k, v, decode)
	if err == nil && !known {
		if l.rows == nil || len(l.rows) >= maxKnown {
			l.rows = map[string]decodedRow[T]{}
		}
		l.rows[string(k)] = d
	}
	return d.value, err
}

func (l *listing[T]) decoded(k, v []byte, decode func(k, v []byte) (T, error)) (d decodedRow[T], known bool, err error) {
	if d, known = l.rows[string(k)]; known && bytes.Equal(d.row, v) {
		return d, true, nil
	}
	value, err := decode(k, v)
	return decodedRow[T]{bytes.Clone(v), value}, false, err
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Decoders decode rows whose meaning other packages define. Their errors must not contain values.
type Decoders struct {
	// Entry returns the row of which an entry of the issuance record was made.
	Entry      func(value []byte) (IssuedRow, error)
	Revocation func(key string, value []byte) error
}

// Check reads all keys of the store as they are at one moment. It calls damaged with each key that cannot be decoded, and
// with each key of an index that is missing or has no row. Each error that damaged gets names the key. Check keeps no more
// of the record in memory than a page.
func (s *Store) Check(ctx context.Context, decode Decoders, damaged func(error)) error {
	report := func(key string, err error) { damaged(s.kv.damaged(key, err)) }
	err := s.checkAll(ctx, decode, report)
	if errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("etcd compacted the revision that the check reads: repeat the check when less is written, or with a longer --auto-compaction-retention of etcd: %w", err)
	}
	return err
}

func (s *Store) checkAll(ctx context.Context, decode Decoders, damaged func(key string, err error)) error {
	revision := int64(0)
	if err := rowstore.Check(func(folder string, visit func(key string, value []byte)) (err error) {
		revision, err = s.kv.scan(ctx, revision, folder, clientv3.GetPrefixRangeEnd(folder), func(row rowstore.Row) error {
			visit(row.Key, row.Value)
			return nil
		})
		return err
	}, decode.Revocation, damaged); err != nil {
		return err
	}
	c := recordCheck{Issued: &s.issued, revision: revision, decode: decode.Entry, damaged: damaged, found: map[string]int64{}}
	return c.run(ctx)
}

// A recordCheck checks the issuance record.
type recordCheck struct {
	*Issued
	revision int64
	decode   func([]byte) (IssuedRow, error)
	damaged  func(key string, err error)
	found    map[string]int64 // how many keys of each index belong to entries
}

func (c *recordCheck) run(ctx context.Context) error {
	var page []rowstore.Row
	look := func() error {
		defer func() { page = nil }()
		return c.checkEntries(ctx, page)
	}
	if _, err := c.store.kv.scan(ctx, c.revision, entriesFolder, clientv3.GetPrefixRangeEnd(entriesFolder), func(row rowstore.Row) error {
		if page = append(page, row); len(page) < issuedPage {
			return nil
		}
		return look()
	}); err != nil {
		return err
	}
	if err := look(); err != nil {
		return err
	}
	for _, folder := range []string{nodesFolder, idsFolder, serialsFolder, endsFolder, unissuedFolder} {
		count, err := c.count(ctx, folder, clientv3.WithRev(c.revision))
		if err != nil {
			return err
		}
		if count > c.found[folder] {
			if err := c.extra(ctx, folder); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEntries checks entries, and that each index has them.
func (c *recordCheck) checkEntries(ctx context.Context, page []rowstore.Row) error {
	var want []clientv3.Op
	for _, row := range page {
		ops, err := c.keysOf(strings.TrimPrefix(row.Key, entriesFolder), row.Value)
		if err != nil {
			c.damaged(row.Key, err)
		}
		want = append(want, ops...)
	}
	for some := range slices.Chunk(want, issuedPage) {
		reads := make([]clientv3.Op, len(some))
		for i, op := range some {
			reads[i] = clientv3.OpGet(string(op.KeyBytes()), clientv3.WithRev(c.revision))
		}
		rows, err := c.read(ctx, reads)
		if err != nil {
			return err
		}
		for i, op := range some {
			key := strings.TrimPrefix(string(op.KeyBytes()), c.store.kv.prefix)
			if rows[i] == nil {
				c.damaged(key, errors.New("missing in the index of the issuance record"))
				continue
			}
			c.found[folderOf(key)]++
			if string(rows[i].Value) != string(op.ValueBytes()) {
				c.damaged(key, errors.New("this key of an index does not agree with its entry"))
			}
		}
	}
	return nil
}

// keysOf returns what the indexes must have of an entry.
func (c *recordCheck) keysOf(place string, value []byte) ([]clientv3.Op, error) {
	row, err := c.decode(value)
	if err != nil {
		return nil, err
	}
	if len(place) != PlaceLen || place[:timeLen] != inverted(row.Time) {
		return nil, errors.New("the time in the key is not that of the entry")
	}
	return c.put(place, row)[1:], nil // the first is the entry itself
}

// extra calls damaged for each key of an index that belongs to no entry.
func (c *recordCheck) extra(ctx context.Context, folder string) error {
	var keys []string
	look := func() error {
		defer func() { keys = nil }()
		reads := make([]clientv3.Op, len(keys))
		for i, key := range keys {
			reads[i] = clientv3.OpGet(c.store.kv.prefix+entriesFolder+placeIn(key), clientv3.WithRev(c.revision))
		}
		rows, err := c.read(ctx, reads)
		if err != nil {
			return err
		}
		for i, key := range keys {
			var want []clientv3.Op
			if rows[i] != nil {
				ops, err := c.keysOf(placeIn(key), rows[i].Value)
				if err != nil {
					continue // the entry is damaged, so its keys are unknown
				}
				want = ops
			}
			if !slices.ContainsFunc(want, func(op clientv3.Op) bool { return string(op.KeyBytes()) == c.store.kv.prefix+key }) {
				c.damaged(key, errors.New("no entry of the issuance record belongs to this key of an index"))
			}
		}
		return nil
	}
	if _, err := c.store.kv.scan(ctx, c.revision, folder, clientv3.GetPrefixRangeEnd(folder), func(row rowstore.Row) error {
		if keys = append(keys, row.Key); len(keys) < issuedPage {
			return nil
		}
		return look()
	}, clientv3.WithKeysOnly()); err != nil {
		return err
	}
	return look()
}

// placeIn returns the place at the end of a key of an index.
func placeIn(key string) string { return key[max(0, len(key)-PlaceLen):] }

// read returns the row of each read; nil for a key that does not exist.
func (c *recordCheck) read(ctx context.Context, reads []clientv3.Op) ([]*mvccpb.KeyValue, error) {
	rows := make([]*mvccpb.KeyValue, len(reads))
	if len(reads) == 0 {
		return nil, nil
	}
	return rows, c.store.kv.call(ctx, func(ctx context.Context) error {
		got, err := c.store.kv.client.Txn(ctx).Then(reads...).Commit()
		if err != nil {
			return err
		}
		for i, response := range got.Responses {
			if kvs := response.GetResponseRange().Kvs; len(kvs) > 0 {
				rows[i] = kvs[0]
			}
		}
		return nil
	})
}

// folderOf returns the folder of a key of an index of the record.
func folderOf(key string) string {
	for _, folder := range []string{nodesFolder, idsFolder, serialsFolder, endsFolder, unissuedFolder} {
		if strings.HasPrefix(key, folder) {
			return folder
		}
	}
	return ""
}

package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys after the prefix:
//   - schema: the schema version.
//   - tokens/ID, claims/NODE: the rows of package tokens/internal/rows.
//   - holders/ID/NODE: an index of the claims of each token. The values are empty.
//   - revocations/KEY: the rows of signer/revocation.
//   - issued/…: the issuance record, see issued.go.
//   - leader/…: the election.
const (
	schemaKey         = "schema"
	tokensFolder      = "tokens/"
	claimsFolder      = "claims/"
	holdersFolder     = "holders/"
	revocationsFolder = "revocations/"
	leaderFolder      = "leader"
)

var (
	// ErrUnavailable is wrapped if etcd does not answer, or refuses. Its message says what to do.
	ErrUnavailable = errors.New("etcd is not available")
	// ErrDamaged is wrapped if a key has a value that kubejoin did not write.
	ErrDamaged = errors.New("etcd has a damaged row")
)

// callTimeout limits each call to etcd. A cluster without a majority would let calls wait until their context ends.
const callTimeout = 5 * time.Second

// maxMessage is the maximum size of a message from etcd, in bytes. pageSize rows fit: a row is at most 1.5 MiB, which
// is the limit of etcd, but kubejoin writes none above some hundred kilobytes.
const maxMessage = 64 << 20

// pageSize is how many rows one call reads.
const pageSize = 1000

// kv calls etcd. All reads are linearizable: etcd answers them only with a majority.
type kv struct {
	client  *clientv3.Client
	servers string // for errors
	prefix  string // ends with a slash
}

func (k kv) put(key string, value []byte) clientv3.Op {
	return clientv3.OpPut(k.prefix+key, string(value))
}
func (k kv) delete(key string) clientv3.Op { return clientv3.OpDelete(k.prefix + key) }

// absent and unchanged are conditions of a transaction: the key does not exist, or has this version.
func (k kv) absent(key string) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(k.prefix+key), "=", 0)
}

func (k kv) unchanged(key, version string) clientv3.Cmp {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil || n <= 0 {
		n = -1 // no key has it
	}
	return clientv3.Compare(clientv3.ModRevision(k.prefix+key), "=", n)
}

// versionOf is the version of a row: the revision of its last change, which no other change of any key of another
// transaction has.
func versionOf(revision int64) string { return strconv.FormatInt(revision, 10) }

// call runs one call with a timeout and explains its error.
func (k kv) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.explain(ctx, do(limited))
}

// explain returns an error with what an operator can do.
func (k kv) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w at %s: it has raised alarm NOSPACE; compact and defragment it, then run 'etcdctl alarm disarm': %w: %w", ErrUnavailable, k.servers, tokens.ErrRefused, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w at %s: the user of --etcd-certfile needs the permission readwrite for the prefix %s: %w: %w", ErrUnavailable, k.servers, k.prefix, tokens.ErrRefused, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w at %s: no answer within %s; check that a majority of its members runs: %w", ErrUnavailable, k.servers, callTimeout, err)
	}
	return fmt.Errorf("%w at %s: %w", ErrUnavailable, k.servers, err)
}

// get returns the value and the version of a key. The value is nil if there is no such key.
func (k kv) get(ctx context.Context, key string) (value []byte, version string, err error) {
	err = k.call(ctx, func(ctx context.Context) error {
		got, err := k.client.Get(ctx, k.prefix+key)
		if err == nil && len(got.Kvs) > 0 {
			value, version = got.Kvs[0].Value, versionOf(got.Kvs[0].ModRevision)
			if value == nil {
				value = []byte{}
			}
		}
		return err
	})
	return value, version, err
}

// all calls visit with each row of a folder, sorted by key, all of one revision, which it returns. The keys are without
// the folder.
func (k kv) all(ctx context.Context, folder string, visit func(key string, row *mvccpb.KeyValue) error, options ...clientv3.OpOption) (revision int64, err error) {
	return k.allAt(ctx, 0, folder, visit, options...)
}

// allAt is like all, but for an earlier revision. Zero is the newest.
func (k kv) allAt(ctx context.Context, revision int64, folder string, visit func(key string, row *mvccpb.KeyValue) error, options ...clientv3.OpOption) (int64, error) {
	start := k.prefix + folder
	end := clientv3.GetPrefixRangeEnd(start)
	from := start
	for {
		var page *clientv3.GetResponse
		if err := k.call(ctx, func(ctx context.Context) (err error) {
			page, err = k.client.Get(ctx, from, append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision)}, options...)...)
			return err
		}); err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, row := range page.Kvs {
			if err := visit(strings.TrimPrefix(string(row.Key), start), row); err != nil {
				return 0, err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return revision, nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// txn writes all of then if all conditions hold, which it reports with the version of the rows that it wrote.
func (k kv) txn(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (version string, err error) {
	err = k.call(ctx, func(ctx context.Context) error {
		done, err := k.client.Txn(ctx).If(conditions...).Then(then...).Commit()
		if err == nil && done.Succeeded {
			version = versionOf(done.Header.Revision)
		}
		return err
	})
	return version, err
}

// write is txn for rows of the current schema. An empty version means that a condition does not hold.
func (s *Store) write(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (version string, err error) {
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	want, _ := s.schema.get()
	schema := clientv3.Compare(clientv3.Value(s.kv.prefix+schemaKey), "=", want)
	version, err = s.kv.txn(ctx, append([]clientv3.Cmp{schema}, conditions...), then)
	if err == nil || errors.Is(err, tokens.ErrRefused) {
		s.refusing.Store(&err)
	}
	return version, err
}

// Refusing returns the error of the last write if etcd has refused it, for example for lack of space.
func (s *Store) Refusing() error {
	if err := s.refusing.Load(); err != nil {
		return *err
	}
	return nil
}

func (k kv) damaged(key string, err error) error {
	return fmt.Errorf("%w: key %q: %w", ErrDamaged, k.prefix+key, err)
}

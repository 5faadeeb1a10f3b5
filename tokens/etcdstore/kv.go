package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Keys after the prefix:
//   - schema: the schema version.
//   - ca-rotation/…, claims/…, holders/…, revocations/…, tokens/…: the rows of tokens/rowstore.
//   - issued/…, issued-by/…, issued-ends/…, unissued/…: its rows of the issuance record.
//   - leader/…: the election.
const (
	schemaKey    = "schema"
	leaderFolder = "leader"
)

var (
	// ErrUnavailable is wrapped if etcd does not respond, or refuses a call. The message says what to do.
	ErrUnavailable = errors.New("etcd is not available")
	// ErrDamaged is wrapped if a key has a value that kubejoin did not write.
	ErrDamaged = errors.New("etcd has a damaged row")
)

// callTimeout limits each call to etcd. Without it, calls to a cluster without a majority would wait until their context ends.
const callTimeout = 5 * time.Second

// maxMessage is the maximum size of a message from etcd, in bytes. pageSize rows fit: etcd allows rows of 1.5 MiB, but
// kubejoin writes at most some hundred kilobytes.
const maxMessage = 64 << 20

// pageSize is how many rows one call reads.
const pageSize = 1000

// maxOperations is the maximum number of operations in a transaction, and also of conditions. It is the default of etcd
// (--max-txn-ops).
const maxOperations = 128

// kv calls etcd. All reads are linearizable: they need a majority of the members.
type kv struct {
	client  *clientv3.Client
	servers string // for errors
	prefix  string // ends with a slash
}

func (k kv) put(key string, value []byte) clientv3.Op {
	return clientv3.OpPut(k.prefix+key, string(value))
}
func (k kv) delete(key string) clientv3.Op { return clientv3.OpDelete(k.prefix + key) }

// holds converts a condition for etcd, where a key that does not exist has revision 0.
func (k kv) holds(c rowstore.Condition) clientv3.Cmp {
	revision, err := strconv.ParseInt(cmp.Or(c.Version, "0"), 10, 64)
	if err != nil {
		revision = -1 // an invalid version: no key has revision -1
	}
	return clientv3.Compare(clientv3.ModRevision(k.prefix+c.Key), "=", revision)
}

// schemaIs returns the condition that the key "schema" has this value.
func (k kv) schemaIs(value string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(k.prefix+schemaKey), "=", value)
}

// versionOf returns the version of a row: the etcd revision of its last change. Each transaction has its own revision.
func versionOf(revision int64) string { return strconv.FormatInt(revision, 10) }

// rowOf returns the row of a key. Its value is not nil.
func (k kv) rowOf(row *mvccpb.KeyValue) rowstore.Row {
	return rowstore.Row{Key: string(row.Key[len(k.prefix):]), Value: append([]byte{}, row.Value...), Version: versionOf(row.ModRevision)}
}

// call runs one call with a timeout and explains its error.
func (k kv) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.explain(ctx, do(limited))
}

// explain adds to an error of etcd what an operator can do.
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

// unavailable reports whether a member of etcd could not serve a call.
func unavailable(err error) bool {
	var known rpctypes.EtcdError
	return errors.As(err, &known) && known.Code() == codes.Unavailable || status.Code(err) == codes.Unavailable
}

// get returns the row of a key. Its Version is empty if there is no such key.
func (k kv) get(ctx context.Context, key string) (row rowstore.Row, err error) {
	err = k.call(ctx, func(ctx context.Context) error {
		got, err := k.client.Get(ctx, k.prefix+key)
		if err == nil && len(got.Kvs) > 0 {
			row = k.rowOf(got.Kvs[0])
		}
		return err
	})
	return row, err
}

// getAll returns the row of each key, all at one revision, and that revision. Revision 0 selects the newest.
func (k kv) getAll(ctx context.Context, revision int64, keys []string) ([]rowstore.Row, int64, error) {
	rows := make([]rowstore.Row, 0, len(keys))
	for some := range slices.Chunk(keys, maxOperations) {
		ops := make([]clientv3.Op, len(some))
		for i, key := range some {
			ops[i] = clientv3.OpGet(k.prefix+key, clientv3.WithRev(revision))
		}
		if err := k.call(ctx, func(ctx context.Context) error {
			got, err := k.client.Txn(ctx).Then(ops...).Commit()
			if unavailable(err) { // another member may respond; the client retries only calls with one operation
				got, err = k.client.Txn(ctx).Then(ops...).Commit()
			}
			if err != nil {
				return err
			}
			for _, response := range got.Responses {
				var row rowstore.Row
				if kvs := response.GetResponseRange().Kvs; len(kvs) > 0 {
					row = k.rowOf(kvs[0])
				}
				rows = append(rows, row)
			}
			if revision == 0 {
				revision = got.Header.Revision
			}
			return nil
		}); err != nil {
			return nil, 0, err
		}
	}
	return rows, revision, nil
}

// scan calls visit with each row of a range, sorted by key. All rows have the state of one revision, which scan returns.
// Revision 0 selects the newest.
func (k kv) scan(ctx context.Context, revision int64, keys rowstore.Range, visit func(rowstore.Row) error) (int64, error) {
	from, left := keys.From, int64(keys.Limit)
	if left == 0 {
		left = math.MaxInt64
	}
	for {
		var page *clientv3.GetResponse
		if err := k.call(ctx, func(ctx context.Context) (err error) {
			page, err = k.client.Get(ctx, k.prefix+from, clientv3.WithRange(k.prefix+keys.To), clientv3.WithLimit(min(left, pageSize)), clientv3.WithRev(revision))
			return err
		}); err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			row := k.rowOf(kv)
			if err := visit(row); err != nil {
				return 0, err
			}
			from = row.Key + "\x00"
		}
		if left -= int64(len(page.Kvs)); left == 0 || !page.More || len(page.Kvs) == 0 {
			return revision, nil
		}
	}
}

// count returns the number of keys in a folder, and the revision of this state. Revision 0 selects the newest.
func (k kv) count(ctx context.Context, revision int64, folder string) (n int, now int64, err error) {
	err = k.call(ctx, func(ctx context.Context) error {
		got, err := k.client.Get(ctx, k.prefix+folder, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(revision))
		if err == nil {
			n, now = int(got.Count), cmp.Or(revision, got.Header.Revision)
		}
		return err
	})
	return n, now, err
}

// txn runs all operations in then if all conditions hold, and returns the version of the written rows. If a condition does
// not hold, version is empty, and schema is the current value of the key "schema".
func (k kv) txn(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (version, schema string, err error) {
	err = k.call(ctx, func(ctx context.Context) error {
		done, err := k.client.Txn(ctx).If(conditions...).Then(then...).Else(clientv3.OpGet(k.prefix + schemaKey)).Commit()
		switch {
		case err != nil:
			return err
		case done.Succeeded:
			version = versionOf(done.Header.Revision)
		default:
			for _, row := range done.Responses[0].GetResponseRange().Kvs {
				schema = string(row.Value)
			}
		}
		return nil
	})
	return version, schema, err
}

// write calls txn with the condition that the schema is current. If another condition does not hold, the error wraps
// [tokens.ErrConflict].
func (s *Store) write(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (string, error) {
	for {
		if err := s.prepare(ctx); err != nil {
			return "", err
		}
		want := s.schema.Load().want
		version, stored, err := s.kv.txn(ctx, append([]clientv3.Cmp{s.kv.schemaIs(want)}, conditions...), then)
		if err == nil || errors.Is(err, tokens.ErrRefused) {
			s.refusing.Store(&err)
		}
		switch {
		case err != nil || version != "":
			return version, err
		case stored == want:
			return "", tokens.ErrConflict
		}
		s.schema.Store(&schema{want: want})
	}
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

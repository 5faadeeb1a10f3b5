package storecopy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/storecopy"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// storeAt opens a store without a cache, so that lists do not lag.
func storeAt(t *testing.T, c *etcd.Cluster, prefix string) *etcdstore.Store {
	t.Helper()
	config := c.StoreConfig(t, prefix)
	config.NoCache = true
	s := must.Value(etcdstore.Open(t.Context(), config))(t)
	t.Cleanup(func() { _ = s.Close() }) // the test may already have closed the store
	return s
}

// fill puts rows of each kind into a store.
func fill(t *testing.T, store tokens.Store, claims tokens.Claims, revocations revocation.Store, record issuance.Store) {
	t.Helper()
	for i := range 5 {
		r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
		r.Limits, r.Nodes, r.Description = tokens.Limits{MaxNodes: 2, NodeNames: []string{"worker-*"}}, []string{fmt.Sprintf("worker-%d", i)}, "rack 7"
		r = must.Value(store.Create(t.Context(), r))(t)
		must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{
			Node: fmt.Sprintf("worker-%d", i), TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits, Keys: []string{"sha256:" + strings.Repeat("a", 64)},
		}))(t)
	}
	must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{
		Node: "gone", Past: tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second)},
		Machine: tokens.Machine{
			Key: "sha256:" + strings.Repeat("b", 64), By: "ada", Added: time.Now().Truncate(time.Second), Expires: time.Now().Add(time.Hour).Truncate(time.Second),
			CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny, Node: tokens.NodeProperties{Labels: "a=b"}, TokenID: "abcdef", TokenUID: "u", Revoked: true,
		},
	}))(t)
	guard := revocation.Guard{Store: revocations}
	must.Value(guard.Revoke(t.Context(), revocation.Entry{Node: "lost", Reason: "stolen"}))(t)
	for i := range 50 {
		e := issuancetest.Issued(time.Now(), fmt.Sprintf("a%02x", i), time.Hour)
		issuancetest.Add(t, record, e, issuancetest.Refused(time.Now(), i))
	}
	issuancetest.Add(t, record, issuancetest.Issued(time.Now().Add(-5000*time.Hour), "ff", time.Hour)) // expired long ago
	same := issuancetest.Refused(time.Now(), 99)
	issuancetest.Add(t, record, same, same)
}

// content returns everything in a store, without versions and certificates.
func content(t *testing.T, store tokens.Store, claims tokens.Claims, revocations revocation.Store, record issuance.Store) string {
	t.Helper()
	var b strings.Builder
	records := must.Value(store.List(t.Context()))(t)
	for _, r := range records {
		r.Version = ""
		fmt.Fprintf(&b, "%s %+v\n", r.Token.Reveal(), r)
	}
	all := must.Value(claims.List(t.Context()))(t)
	for _, c := range all {
		c.Version = ""
		fmt.Fprintf(&b, "%+v\n", c)
	}
	entries := must.Value(revocations.List(t.Context(), tokens.Live))(t)
	fmt.Fprintf(&b, "%+v\n", entries)
	page := must.Value(record.List(t.Context(), issuance.Query{Limit: issuance.MaxLimit}))(t)
	var lines []string
	for _, e := range page.Entries {
		e.Certificate = ""
		lines = append(lines, fmt.Sprintf("%+v", e))
	}
	slices.Sort(lines)
	return b.String() + strings.Join(lines, "\n")
}

func fileContent(t *testing.T, path string) string {
	t.Helper()
	s := must.Value(boltstore.Open(path))(t)
	defer func() { must.OK(t, s.Close()) }()
	return content(t, s, s.Claims(), rowlist.New(s.Revocations()), rowrecord.New(s.Issued()))
}

func open(t *testing.T, spec string, config etcdstore.Config, use storecopy.Use) *storecopy.Backend {
	t.Helper()
	return must.Value(storecopy.Open(t.Context(), spec, config, use))(t)
}

// copyAll copies from one store to another.
func copyAll(t *testing.T, ctx context.Context, from, to string, config etcdstore.Config, o storecopy.Options) (storecopy.Counts, error) {
	t.Helper()
	source, destination := open(t, from, config, storecopy.ReadOnly), open(t, to, config, storecopy.Destination)
	defer func() { must.OK(t, errors.Join(source.Close(), destination.Close())) }()
	return storecopy.Copy(ctx, source, destination, o)
}

func filled(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubejoin.db")
	s := must.Value(boltstore.OpenRetaining(path, 10000*time.Hour))(t)
	fill(t, s, s.Claims(), rowlist.New(s.Revocations()), rowrecord.New(s.Issued()))
	must.OK(t, s.Close())
	return path
}

func TestCopyThereAndBack(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	config := c.StoreConfig(t, "/copy")
	toEtcd := "etcd:" + strings.Join(c.Endpoints(), ",")
	path := filled(t)
	want := fileContent(t, path)
	counts, err := copyAll(t, t.Context(), "file:"+path, toEtcd, config, storecopy.Options{})
	if all := (storecopy.Counts{Tokens: 5, Claims: 6, Revocations: 1, IssuanceEntries: 103}); err != nil || counts != all {
		t.Fatalf("Copy = %+v, %v, want %+v", counts, err, all)
	}
	s := storeAt(t, c, "/copy")
	if got := content(t, s, s.Claims(), rowlist.New(s.Revocations()), rowrecord.NewWithoutCertificates(s.Issued())); got != want {
		t.Errorf("etcd has\n%s\nwant\n%s", got, want)
	}
	if _, err := copyAll(t, t.Context(), "file:"+path, toEtcd, config, storecopy.Options{}); !errors.Is(err, storecopy.ErrNotEmpty) {
		t.Errorf("into a store with rows: got %v", err)
	}
	back := filepath.Join(t.TempDir(), "back.db")
	must.Value(copyAll(t, t.Context(), toEtcd, "file:"+back, config, storecopy.Options{}))(t)
	if got := fileContent(t, back); got != want {
		t.Errorf("the file has\n%s\nwant\n%s", got, want)
	}
	// After the copy, the source must be writable again.
	if _, err := s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())); err != nil {
		t.Errorf("after the copy: %v", err)
	}
}

// Catches a copy that includes refusals that kubejoin would soon delete, or that counts more refusals than it reads back.
func TestLeavesOutOldRefusals(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	path := filepath.Join(t.TempDir(), "kubejoin.db")
	s := must.Value(boltstore.Open(path))(t)
	young := time.Now().Add(-rowstore.KeepUnissued + 2*time.Hour)
	issuancetest.Add(t, rowrecord.New(s.Issued()), issuancetest.Refused(young, 1), issuancetest.Refused(young.Add(-2*time.Hour), 2))
	must.OK(t, s.Close())
	counts, err := copyAll(t, t.Context(), "file:"+path, etcdSpec(c), c.StoreConfig(t, "/older"), storecopy.Options{})
	if err != nil || counts.IssuanceEntries != 1 {
		t.Errorf("got %+v, %v, want one entry", counts, err)
	}
}

// An incomplete copy must be unusable. Catches a kubejoin that uses it, and refuses machines whose tokens were not copied yet.
func TestIncompleteCopyCannotBeUsed(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	toEtcd, config := "etcd:"+strings.Join(c.Endpoints(), ","), c.StoreConfig(t, "/incomplete")
	other := storeAt(t, c, "/incomplete")
	create := func() error {
		_, err := other.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
		return err
	}
	interrupted := func(from, to string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := copyAll(t, ctx, from, to, config, storecopy.Options{Progress: func(storecopy.Counts, int) { cancel() }}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	}
	path := filled(t)
	interrupted("file:"+path, toEtcd)
	if err := create(); !errors.Is(err, etcdstore.ErrIncomplete) {
		t.Errorf("create: got %v, want %v", err, etcdstore.ErrIncomplete)
	}
	if err := other.Ready(t.Context()); !errors.Is(err, etcdstore.ErrIncomplete) {
		t.Errorf("Ready: got %v, want %v", err, etcdstore.ErrIncomplete)
	}
	for _, use := range []storecopy.Use{storecopy.ReadOnly, storecopy.Destination, storecopy.DryDestination} {
		if _, err := storecopy.Open(t.Context(), toEtcd, config, use); !errors.Is(err, etcdstore.ErrIncomplete) {
			t.Errorf("for use %d: got %v, want %v", use, err, etcdstore.ErrIncomplete)
		}
	}
	must.Value(c.Client().Delete(t.Context(), "/incomplete/", clientv3.WithPrefix()))(t)
	must.Value(copyAll(t, t.Context(), "file:"+path, toEtcd, config, storecopy.Options{}))(t)
	must.OK(t, errors.Join(other.Ready(t.Context()), create()))

	file := filepath.Join(t.TempDir(), "copy.db")
	interrupted(toEtcd, "file:"+file)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an incomplete file: got %v, want none", err)
	}
	if s, err := storecopy.Open(t.Context(), "file:"+file, config, storecopy.Destination); err == nil || !strings.Contains(err.Error(), file+".copying exists already") {
		t.Errorf("an incomplete file as destination: got %v, %v", s, err)
	}
	must.OK(t, os.Remove(file+".copying"))
	must.Value(copyAll(t, t.Context(), toEtcd, "file:"+file, config, storecopy.Options{}))(t)
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if s, err := storecopy.Open(t.Context(), "file:"+file, config, storecopy.Destination); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("an existing file as destination: got %v, %v", s, err)
	}
}

func TestCheckFindsEachViolation(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	put := func(key, value string) func(*testing.T, *etcdstore.Store, string) {
		return func(t *testing.T, _ *etcdstore.Store, prefix string) {
			must.Value(c.Client().Put(t.Context(), prefix+key, value))(t)
		}
	}
	remove := func(folder string) func(*testing.T, *etcdstore.Store, string) {
		return func(t *testing.T, _ *etcdstore.Store, prefix string) {
			got := must.Value(c.Client().Get(t.Context(), prefix+folder, clientv3.WithPrefix(), clientv3.WithLimit(1)))(t)
			must.Value(c.Client().Delete(t.Context(), string(got.Kvs[0].Key)))(t)
		}
	}
	change := func(folder, before, after string) func(*testing.T, *etcdstore.Store, string) {
		return func(t *testing.T, _ *etcdstore.Store, prefix string) {
			got := must.Value(c.Client().Get(t.Context(), prefix+folder, clientv3.WithPrefix()))(t)
			for _, row := range got.Kvs {
				if value := strings.Replace(string(row.Value), before, after, 1); value != string(row.Value) {
					must.Value(c.Client().Put(t.Context(), string(row.Key), value))(t)
					return
				}
			}
			t.Fatalf("no row of %s contains %s", folder, before)
		}
	}
	for name, test := range map[string]struct {
		spoil func(*testing.T, *etcdstore.Store, string)
		want  string // ID and a part of the message
	}{
		"nothing":               {func(*testing.T, *etcdstore.Store, string) {}, ""},
		"token":                 {put("tokens/abcdef", "{}"), "damaged: tokens/abcdef"},
		"claim":                 {put("claims/worker-1", "{hunter2"), "damaged: claims/worker-1"},
		"index without claim":   {put("holders/abcdef/worker-9", ""), "damaged: holders/abcdef/worker-9"},
		"claim without index":   {remove("holders/"), "damaged: holders/"},
		"revocation":            {put("revocations/lost", "{hunter2"), "damaged: revocations/lost"},
		"revocation of nothing": {put("revocations/a b", "{}"), "damaged: revocations/a b"},
		"entry":                 {change("issued/", `"requester"`, `"hunter2"`), "damaged: issued/"},
		"entry without time":    {put("issued/x", "{}"), "damaged: issued/x"},
		"entry of another time": {change("issued/", `"time":"20`, `"time":"21`), "damaged: issued/"},
		"entry without node":    {remove("issued-by/node/"), "damaged: issued-by/node/"},
		"entry without token":   {remove("issued-by/token/"), "damaged: issued-by/token/"},
		"entry without serial":  {remove("issued-by/serial/"), "damaged: issued-by/serial/"},
		"entry without its end": {remove("issued-ends/"), "damaged: issued-ends/"},
		"refusal without time":  {remove("unissued/"), "damaged: unissued/"},
		"end with other keys":   {change("issued-ends/", "serial/", "serials/"), "damaged: issued-ends/"},
		"node with other end":   {change("issued-by/node/", "1", "2"), "damaged: issued-by/node/"},
		"index without entry":   {remove("issued/"), "damaged: issued-by/"},
		"serial without entry":  {put("issued-by/serial/1f/x", ""), "damaged: issued-by/serial/1f/x"},
		"node without entry":    {put("issued-by/node/worker-1/7fffffffffffffffAAAAAAAA", ""), "damaged: issued-by/node/worker-1/7fffffffffffffffAAAAAAAA"},
		"too many nodes": {func(t *testing.T, s *etcdstore.Store, _ string) {
			all := must.Value(s.List(t.Context()))(t)
			must.Value(s.Update(t.Context(), all[0].Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"a", "b", "c", r.Nodes[0]}; return nil }))(t)
		}, "too-many-nodes: is for 2 nodes and counts 4"},
		"claim that is not counted": {func(t *testing.T, s *etcdstore.Store, _ string) {
			c := must.Value(s.Claims().Get(t.Context(), "worker-1", tokens.Live))(t)
			must.Value(s.Update(t.Context(), c.TokenID, func(r *tokens.Record) error { r.Nodes = nil; return nil }))(t)
		}, "not-counted: worker-1"},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "/check/" + strings.ReplaceAll(name, " ", "-")
			s := storeAt(t, c, prefix)
			fill(t, s, s.Claims(), rowlist.New(s.Revocations()), rowrecord.NewWithoutCertificates(s.Issued()))
			test.spoil(t, s, prefix+"/")
			checked := open(t, "etcd:"+strings.Join(c.Endpoints(), ","), c.StoreConfig(t, prefix), storecopy.ReadOnly)
			defer func() { must.OK(t, checked.Close()) }()
			_, found, err := checked.Check(t.Context())
			wantFinding(t, found, err, test.want)
		})
	}
}

func wantFinding(t *testing.T, found []storecopy.Violation, err error, want string) {
	t.Helper()
	must.OK(t, err)
	if want == "" {
		if len(found) > 0 {
			t.Errorf("got %+v, want nothing", found)
		}
		return
	}
	id, part, _ := strings.Cut(want, ": ")
	if len(found) == 0 || found[0].ID != id || !strings.Contains(found[0].Message, part) || strings.Contains(found[0].Message, "hunter2") || found[0].Advice == "" {
		t.Errorf("got %+v, want %s", found, want)
	}
}

// versioned returns a row of a file with version 1.
func versioned(value string) []byte { return append([]byte{7: 1}, value...) }

// TestCheckFindsEachViolation tests violations in all stores. This test checks the messages for a file, and damages
// that only a file can have.
func TestCheckFindsDamagedFile(t *testing.T) {
	first := func(b *bbolt.Bucket) []byte { k, _ := b.Cursor().First(); return slices.Clone(k) }
	later := func(bucket string) func(*bbolt.Tx) error { // later, because a commit would otherwise reuse the version of the row
		return func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			v := binary.BigEndian.AppendUint64(nil, tx.Bucket([]byte("tokens")).Sequence()+1)
			return b.Put(first(b), append(v, b.Get(first(b))[8:]...))
		}
	}
	for name, test := range map[string]struct {
		spoil func(*bbolt.Tx) error
		want  string
	}{
		"nothing": {func(*bbolt.Tx) error { return nil }, ""},
		"token":   {func(tx *bbolt.Tx) error { return tx.Bucket([]byte("tokens")).Put([]byte("abcdef"), versioned("{}")) }, `damaged: bucket "tokens", key "abcdef"`},
		"index without version": {func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("holders"))
			return b.Put(first(b), []byte("hunter2"))
		}, `damaged: bucket "holders"`},
		"later token":      {later("tokens"), `damaged: bucket "tokens"`},
		"later claim":      {later("claims"), `damaged: bucket "claims"`},
		"later index":      {later("holders"), `damaged: bucket "holders"`},
		"later revocation": {later("revocations"), `damaged: bucket "revocations"`},
		"end of another time": {func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("issued-ends"))
			k, v := first(b), slices.Clone(b.Get(first(b)))
			other := slices.Clone(k)
			other[7]++
			return errors.Join(b.Delete(k), b.Put(other, v))
		}, `damaged: bucket "issued-ends"`},
		"second end": {func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("issued-ends"))
			other, v := first(b), slices.Clone(b.Get(first(b)))
			other[7]++
			return b.Put(other, v)
		}, `damaged: bucket "issued-ends"`},
		"time without refusal": {func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("unissued")).Put([]byte("0123456789abcdef"), versioned(""))
		}, `damaged: bucket "unissued"`},
		"wrong index": {func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("unissued"))
			k := first(b)
			return errors.Join(b.Delete(k), tx.Bucket([]byte("issued-ends")).Put(k, versioned("")))
		}, `damaged: bucket "unissued"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filled(t)
			db := must.Value(bbolt.Open(path, 0o600, nil))(t)
			must.OK(t, errors.Join(db.Update(test.spoil), db.Close()))
			s := open(t, "file:"+path, etcdstore.Config{}, storecopy.ReadOnly)
			defer func() { must.OK(t, s.Close()) }()
			_, found, err := s.Check(t.Context())
			wantFinding(t, found, err, test.want)
			if name == "later index" && len(found) != 1 {
				t.Errorf("got %+v, want one finding for a row", found)
			}
		})
	}
}

func TestOpenRefusesInvalidSpec(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.db")
	for spec, want := range map[string]string{
		"": "want file:PATH", "kubejoin.db": "want file:PATH", "mysql:x": "want file:PATH", "file:": "want file:PATH",
		"etcd:10.0.0.1:2379": "want URLs", "file:" + missing: "no such file",
	} {
		if s, err := storecopy.Open(t.Context(), spec, etcdstore.Config{}, storecopy.ReadOnly); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want an error with %q", spec, s, err, want)
		}
	}
}

// bare fills a file only with tokens, which have no index rows.
func bare(t *testing.T, n int, change func(i int, r *tokens.Record)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bare.db")
	s := must.Value(boltstore.Open(path))(t)
	for i := range n {
		r := newToken()
		change(i, &r)
		must.Value(s.Create(t.Context(), r))(t)
	}
	must.OK(t, s.Close())
	return path
}

// Catches commits with more conditions than etcd allows.
func TestCopiesManyTokens(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	path := bare(t, 300, func(int, *tokens.Record) {})
	counts, err := copyAll(t, t.Context(), "file:"+path, etcdSpec(c), c.StoreConfig(t, "/many"), storecopy.Options{})
	if err != nil || counts.Tokens != 300 {
		t.Errorf("Copy = %+v, %v, want 300 tokens", counts, err)
	}
}

// Catches commits that are larger than etcd allows.
func TestCopiesLargeTokens(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	path := bare(t, 10, func(_ int, r *tokens.Record) {
		r.Limits.MaxNodes = tokens.MaxNodes
		for i := range 800 {
			r.Nodes = append(r.Nodes, fmt.Sprintf("%0240d", i))
		}
	})
	counts, err := copyAll(t, t.Context(), "file:"+path, etcdSpec(c), c.StoreConfig(t, "/large"), storecopy.Options{})
	if err != nil || counts.Tokens != 10 {
		t.Errorf("Copy = %+v, %v, want 10 tokens", counts, err)
	}
}

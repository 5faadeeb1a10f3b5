package storecopy_test

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/storecopy"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func newToken() tokens.Record { return tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()) }

func etcdSpec(c *etcd.Cluster) string { return "etcd:" + strings.Join(c.Endpoints(), ",") }

// keys returns all keys of etcd with their values.
func keys(t *testing.T, c *etcd.Cluster, prefix string) string {
	t.Helper()
	got := must.Value(c.Client().Get(t.Context(), prefix, clientv3.WithPrefix()))(t)
	var b strings.Builder
	for _, row := range got.Kvs {
		b.WriteString(row.String() + "\n")
	}
	return b.String()
}

// folder returns the names and contents of the files of a folder.
func folder(t *testing.T, path string) string {
	t.Helper()
	files := must.Value(os.ReadDir(path))(t)
	var b strings.Builder
	for _, file := range files {
		content := must.Value(os.ReadFile(filepath.Join(path, file.Name())))(t)
		info := must.Value(file.Info())(t)
		b.WriteString(file.Name() + " " + info.ModTime().String() + " " + string(content) + "\n")
	}
	return b.String()
}

// If a kubejoin writes to the source during the copy, the copy must fail, and the error must name the source.
func TestFailsIfSourceChangesDuringCopy(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	create := func(s *etcdstore.Store) error { _, err := s.Create(t.Context(), newToken()); return err }
	remove := func(s *etcdstore.Store) error {
		all, err := s.List(t.Context())
		return errors.Join(err, s.Delete(t.Context(), all[0]))
	}
	change := func(s *etcdstore.Store) error {
		_, err := storetest.UpdateClaim(t.Context(), s.Claims(), "worker-1", func(c *tokens.Claim) error { c.NodeUID = "1"; return nil })
		return err
	}
	entry := func(s *etcdstore.Store) error {
		return rowrecord.NewWithoutCertificates(s.Issued()).Append(t.Context(), issuancetest.Refused(time.Now(), 1))
	}
	atEnd := func(counts storecopy.Counts, compared int) bool {
		return compared > 0 && compared == counts.IssuanceEntries
	}
	for name, test := range map[string]struct {
		at    func(counts storecopy.Counts, compared int) bool
		write func(*etcdstore.Store) error
	}{
		"after tokens":    {func(counts storecopy.Counts, _ int) bool { return counts.Claims == 1 }, create},
		"before entries":  {func(counts storecopy.Counts, _ int) bool { return counts.Claims == 1 }, entry},
		"before they end": {func(_ storecopy.Counts, compared int) bool { return compared == 1 }, create},
		"at their end":    {atEnd, create},
		"a deletion":      {atEnd, remove},
		"a change":        {atEnd, change},
		"an entry":        {atEnd, entry},
	} {
		config := c.StoreConfig(t, "/changes/"+strings.ReplaceAll(name, " ", "-"))
		s := storeAt(t, c, config.Prefix)
		fill(t, s, s.Claims(), rowlist.New(s.Revocations()), rowrecord.NewWithoutCertificates(s.Issued()))
		to, written := filepath.Join(t.TempDir(), "copy.db"), false
		_, err := copyAll(t, t.Context(), etcdSpec(c), "file:"+to, config, storecopy.Options{Progress: func(counts storecopy.Counts, compared int) {
			if !written && test.at(counts, compared) {
				written = true
				must.OK(t, test.write(s))
			}
		}})
		if !written || !errors.Is(err, storecopy.ErrChanged) || !strings.Contains(err.Error(), etcdSpec(c)+" was written during the copy") || !strings.Contains(err.Error(), "delete "+to+".copying") {
			t.Errorf("%s: got %v, want %v with the source, and what to delete", name, err, storecopy.ErrChanged)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: the destination can be used", name)
		}
	}
}

// Catches a copy that marks a store as incomplete while kubejoins use it: all of them would stop.
func TestLeavesStoreInUseAlone(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	config := c.StoreConfig(t, "/live")
	live := storeAt(t, c, "/live")
	must.Value(live.Create(t.Context(), newToken()))(t)
	before := keys(t, c, "/live")
	for _, o := range []storecopy.Options{{}, {DryRun: true}} {
		if _, err := copyAll(t, t.Context(), "file:"+filled(t), etcdSpec(c), config, o); !errors.Is(err, storecopy.ErrNotEmpty) {
			t.Errorf("%+v: got %v, want %v", o, err, storecopy.ErrNotEmpty)
		}
	}
	if after := keys(t, c, "/live"); after != before {
		t.Errorf("etcd has\n%s\nwant\n%s", after, before)
	}
	must.Value(live.Create(t.Context(), newToken()))(t)
}

// Catches a copy during a CA rotation: decrypting the new key needs a file that is not copied.
func TestRefusesCopyInCARotation(t *testing.T) {
	path := filled(t)
	db := must.Value(boltstore.Open(path))(t)
	ca := func() []*x509.Certificate { return []*x509.Certificate{certtest.CA(t, rand.Text()).Leaf} }
	r := must.Value(rotation.New(rotation.Cluster, ca(), ca(), nil, time.Now()))(t)
	r.HasKey = true
	must.OK(t, rowstate.Store{Rows: db.Rotations()}.Put(t.Context(), r, ""))
	must.OK(t, db.Close())
	to := filepath.Join(t.TempDir(), "new.db")
	if _, err := copyAll(t, t.Context(), "file:"+path, "file:"+to, etcdstore.Config{}, storecopy.Options{}); !errors.Is(err, storecopy.ErrRotating) {
		t.Errorf("got %v, want %v", err, storecopy.ErrRotating)
	}
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy made %s: %v", to, err)
	}
}

// Catches a kubejoin that writes to the destination between the check that it is empty and the copy.
func TestLeavesDestinationAloneThatGotRows(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	live := storeAt(t, c, "/raced")
	from := open(t, "file:"+filled(t), etcdstore.Config{}, storecopy.ReadOnly)
	to := open(t, etcdSpec(c), c.StoreConfig(t, "/raced"), storecopy.Destination)
	defer func() { must.OK(t, errors.Join(from.Close(), to.Close())) }()
	to.BeforeBegin(func() {
		must.Value(live.Create(t.Context(), newToken()))(t)
	})
	if _, err := storecopy.Copy(t.Context(), from, to, storecopy.Options{}); !errors.Is(err, storecopy.ErrNotEmpty) {
		t.Errorf("got %v, want %v", err, storecopy.ErrNotEmpty)
	}
	must.OK(t, live.Ready(t.Context()))
	must.Value(live.Create(t.Context(), newToken()))(t)
}

// Catches an empty copy, or a check without findings, after a typing error in --etcd-prefix.
func TestRefusesPrefixWithoutStore(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	config := c.StoreConfig(t, "/nothing")
	if s, err := storecopy.Open(t.Context(), etcdSpec(c), config, storecopy.ReadOnly); !errors.Is(err, storecopy.ErrUnused) {
		t.Errorf("got %v, %v, want %v", s, err, storecopy.ErrUnused)
	}
	if got := keys(t, c, "/nothing"); got != "" {
		t.Errorf("etcd has %s, want nothing", got)
	}
	must.Value(c.Client().Put(t.Context(), "/nothing/schema", "99"))(t)
	if s, err := storecopy.Open(t.Context(), etcdSpec(c), config, storecopy.ReadOnly); err == nil || !strings.Contains(err.Error(), `schema version "99"`) {
		t.Errorf("got %v, %v, want an error about the schema", s, err)
	}
}

// Catches a copy that replaces a file.
func TestReplacesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy.db")
	other := func(storecopy.Counts, int) { must.OK(t, os.WriteFile(path, []byte("other"), 0o600)) }
	if _, err := copyAll(t, t.Context(), "file:"+filled(t), "file:"+path, etcdstore.Config{}, storecopy.Options{Progress: other}); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a file that appears during the copy: got %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "other" {
		t.Errorf("the file has %q, %v", content, err)
	}
}

// Catches a copy that misses lost or changed rows of any kind. The test damages rows of the destination before the
// copy reads them back.
func TestFindsWrongCopy(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	path := filled(t)
	first := func(prefix string) string {
		got := must.Value(c.Client().Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithLimit(1)))(t)
		return string(got.Kvs[0].Key)
	}
	for name, spoil := range map[string]struct {
		at    storecopy.Counts // counts at which the test damages the row
		spoil func(prefix string)
	}{
		"lost token":      {storecopy.Counts{Tokens: 5}, func(p string) { must.Value(c.Client().Delete(t.Context(), first(p+"/tokens/")))(t) }},
		"lost claim":      {storecopy.Counts{Tokens: 5, Claims: 6}, func(p string) { must.Value(c.Client().Delete(t.Context(), first(p+"/claims/")))(t) }},
		"lost revocation": {storecopy.Counts{Tokens: 5, Claims: 6, Revocations: 1}, func(p string) { must.Value(c.Client().Delete(t.Context(), first(p+"/revocations/")))(t) }},
		"lost entry":      {storecopy.Counts{Tokens: 5, Claims: 6, Revocations: 1, IssuanceEntries: 103}, func(p string) { must.Value(c.Client().Delete(t.Context(), first(p+"/issued/")))(t) }},
		"changed entry": {storecopy.Counts{Tokens: 5, Claims: 6, Revocations: 1, IssuanceEntries: 103}, func(p string) {
			key := first(p + "/issued/")
			value := must.Value(c.Client().Get(t.Context(), key))(t).Kvs[0].Value
			changed := bytes.Replace(value, []byte(`"signer":"`), []byte(`"signer":"x`), 1)
			if bytes.Equal(changed, value) {
				t.Fatalf("no signer in %s", value)
			}
			must.Value(c.Client().Put(t.Context(), key, string(changed)))(t)
		}},
		"added token": {storecopy.Counts{Tokens: 5, Claims: 1}, func(p string) {
			key := first(p + "/tokens/")
			must.Value(c.Client().Put(t.Context(), p+"/tokens/zzzzzz", string(must.Value(c.Client().Get(t.Context(), key))(t).Kvs[0].Value)))(t)
		}},
	} {
		config := c.StoreConfig(t, "/wrong/"+strings.ReplaceAll(name, " ", "-"))
		spoiled := false
		_, err := copyAll(t, t.Context(), "file:"+path, etcdSpec(c), config, storecopy.Options{Progress: func(counts storecopy.Counts, _ int) {
			if counts == spoil.at && !spoiled {
				spoiled = true
				spoil.spoil(config.Prefix)
			}
		}})
		if !spoiled || !errors.Is(err, storecopy.ErrDiffers) && !errors.Is(err, etcdstore.ErrDamaged) {
			t.Errorf("%s: got %v, want %v", name, err, storecopy.ErrDiffers)
		}
		if err := storeAt(t, c, config.Prefix).Ready(t.Context()); !errors.Is(err, etcdstore.ErrIncomplete) {
			t.Errorf("%s: the destination can be used: %v", name, err)
		}
	}
}

// A copy from file to file must keep certificates, and compare them.
func TestFileCopyKeepsCertificates(t *testing.T) {
	path := filled(t)
	s := must.Value(boltstore.Open(path))(t)
	e := issuancetest.Issued(time.Now(), "abc", time.Hour)
	e.Certificate = "PEM"
	issuancetest.Add(t, rowrecord.New(s.Issued()), e)
	must.OK(t, s.Close())
	to := filepath.Join(t.TempDir(), "copy.db")
	source, destination := open(t, "file:"+path, etcdstore.Config{}, storecopy.ReadOnly), open(t, "file:"+to, etcdstore.Config{}, storecopy.Destination)
	spoil := func() {
		must.OK(t, rowstore.EachPage(t.Context(), destination.DB(), "issued/", func(rows []rowstore.Row) error {
			var changes []rowstore.Change
			for _, row := range rows {
				changes = append(changes, rowstore.Change{Key: row.Key, Value: bytes.Replace(row.Value, []byte(`"PEM"`), []byte(`"XXX"`), 1)})
			}
			_, err := destination.DB().Commit(t.Context(), nil, changes)
			return err
		}))
	}
	if _, err := storecopy.Copy(t.Context(), source, destination, storecopy.Options{Progress: func(counts storecopy.Counts, compared int) {
		if counts.IssuanceEntries == 103 && compared == 0 {
			spoil()
		}
	}}); !errors.Is(err, storecopy.ErrDiffers) {
		t.Errorf("with another certificate: got %v, want %v", err, storecopy.ErrDiffers)
	}
	must.OK(t, errors.Join(source.Close(), destination.Close(), os.Remove(to+".copying")))
	must.Value(copyAll(t, t.Context(), "file:"+path, "file:"+to, etcdstore.Config{}, storecopy.Options{}))(t)
	if got, want := fileContent(t, to), fileContent(t, path); got != want {
		t.Errorf("the file has\n%s\nwant\n%s", got, want)
	}
	s = must.Value(boltstore.Open(to))(t)
	defer func() { must.OK(t, s.Close()) }()
	if got, err := rowrecord.New(s.Issued()).Get(t.Context(), "abc"); err != nil || got.Certificate != "PEM" {
		t.Errorf("Get = %+v, %v", got, err)
	}
}

// A dry run must count the rows that a copy would copy, and change neither side.
func TestDryRunChangesNothing(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	path, config := filled(t), c.StoreConfig(t, "/dry")
	want := storecopy.Counts{Tokens: 5, Claims: 6, Revocations: 1, IssuanceEntries: 103}
	dry := func(from, to string, config etcdstore.Config) (storecopy.Counts, error) {
		source, destination := open(t, from, config, storecopy.ReadOnly), open(t, to, config, storecopy.DryDestination)
		defer func() { must.OK(t, errors.Join(source.Close(), destination.Close())) }()
		return storecopy.Copy(t.Context(), source, destination, storecopy.Options{DryRun: true})
	}
	before, target := folder(t, filepath.Dir(path)), filepath.Join(t.TempDir(), "new.db")
	for _, to := range []string{etcdSpec(c), "file:" + target} {
		if counts, err := dry("file:"+path, to, config); err != nil || counts != want {
			t.Errorf("to %s: got %+v, %v, want %+v", to, counts, err, want)
		}
	}
	if after := folder(t, filepath.Dir(path)); after != before {
		t.Error("the source has changed")
	}
	if got := keys(t, c, "/dry") + folder(t, filepath.Dir(target)); got != "" {
		t.Errorf("the destination has %s, want nothing", got)
	}
	counts, err := copyAll(t, t.Context(), "file:"+path, etcdSpec(c), config, storecopy.Options{})
	if err != nil || counts != want {
		t.Errorf("the copy: got %+v, %v, want %+v", counts, err, want)
	}
	inEtcd := keys(t, c, "/dry")
	if counts, err := dry(etcdSpec(c), "file:"+target, config); err != nil || counts != want {
		t.Errorf("from etcd: got %+v, %v, want %+v", counts, err, want)
	}
	if after := keys(t, c, "/dry"); after != inEtcd {
		t.Error("the source in etcd has changed")
	}
}

// A dry run must fail at a row at which a copy would fail.
func TestDryRunFindsRowThatCannotBeCopied(t *testing.T) {
	path := filled(t)
	db, err := bbolt.Open(path, 0o600, nil)
	must.OK(t, err)
	must.OK(t, errors.Join(db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("revocations")).Put([]byte("lost"), versioned("{hunter2"))
	}), db.Close()))
	for _, o := range []storecopy.Options{{DryRun: true}, {}} {
		_, err = copyAll(t, t.Context(), "file:"+path, "file:"+filepath.Join(t.TempDir(), "new.db"), etcdstore.Config{}, o)
		if err == nil || !strings.Contains(err.Error(), `bucket "revocations", key "lost"`) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: got %v, want an error about revocation lost", o, err)
		}
	}
}

// A check must change no file, and must work even if the caller may not write the file.
func TestCheckChangesNoFile(t *testing.T) {
	path := filled(t)
	must.OK(t, os.Chmod(path, 0o400))
	before := folder(t, filepath.Dir(path))
	store := open(t, "file:"+path, etcdstore.Config{}, storecopy.ReadOnly)
	counts, found, err := store.Check(t.Context())
	must.OK(t, errors.Join(err, store.Close()))
	if len(found) > 0 || counts.IssuanceEntries != 103 { // includes 1 certificate that expired long ago
		t.Errorf("got %+v, %+v, want no findings in 103 entries", counts, found)
	}
	if after := folder(t, filepath.Dir(path)); after != before {
		t.Error("the check has changed a file")
	}
}

// Catches a check that lists a million damaged rows.
func TestCheckDescribesSomeDamagedRows(t *testing.T) {
	path := filled(t)
	db := must.Value(bbolt.Open(path, 0o600, nil))(t)
	must.OK(t, errors.Join(db.Update(func(tx *bbolt.Tx) (err error) {
		for i := range 150 {
			err = errors.Join(err, tx.Bucket([]byte("revocations")).Put(fmt.Appendf(nil, "n%d", i), versioned("{hunter2")))
		}
		return err
	}), db.Close()))
	s := open(t, "file:"+path, etcdstore.Config{}, storecopy.ReadOnly)
	defer func() { must.OK(t, s.Close()) }()
	_, found, err := s.Check(t.Context())
	if err != nil || len(found) != 101 || found[100].Message != "50 more rows are damaged" {
		t.Errorf("got %d findings, %v, want 100 and the number of the others", len(found), err)
	}
}

// A check of a file that a running kubejoin uses must fail. It must report a damaged page and an earlier schema.
func TestCheckOfUnusableFile(t *testing.T) {
	path := filled(t)
	s := must.Value(boltstore.Open(path))(t)
	if _, err := storecopy.Open(t.Context(), "file:"+path, etcdstore.Config{}, storecopy.ReadOnly); !errors.Is(err, boltstore.ErrInUse) || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("a file in use: got %v", err)
	}
	must.OK(t, s.Close())
	content := must.Value(os.ReadFile(path))(t)
	for at := 2 * os.Getpagesize(); at < min(len(content), 40*os.Getpagesize()); at += os.Getpagesize() {
		content[at+8] ^= 0xff // the type of the page
	}
	damaged := filepath.Join(t.TempDir(), "damaged.db")
	must.OK(t, os.WriteFile(damaged, content, 0o600))
	if checked, err := storecopy.Open(t.Context(), "file:"+damaged, etcdstore.Config{}, storecopy.ReadOnly); err == nil {
		_, found, err := checked.Check(t.Context())
		wantFinding(t, found, err, "damaged: ")
	} else if !errors.Is(err, boltstore.ErrDamaged) {
		t.Errorf("damaged pages: got %v, want %v", err, boltstore.ErrDamaged)
	}
	for want, spoil := range map[string]func(*bbolt.Tx) error{
		"not a kubejoin file":         func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("meta")) },
		`schema version "7"`:          func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("7")) },
		`bucket "holders" is missing`: func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("holders")) },
	} {
		path := filled(t)
		db := must.Value(bbolt.Open(path, 0o600, nil))(t)
		must.OK(t, errors.Join(db.Update(spoil), db.Close()))
		if s, err := storecopy.Open(t.Context(), "file:"+path, etcdstore.Config{}, storecopy.ReadOnly); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v, want an error with %s", s, err, want)
		}
	}
}

package rowstate_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

// A replica has its own CA files, and shares rows with other replicas.
type replica struct{ rowstate.Store }

// write writes a CA to a new folder: to two files, or to one.
func write(t *testing.T, ca *signer.CA, files int) rowstate.Files {
	t.Helper()
	cert, key, err := ca.PEM()
	must.OK(t, err)
	dir := t.TempDir()
	f := rowstate.Files{Cert: filepath.Join(dir, "ca.crt"), Key: filepath.Join(dir, "ca.key")}
	if files == 1 {
		f.Key, cert = f.Cert, append(cert, key...)
	} else {
		must.OK(t, os.WriteFile(f.Key, append([]byte("# of the operator\n"), key...), 0o640))
	}
	must.OK(t, os.WriteFile(f.Cert, append([]byte("# of the operator\n"), cert...), 0o640))
	return f
}

// newReplicas returns replicas with the same CA. The first replica has two files, the second has one file.
func newReplicas(t *testing.T) (a, b replica) {
	t.Helper()
	rows, ca := memdb.Open().Rotations(), must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	return replica{rowstate.Store{Rows: rows, Files: write(t, ca, 2)}}, replica{rowstate.Store{Rows: rows, Files: write(t, ca, 1)}}
}

func (p replica) load(t testing.TB) *signer.CA {
	t.Helper()
	return must.Value(signer.LoadCA(p.Cert, p.Key))(t)
}

func (p replica) state(t testing.TB) rotation.Rotation {
	t.Helper()
	r, _, err := p.Get(t.Context(), rotation.Cluster)
	must.OK(t, err)
	return r
}

func (p replica) followed(t testing.TB) (changed bool, err error) {
	t.Helper()
	return p.Follow(t.Context(), p.state(t))
}

// files returns the content of all files of a replica, by name.
func (p replica) files(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range must.Value(filepath.Glob(filepath.Dir(p.Cert) + "/*"))(t) {
		all[filepath.Base(path)] = fmt.Sprint(must.Value(os.Stat(path))(t).Mode()) + string(must.Value(os.ReadFile(path))(t))
	}
	return all
}

// desk returns a Desk that changes the state. It observes only the CA files of the replicas.
func desk(t testing.TB, all ...replica) *rotation.Desk {
	return &rotation.Desk{
		Store: all[0], Keys: all[0], Observer: observer{t, all},
		Trusted: func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return all[0].load(t).Bundle(), nil },
	}
}

type observer struct {
	testing.TB
	all []replica
}

func (o observer) Observe(_ context.Context, r rotation.Rotation) (seen []rotation.Observation, err error) {
	for _, p := range o.all {
		ca := p.load(o)
		trusts := r.In(ca.Bundle())
		from := r.Find([]*x509.Certificate{ca.Certificate()})
		seen = append(seen, rotation.Observation{Kind: rotation.KindServer, Name: p.Cert, Trusts: &trusts, From: from})
	}
	return seen, nil
}

func prepare(t testing.TB, d *rotation.Desk, p replica) {
	t.Helper()
	must.Value(d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, Cross: p.load(t).CrossSign}))(t)
}

func TestStoreConforms(t *testing.T) {
	rotationtest.Run(t, []rotation.CA{rotation.Cluster}, func(t *testing.T) rotationtest.Backend { a, _ := newReplicas(t); return a })
	s, _ := newReplicas(t)
	_, _, errGet := s.Get(t.Context(), rotation.Etcd)
	_, errPut := s.PutKey(t.Context(), rotation.Rotation{CA: rotation.Etcd, ID: "00000000000000aa"}, csrtest.NewKey())
	_, errKeep := s.KeepKey(t.Context(), rotation.Etcd, "")
	for _, err := range []error{errGet, errPut, errKeep} {
		if field := (*tokens.FieldError)(nil); !errors.As(err, &field) || field.Field != "ca" {
			t.Errorf("CA etcd: got %v, want an error of field ca", err)
		}
	}
}

// Catches a new key that a reader of the store can use, that another old key decrypts, or that belongs to another CA.
func TestKeyIsStoredEncrypted(t *testing.T) {
	a, b := newReplicas(t)
	d := desk(t, a)
	prepare(t, d, a)
	var stored []byte
	must.OK(t, a.Visit(t.Context(), tokens.Live, func(key string, value []byte) error {
		if key == "key/"+a.state(t).ID {
			stored = bytes.Clone(value)
		}
		return nil
	}))
	if len(stored) == 0 || bytes.Contains(stored, []byte("PRIVATE KEY")) {
		t.Errorf("stored: %q", stored)
	}
	must.Value(d.Advance(t.Context(), rotation.Cluster, rotation.Trust, rotation.Options{}))(t)
	must.Value(a.followed(t))(t)
	must.Value(d.Advance(t.Context(), rotation.Cluster, rotation.Switch, rotation.Options{}))(t)
	copied := a.Files.Key + ".before-" + a.state(t).ID
	good := must.Value(os.ReadFile(copied))(t)
	_, key, err := must.Value(signer.GenerateCA("other", time.Now(), 24*time.Hour))(t).PEM()
	must.OK(t, err)
	must.OK(t, os.WriteFile(copied, key, 0o600))
	if changed, err := a.followed(t); err == nil || changed || !strings.Contains(err.Error(), "cannot decrypt the new CA key with the old CA key") {
		t.Errorf("with another old key: got %t, %v", changed, err)
	}
	must.OK(t, os.WriteFile(copied, good, 0o600))
	must.Value(a.followed(t))(t)
	must.Value(b.PutKey(t.Context(), a.state(t), csrtest.NewKey()))(t)
	if changed, err := b.followed(t); err == nil || changed || !strings.Contains(err.Error(), "not the key of the new CA") {
		t.Errorf("with the key of another CA: got %t, %v", changed, err)
	}
}

// A deleted row stays in free pages of a file. Together with the old key, which may have leaked, it must not reveal
// the new key.
func TestRowsAndOldKeyDoNotGiveNewKey(t *testing.T) {
	a, thief := newReplicas(t)
	a.Files.Rows = filepath.Join(t.TempDir(), "rows")
	d := desk(t, a)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch} {
		must.Value(a.followed(t))(t)
		must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
	}
	must.Value(a.followed(t))(t)
	if changed, err := thief.followed(t); err == nil || changed || !strings.Contains(err.Error(), "cannot decrypt the new CA key with the old CA key") {
		t.Errorf("without the file beside the rows: got %t, %v, want an error", changed, err)
	}
	for range 2 {
		must.Value(d.Advance(t.Context(), rotation.Cluster, rotation.Finish, rotation.Options{}))(t)
		must.Value(a.followed(t))(t)
	}
	if left := must.Value(os.ReadDir(filepath.Dir(a.Files.Rows)))(t); len(left) > 0 {
		t.Errorf("%v are left after the end", left)
	}
}

// Catches a replica that follows the end of a rotation while the next one is prepared, and deletes the file that
// the next one needs.
func TestFollowKeepsSecretOfNextRotation(t *testing.T) {
	a, _ := newReplicas(t)
	a.Files.Rows = filepath.Join(t.TempDir(), "rows")
	d := desk(t, a)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish, rotation.Finish} {
		must.Value(a.followed(t))(t)
		must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
	}
	ended, version, err := a.Get(t.Context(), rotation.Cluster)
	must.OK(t, err)
	fresh := certtest.CA(t, "third")
	next := must.Value(rotation.New(rotation.Cluster, a.load(t).Bundle(), []*x509.Certificate{fresh.Leaf}, nil, time.Now()))(t)
	must.Value(a.PutKey(t.Context(), next, fresh.PrivateKey.(crypto.Signer)))(t)
	must.Value(a.Follow(t.Context(), ended))(t)
	next.HasKey = true
	must.OK(t, a.Put(t.Context(), next, version))
	must.Value(a.followed(t))(t)
	must.Value(d.Advance(t.Context(), rotation.Cluster, rotation.Trust, rotation.Options{}))(t)
	must.Value(a.followed(t))(t)
	if trusted := a.load(t).Bundle(); !slices.ContainsFunc(trusted, fresh.Leaf.Equal) {
		t.Errorf("got %d trusted CAs, want that of the second rotation among them", len(trusted))
	}
}

// If a data folder was restored without the file, the rotation can go back, as the error says.
func TestRotationThatLostItsSecretGoesBack(t *testing.T) {
	a, _ := newReplicas(t)
	a.Files.Rows = filepath.Join(t.TempDir(), "rows")
	before, d := a.load(t), desk(t, a)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch} {
		must.Value(a.followed(t))(t)
		must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
	}
	secret := a.Files.Rows + ".secret-" + a.state(t).ID
	must.OK(t, os.Remove(secret))
	if changed, err := a.followed(t); err == nil || changed || !strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "kubejoin ca abort") {
		t.Errorf("got %t, %v, want an error with the file and how to go back", changed, err)
	}
	for a.state(t).InProgress() {
		must.Value(d.Abort(t.Context(), rotation.Cluster, rotation.Options{}))(t)
		must.Value(a.followed(t))(t)
	}
	if now := a.load(t); !now.Certificate().Equal(before.Certificate()) || len(now.Bundle()) != 1 {
		t.Errorf("got %v of %d trusted CAs after the abort, want the old CA alone", now, len(now.Bundle()))
	}
}

// Catches CA files that lack a CA of the stage, sign with the wrong key, or are not what they were after an abort. The second
// replica did not store the key.
func TestFollowChangesFilesForStage(t *testing.T) {
	ctx := t.Context()
	a, b := newReplicas(t)
	for _, name := range []string{".before-backup", ".before-0123456789ABCDEF", ".before-0123456789abcdef.old"} { // files of the operator
		must.OK(t, os.WriteFile(a.Cert+name, nil, 0o600))
	}
	before := []map[string]string{a.files(t), b.files(t)}
	d := desk(t, a, b)
	now := time.Now()
	d.Now = func() time.Time { return now }
	follow := func(want bool) {
		t.Helper()
		for i, p := range []replica{a, b} {
			if changed := must.Value(p.followed(t))(t); changed != want {
				t.Errorf("replica %d: changed %t, want %t", i, changed, want)
			}
			if changed := must.Value(p.followed(t))(t); changed {
				t.Errorf("replica %d: changed again without a step", i)
			}
		}
	}
	follow(false)
	prepare(t, d, a)
	follow(false)
	for _, step := range []struct {
		name   rotation.Stage // empty: abort
		signs  rotation.From
		bundle int
	}{
		{rotation.Trust, rotation.FromOld, 2}, {rotation.Switch, rotation.FromNew, 2}, {rotation.Finish, rotation.FromNew, 1},
		{"", rotation.FromNew, 2}, {"", rotation.FromOld, 2}, {"", rotation.FromOld, 1},
	} {
		var s rotation.Status
		if step.name == "" {
			if _, err := d.Abort(ctx, rotation.Cluster, rotation.Options{DryRun: true}); err != nil { // clients need time after finish
				_, _ = d.Abort(ctx, rotation.Cluster, rotation.Options{})
				now = now.Add(10 * time.Minute)
			}
			s = must.Value(d.Abort(ctx, rotation.Cluster, rotation.Options{}))(t)
		} else {
			s = must.Value(d.Advance(ctx, rotation.Cluster, step.name, rotation.Options{}))(t)
		}
		follow(true)
		fresh := s.Rotation.New
		for i, p := range []replica{a, b} {
			ca := p.load(t)
			if got := ca.Certificate().Equal(fresh[0]); got != (step.signs == rotation.FromNew) || len(ca.Bundle()) != step.bundle {
				t.Errorf("replica %d, %s %s: the new CA signs: %t, of %d trusted ones; want %s of %d", i, step.name, s.Rotation.Stage, got, len(ca.Bundle()), step.signs, step.bundle)
			}
			if mode := must.Value(os.Stat(p.Files.Key))(t).Mode(); mode != 0o640 {
				t.Errorf("replica %d: the key has mode %s, want that of before", i, mode)
			}
		}
	}
	must.Value(d.Abort(ctx, rotation.Cluster, rotation.Options{}))(t)
	follow(false)
	if after := []map[string]string{a.files(t), b.files(t)}; !reflect.DeepEqual(after, before) {
		t.Errorf("after the abort, the files are\n%q\nwant\n%q", after, before)
	}
}

// Replicas on one host may share their files. Catches a copy that one replica makes after the other replica has
// changed the files.
func TestReplicasMayShareFiles(t *testing.T) {
	a, b := newReplicas(t)
	b.Files = a.Files
	d := desk(t, a)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish, rotation.Finish} {
		must.Value(a.followed(t))(t)
		must.Value(b.followed(t))(t)
		must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
	}
	for _, p := range []replica{a, b} {
		if changed := must.Value(p.followed(t))(t); changed || len(p.files(t)) != 2 {
			t.Errorf("changed %t, want the 2 files of the end", changed)
		}
	}
}

// Catches a replica that was off and cannot continue, in each stage and after the end.
func TestReplicaThatWasOffFollows(t *testing.T) {
	ctx := t.Context()
	for _, last := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish} {
		a, b := newReplicas(t)
		d := desk(t, a)
		prepare(t, d, a)
		for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish} {
			must.Value(d.Advance(ctx, rotation.Cluster, stage, rotation.Options{}))(t)
			must.Value(a.followed(t))(t)
			if stage == last {
				break
			}
		}
		for _, p := range []replica{b, a} { // regardless of what the first replica did
			_, err := p.followed(t)
			must.OK(t, err)
		}
		if got, want := b.load(t), a.load(t); !got.Certificate().Equal(want.Certificate()) || len(got.Bundle()) != len(want.Bundle()) {
			t.Errorf("%s: got %v of %d, want %v of %d", last, got, len(got.Bundle()), want, len(want.Bundle()))
		}
	}

	a, b := newReplicas(t)
	d, old := desk(t, a), b.load(t)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish, rotation.Finish} {
		must.Value(d.Advance(ctx, rotation.Cluster, stage, rotation.Options{}))(t)
		must.Value(a.followed(t))(t)
	}
	before := b.files(t)
	if changed, err := b.followed(t); !errors.Is(err, rowstate.ErrLeftBehind) || changed || !reflect.DeepEqual(b.files(t), before) {
		t.Errorf("after the end: got %t, %v, want %v", changed, err, rowstate.ErrLeftBehind)
	}
	// The operator copies the files of the other replica to it, or any other CA.
	b.Files = write(t, a.load(t), 1)
	must.Value(b.followed(t))(t)
	b.Files = write(t, must.Value(signer.GenerateCA("other", time.Now(), 24*time.Hour))(t), 1)
	must.Value(b.followed(t))(t)

	// With the old CA, the replica does not follow the next rotation.
	b.Files = write(t, old, 1)
	prepare(t, d, a)
	if changed, err := b.followed(t); !errors.Is(err, rowstate.ErrLeftBehind) || changed {
		t.Errorf("in the next rotation: got %t, %v, want %v", changed, err, rowstate.ErrLeftBehind)
	}
}

// The files match the end of the rotation, and the store is restored to an earlier stage. The remaining steps end the
// rotation again. The error of an abort says what is missing: no file contains the old CA any more.
func TestStoreThatIsOlderThanFilesEndsAgain(t *testing.T) {
	stages := []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish, rotation.Finish}
	for i, restored := range []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish} {
		a, _ := newReplicas(t)
		d := desk(t, a)
		prepare(t, d, a)
		backup := map[string][]byte{}
		for j, stage := range stages {
			if must.Value(a.followed(t))(t); i == j {
				must.OK(t, a.Visit(t.Context(), tokens.Live, func(key string, value []byte) error { backup[key] = bytes.Clone(value); return nil }))
			}
			must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
		}
		must.Value(a.followed(t))(t)
		before := a.files(t)
		for key, value := range backup {
			must.OK(t, a.Update(t.Context(), key, func([]byte) ([]byte, error) { return value, nil }))
		}
		if changed, err := a.followed(t); changed || err != nil {
			t.Fatalf("store of stage %s: got %t, %v, want no change", restored, changed, err)
		}
		if restored == rotation.Switch {
			if _, err := d.Abort(t.Context(), rotation.Cluster, rotation.Options{}); err == nil || !strings.Contains(err.Error(), "does not trust the old CA") {
				t.Errorf("abort: got %v, want that it names the missing CA", err)
			}
		}
		for _, stage := range stages[i:] {
			must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
			must.Value(a.followed(t))(t)
		}
		if !reflect.DeepEqual(a.files(t), before) {
			t.Errorf("store of stage %s: the files have changed", restored)
		}
	}
}

// The old key must not remain after the rotation in an incomplete file of a killed kubejoin.
func TestEndRemovesKeysOfKilledWrites(t *testing.T) {
	a, _ := newReplicas(t)
	d := desk(t, a)
	prepare(t, d, a)
	left := filepath.Join(filepath.Dir(a.Files.Key), ".ca.key.42")
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish, rotation.Finish} {
		must.Value(a.followed(t))(t)
		must.OK(t, os.WriteFile(left, []byte("key"), 0o600))
		must.Value(d.Advance(t.Context(), rotation.Cluster, stage, rotation.Options{}))(t)
	}
	must.Value(a.followed(t))(t)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", left, err)
	}
}

// A writer of the store must not make replicas trust another CA.
func TestFollowBelievesOnlyHoldersOfTheOldKey(t *testing.T) {
	evil := must.Value(signer.GenerateCA("evil", time.Now(), 24*time.Hour))(t).Certificate()
	for name, change := range map[string]func(*rotation.Rotation){
		"new": func(r *rotation.Rotation) { r.New = append(r.New, evil) },
		"old": func(r *rotation.Rotation) { r.Old = append(r.Old, evil) },
		"all": func(r *rotation.Rotation) { r.New, r.Cross = rotation.Bundle{evil}, nil },
	} {
		a, _ := newReplicas(t)
		d := desk(t, a)
		prepare(t, d, a)
		r, version, err := a.Get(t.Context(), rotation.Cluster)
		must.OK(t, err)
		change(&r)
		r.Stage = rotation.Trust
		must.Value(a.followed(t))(t) // the replica now has its copies
		must.OK(t, a.Put(t.Context(), r, version))
		before := must.Value(os.ReadFile(a.Cert))(t)
		changed, err := a.followed(t)
		if err == nil || !strings.Contains(err.Error(), "cannot decrypt the new CA key with the old CA key") || changed || !bytes.Equal(before, must.Value(os.ReadFile(a.Cert))(t)) {
			t.Errorf("%s: got %t, %v, want a refusal and the same file", name, changed, err)
		}
	}
}

// Catches a rotation that overwrites manual changes of an operator, in any stage.
func TestFollowRefusesEditedFiles(t *testing.T) {
	ctx := t.Context()
	other := rotationtest.PEM(must.Value(signer.GenerateCA("other", time.Now(), 24*time.Hour))(t).Certificate())
	stages := []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish}
	for i, last := range stages {
		_, p := newReplicas(t)
		d := desk(t, p)
		prepare(t, d, p)
		must.Value(p.followed(t))(t)
		for _, stage := range stages[1 : i+1] {
			must.Value(d.Advance(ctx, rotation.Cluster, stage, rotation.Options{}))(t)
			must.Value(p.followed(t))(t)
		}
		good := must.Value(os.ReadFile(p.Cert))(t)
		edited := append([]byte(other), good...)
		must.OK(t, os.WriteFile(p.Cert, edited, 0o600))
		for range 2 {
			changed, err := p.followed(t)
			if now := must.Value(os.ReadFile(p.Cert))(t); !errors.Is(err, rowstate.ErrEdited) || changed || !bytes.Equal(now, edited) {
				t.Errorf("%s: got %t, %v, want %v and the edited file", last, changed, err, rowstate.ErrEdited)
			}
		}
		// The operator restores the file from before, and kubejoin continues from there.
		kept := must.Value(os.ReadFile(p.Cert + ".before-" + p.state(t).ID))(t)
		must.OK(t, os.WriteFile(p.Cert, kept, 0o600))
		if changed, err := p.followed(t); err != nil || changed != (i > 0) {
			t.Errorf("%s: got %t, %v after the repair", last, changed, err)
		}
		if now := must.Value(os.ReadFile(p.Cert))(t); !bytes.Equal(now, good) {
			t.Errorf("%s: after the repair the CA file is not that of the stage", last)
		}
	}
}

// Catches a rotation that would drop a CA which an operator added while it was prepared.
func TestFollowRefusesCAThatPrepareDidNotSee(t *testing.T) {
	_, p := newReplicas(t)
	d, seen := desk(t, p), p.load(t).Bundle()
	d.Trusted = func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return seen, nil }
	added := append(must.Value(os.ReadFile(p.Cert))(t), rotationtest.PEM(must.Value(signer.GenerateCA("other", time.Now(), 24*time.Hour))(t).Certificate())...)
	must.OK(t, os.WriteFile(p.Cert, added, 0o600))
	prepare(t, d, p)
	must.Value(d.Advance(t.Context(), rotation.Cluster, rotation.Trust, rotation.Options{}))(t)
	if changed, err := p.followed(t); !errors.Is(err, rowstate.ErrEdited) || changed {
		t.Errorf("got %t, %v, want %v", changed, err, rowstate.ErrEdited)
	}
	if now := must.Value(os.ReadFile(p.Cert))(t); !bytes.Equal(now, added) {
		t.Error("the CA file has changed")
	}
}

var errKilled = errors.New("killed")

// Catches a kubejoin that was killed between two writes of files and cannot continue, or whose key then has no
// certificate.
func TestFollowResumesAfterEveryWrite(t *testing.T) {
	ctx := t.Context()
	a, b := newReplicas(t)
	d := desk(t, a)
	prepare(t, d, a)
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Switch, rotation.Finish} {
		must.Value(d.Advance(ctx, rotation.Cluster, stage, rotation.Options{}))(t)
		must.Value(a.followed(t))(t)
	}
	b.Files = write(t, must.Value(signer.LoadCA(a.Cert+".before-"+a.state(t).ID, a.Files.Key+".before-"+a.state(t).ID))(t), 2)
	writes := 0 // a catch-up from prepare to finish writes most files
	for n := 1; ; n++ {
		p := replica{rowstate.Store{Rows: b.Rows, Files: write(t, b.load(t), 2)}}
		writes = 0
		p.Files = p.BeforeWrite(func() error {
			if writes++; writes == n {
				return errKilled
			}
			return nil
		})
		_, err := p.followed(t)
		p.load(t) // a restart can load it
		if writes < n {
			must.OK(t, err)
			break
		}
		if !errors.Is(err, errKilled) {
			t.Fatalf("write %d: got %v, want %v", n, err, errKilled)
		}
		_, err = p.followed(t)
		must.OK(t, err)
		if got := p.load(t); !got.Certificate().Equal(a.load(t).Certificate()) || len(got.Bundle()) != 1 {
			t.Errorf("killed at write %d: got %v of %d trusted ones", n, got, len(got.Bundle()))
		}
	}
	if writes != 5 {
		t.Errorf("%d writes, want 5: 2 copies, both CAs, the key and the new CA alone", writes)
	}
}

// Catches a prepare that would find out too late that it cannot write.
func TestWritableNamesTheFile(t *testing.T) {
	a, _ := newReplicas(t)
	must.OK(t, a.Writable())
	missing := a.Files
	missing.Key = filepath.Join(t.TempDir(), "missing", "ca.key")
	if err := missing.Writable(); err == nil || !strings.Contains(err.Error(), missing.Key) {
		t.Errorf("got %v, want an error with the file", err)
	}
	missing.Fixed = "because"
	if err := missing.Writable(); err == nil || err.Error() != "because" {
		t.Errorf("got %v, want the reason", err)
	}
	link := rowstate.Files{Cert: filepath.Join(t.TempDir(), "link.crt"), Key: a.Files.Key}
	must.OK(t, os.Symlink(a.Cert, link.Cert))
	if err := link.Writable(); err == nil || !strings.Contains(err.Error(), link.Cert+" is a symbolic link, want a regular file") {
		t.Errorf("got %v, want a refusal of the link", err)
	}
}

// Catches a replica that is behind and not named, and a replica that a rotation ignores too early.
func TestReplicasHoldUpSteps(t *testing.T) {
	a, _ := newReplicas(t)
	now := time.Now().UTC()
	r := rotationtest.New(t, rotation.Cluster)
	r.Stage = rotation.Switch
	trusted := []rotation.Observation{{Kind: rotation.KindServer, Name: "CA on a", Node: "a", Trusts: &rotation.Trusted{Old: true, New: true}}}
	for _, p := range []rowstate.Replica{
		{Name: "a", Time: now, ID: r.ID, Since: r.Since, Seen: trusted},
		{Name: "earlier", Time: now, ID: r.ID, Since: r.Since.Add(-time.Minute), Seen: trusted},
		{Name: "other", Time: now, ID: "00000000000000aa", Since: r.Since},
		{Name: "off", Time: now.Add(-3 * rowstate.Beat), ID: r.ID, Since: r.Since, Seen: trusted, Fixed: "is off"},
		{Name: "week", Time: now.Add(-8 * 24 * time.Hour), Fixed: "is forgotten"},
		{Name: "fixed", Time: now, ID: r.ID, Since: r.Since, Seen: trusted, Fixed: "kubejoin cannot replace ca.crt"},
		{Name: "empty", Time: now, ID: r.ID, Since: r.Since},
	} {
		must.OK(t, a.Report(t.Context(), p))
	}
	all := must.Value(a.Replicas(t.Context(), now))(t)
	var behind []string
	for _, b := range r.Pending(rowstate.Observe(r, all, now)) {
		behind = append(behind, b.Why)
	}
	want := []string{
		"kubejoin earlier was not seen: it does not follow stage switch yet",
		"kubejoin empty was not seen: its report is empty",
		"kubejoin off is off: its last report is from " + now.Add(-3*rowstate.Beat).Format(time.RFC3339),
		"kubejoin other was not seen: it does not follow stage switch yet",
	}
	if !reflect.DeepEqual(behind, want) {
		t.Errorf("finish: got %q, want %q", behind, want)
	}
	if got := rowstate.Cannot(all, now); len(got) != 1 || got[0].Why != "on fixed: kubejoin cannot replace ca.crt" {
		t.Errorf("prepare: got %+v, want the replica that runs and cannot write", got)
	}
	must.OK(t, a.Forget(t.Context(), now))
	if left := must.Value(a.Replicas(t.Context(), now.Add(-7*24*time.Hour)))(t); len(left) != 6 {
		t.Errorf("%d reports remain, want 6", len(left))
	}
}

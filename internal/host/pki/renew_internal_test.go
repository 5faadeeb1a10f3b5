package pki

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
)

// aged replaces the certificate in a file by one that expires within minutes.
func (f *fixture) aged(t testing.TB, name string) {
	t.Helper()
	old := func(chain []byte) []byte {
		leaf := must.Value(pemfile.Certificates(chain))(t)[0]
		der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(5), Subject: leaf.Subject, DNSNames: leaf.DNSNames, IPAddresses: leaf.IPAddresses, ExtKeyUsage: leaf.ExtKeyUsage, KeyUsage: leaf.KeyUsage,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(20 * time.Minute),
		}, f.old.Certificate(), leaf.PublicKey, f.old.private))(t)
		return pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: der})
	}
	if !strings.HasSuffix(name, ".conf") {
		f.write(t, name, old(must.Value(os.ReadFile(f.file(name)))(t)))
		return
	}
	config := must.Value(clientcmd.LoadFromFile(f.file(name)))(t)
	config.AuthInfos["me"].ClientCertificateData = old(config.AuthInfos["me"].ClientCertificateData)
	f.write(t, name, must.Value(clientcmd.Write(*config))(t))
}

// renewal returns a Renewal that signs with the keys of the host.
func (f *fixture) renewal() Renewal {
	return Renewal{Signer: func(context.Context) (Signing, error) {
		signers, missing, err := credentials.SignersOf(f.file("pki"), "")
		return Signing{Sign: credentials.SignLocally(signers), Missing: missing}, err
	}}
}

// Renew must renew certificates that expire soon, and restart static pods that read them only at start. The next Renew must
// complete a killed one.
func TestRenewsCertificatesNearTheirEnd(t *testing.T) {
	t.Parallel()
	for kill := 0; ; kill++ {
		f := newFixture(t, rotation.Cluster, false)
		f.machine.others = map[string]process{"c": {77, f.machine.booted}}
		f.manifestOf(t, "vip", f.file("admin.conf"), "")
		for name := range ports {
			must.Value(f.machine.find(ports[name]))(t)
		}
		if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Due)+len(done.Changed)+len(done.Unfit) > 0 || !maps.Equal(tree(t, f.Dir), f.plus(t, "manifests/vip.yaml")) {
			t.Fatalf("nothing is due: %+v", done)
		}
		aged := []string{"pki/apiserver.crt", "admin.conf", "scheduler.conf"}
		for _, name := range aged {
			f.aged(t, name)
		}
		before := tree(t, f.Dir)
		f.DryRun = true
		due := []string{"admin.conf", "apiserver", "scheduler.conf"}
		if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); !slices.Equal(done.Due, due) || !maps.Equal(before, tree(t, f.Dir)) {
			t.Fatalf("dry run: %+v, want %q and no change", done, due)
		}
		f.DryRun = false
		writes := 0
		f.beforeWrite = func(string) error {
			if writes++; writes > kill {
				return errKilled
			}
			return nil
		}
		_, err := f.Renew(t.Context(), f.renewal())
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if problem := f.works(t); problem != "" {
			t.Fatalf("killed before write %d: %s", kill, problem)
		}
		killed := err != nil
		f.beforeWrite, f.Restart = nil, []string{"vip"}
		done := must.Value(f.Renew(t.Context(), f.renewal()))(t)
		got := slices.DeleteFunc(differ(before, tree(t, f.Dir)), func(name string) bool { return strings.HasPrefix(name, Backups) })
		slices.Sort(aged)
		if slices.Sort(got); !slices.Equal(got, []string{"admin.conf", "pki/apiserver.crt", "scheduler.conf"}) || len(done.Unfit) > 0 || f.works(t) != "" {
			t.Fatalf("resumed after write %d: changed %q, %+v; %s", kill, got, done, f.works(t))
		}
		if slices.Sort(f.machine.ended); !slices.Equal(f.machine.ended, []int{77, ports["kube-scheduler"]}) {
			t.Fatalf("resumed after write %d: ended %d, want vip and kube-scheduler once", kill, f.machine.ended)
		}
		if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Due)+len(done.Changed)+len(done.Restarted)+len(done.Unfit) > 0 {
			t.Fatalf("once more: %+v", done)
		}
		if !killed {
			if kill < 8 {
				t.Fatalf("only %d writes were seen, so the test does not see all", kill)
			}
			return
		}
	}
}

// 'kubejoin certs renew' must renew the named certificates, regardless of when they expire. It must restart no pod;
// the next Renew restarts them.
func TestRenewsNowWithoutRestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t, rotation.Cluster, false)
	for name := range ports {
		must.Value(f.machine.find(ports[name]))(t)
	}
	now := f.renewal()
	now.Now, now.Names = true, []string{"scheduler.conf"}
	f.NoRestart = true
	done := must.Value(f.Renew(t.Context(), now))(t)
	if !slices.Equal(done.Names, now.Names) || !slices.Equal(done.Changed, now.Names) || len(done.Restarted)+len(f.machine.ended) > 0 ||
		!slices.Equal(done.Unfit, []string{"process kube-scheduler has not read its changed files; next: kubejoin host apply"}) {
		t.Errorf("one certificate: %+v, ended %d", done, f.machine.ended)
	}
	if old := must.Value(os.ReadFile(filepath.Join(done.Backup, "scheduler.conf")))(t); string(old) != f.before["scheduler.conf"] {
		t.Error("the backup has another file")
	}
	now.Names = nil
	all := must.Value(f.Renew(t.Context(), now))(t)
	if len(all.Names) < 5 || len(all.Unfit) < 2 || len(f.machine.ended) > 0 || f.works(t) != "" {
		t.Errorf("all: %+v, ended %d; %s", all, f.machine.ended, f.works(t))
	}
	f.NoRestart = false
	if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Due)+len(done.Unfit) > 0 || !slices.Contains(done.Restarted, "kube-scheduler") {
		t.Errorf("then: %+v", done)
	}
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	now.Names = []string{"admin.conf"}
	if done := must.Value(f.Renew(t.Context(), now))(t); len(done.Changed) > 0 || len(done.Unfit) != 1 || !strings.Contains(done.Unfit[0], "admin.conf is due, and changes only with the rotation of its CA") {
		t.Errorf("in a rotation: %+v", done)
	}
}

// Catches certificates that count as renewed although their files could not be replaced.
func TestRenewClaimsOnlyWhatItReplaced(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	now := f.renewal()
	sign := now.Signer
	now.Now, now.Names, f.NoRestart = true, []string{"admin.conf"}, true
	now.Signer = func(ctx context.Context) (Signing, error) {
		s, err := sign(ctx)
		s.Stop = func() {
			must.OK(t, errors.Join(os.Remove(f.file("admin.conf")), os.Mkdir(f.file("admin.conf"), 0o700)))
		}
		return s, err
	}
	done, err := f.Renew(t.Context(), now)
	if err == nil || !strings.Contains(err.Error(), "repeat the command") || len(done.Names)+len(done.Changed) > 0 || done.Backup != "" {
		t.Errorf("got %+v and %v, want no renewed certificate", done, err)
	}
	must.OK(t, os.Remove(f.file("admin.conf")))
	f.write(t, "admin.conf", []byte(f.before["admin.conf"]))
	if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); !slices.Equal(done.Changed, []string{"admin.conf"}) {
		t.Errorf("repeated: got %+v, want the file replaced", done)
	}
}

// plus returns the initial files, and one more file.
func (f *fixture) plus(t testing.TB, name string) map[string]string {
	t.Helper()
	all := maps.Clone(f.before)
	all[name] = string(must.Value(os.ReadFile(f.file(name)))(t))
	return all
}

// Renew must skip certificates that a rotation replaces, keep certificates that somebody else renewed, and report
// certificates whose CA is missing.
func TestRenewLeavesOut(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.aged(t, "admin.conf")
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Due) > 0 || !slices.Equal(done.Unfit, []string{"certificate admin.conf is due, and changes only with the rotation of its CA; next: kubejoin ca status"}) {
		t.Errorf("in a rotation: %+v", done)
	}
	f = newFixture(t, rotation.Cluster, false)
	f.aged(t, "admin.conf")
	must.Value(f.Renew(t.Context(), f.renewal()))(t)
	f.write(t, "admin.conf", []byte(f.before["admin.conf"])) // for example by 'kubeadm certs renew'
	if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Changed) > 0 || tree(t, f.Dir)["admin.conf"] != f.before["admin.conf"] {
		t.Errorf("after another renewal: %+v", done)
	}
	f = newFixture(t, rotation.Cluster, false) // the next renewal must still report a pod that has not restarted
	f.machine.others = map[string]process{"c": {77, f.machine.booted}}
	f.manifestOf(t, "vip", f.file("admin.conf"), "")
	for _, name := range []string{"admin.conf", "pki/apiserver.crt"} {
		f.aged(t, name)
		if done := must.Value(f.Renew(t.Context(), f.renewal()))(t); len(done.Unfit) != 1 || !strings.Contains(done.Unfit[0], "kubejoin host apply --restart vip") {
			t.Errorf("%s: %+v", name, done)
		}
	}
	f.aged(t, "admin.conf")
	f.aged(t, "pki/apiserver.crt")
	must.OK(t, os.Remove(f.file("pki/ca.key")))
	if _, err := f.Renew(t.Context(), f.renewal()); err == nil || !strings.Contains(err.Error(), "nothing to renew without these CAs: admin.conf: ") {
		t.Errorf("without a CA key: got %v", err)
	}
	worker := newFixture(t, rotation.Cluster, true)
	if done := must.Value(worker.Renew(t.Context(), worker.renewal()))(t); len(done.Due)+len(done.Unfit) > 0 {
		t.Errorf("a worker: %+v", done)
	}
	if left := must.Value(filepath.Glob(worker.file(Backups)))(t); len(left) > 0 {
		t.Errorf("on a worker there is %q", left)
	}
}

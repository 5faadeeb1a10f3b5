package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A dry run must change nothing, name each file, and show no secret.
func TestDryRun(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.Key = nil // a dry run needs no key
	f.DryRun = true
	f.beforeWrite = func(file string) error { // count writes of keys: sweep would have to find them after a crash
		name, below := strings.CutPrefix(file, f.file(Backups)+"/")
		if first, _, _ := strings.Cut(name, "/"); !below || !strings.HasSuffix(first, unfinished) {
			t.Errorf("wrote %s", file)
		}
		return nil
	}
	done := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	f.beforeWrite = nil
	if !maps.Equal(f.before, tree(t, f.Dir)) {
		t.Error("files changed")
	}
	if _, err := os.Stat(f.file(Backups)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want no backup", err)
	}
	f.DryRun, f.Key = false, func(context.Context) (crypto.Signer, error) { return f.fresh.private, nil }
	really := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	slices.Sort(really.Changed)
	slices.Sort(done.Changed)
	if !slices.Equal(done.Changed, really.Changed) || len(done.Changed) != 9 {
		t.Errorf("got %q, and really %q", done.Changed, really.Changed)
	}
	if want := really.Restarted[len(really.Restarted)-3:]; !slices.Equal(done.Restarted, want) {
		t.Errorf("would restart %q, and really %q", done.Restarted, want)
	}
	for _, want := range []string{
		"+++ " + f.file("pki/ca.crt") + " (stage switch)", `+certificate "CN=new" of "CN=new"`, "+++ " + f.file("kubelet.conf"),
		`+certificate "CN=kube-apiserver" of "CN=new"`, `-certificate "CN=kube-apiserver" of "CN=old"`, "+<private key of the new CA>",
	} {
		if !strings.Contains(done.Diff, want) {
			t.Errorf("the diff has no %q:\n%s", want, done.Diff)
		}
	}
	for _, secret := range []string{"PRIVATE", "client-key-data: L", strings.Split(string(f.fresh.key), "\n")[1], strings.Split(string(f.old.key), "\n")[1]} {
		if strings.Contains(done.Diff, secret) {
			t.Errorf("the diff has %q", secret)
		}
	}
}

// Without the key of the new CA, a control plane cannot switch. Apply must say so before any file changes.
func TestSwitchNeedsKeyOfNewCA(t *testing.T) {
	for name, key := range map[string]func(context.Context) (crypto.Signer, error){
		"--certificate-key-file":            nil,
		"the key is not that of the new CA": func(context.Context) (crypto.Signer, error) { return newCA(t, "third").private, nil },
		"unreachable":                       func(context.Context) (crypto.Signer, error) { return nil, errors.New("unreachable") },
	} {
		f := newFixture(t, rotation.Cluster, false)
		f.Key = key
		if _, err := f.Apply(t.Context(), f.at(rotation.Finish)); err == nil || !strings.Contains(err.Error(), name) || !maps.Equal(f.before, tree(t, f.Dir)) {
			t.Errorf("got %v, want %q and no change", err, name)
		}
		f.Key = nil
		must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t) // stage trust needs no key
	}
}

// After the switch, Apply must request certificates of the new CA with the kubelet's credential. On the way back, it
// must request certificates of the old CA.
func TestRequestsCertificatesOfKubelet(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	pki := filepath.Join(f.KubeletDir, "pki")
	must.OK(t, os.WriteFile(filepath.Join(pki, "kubelet-server-1.pem"), f.old.kubelet(t, 24*time.Hour), 0o600))
	must.OK(t, os.Symlink("kubelet-server-1.pem", filepath.Join(pki, "kubelet-server-current.pem")))
	signs, asked := f.old, []string{}
	f.Sign = func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
		asked = append(asked, r.Signer)
		csr := must.Value(pkcs10.Parse(r.CSR))(t)
		if csr.Subject.CommonName != "system:node:worker-1" || len(csr.IPAddresses) != 1 {
			t.Errorf("got a request of %s for %v", csr.Subject, csr.IPAddresses)
		}
		return signs.sign(t, r.CSR, time.Hour), nil
	}
	for _, step := range []struct {
		r     rotation.Rotation
		signs testCA
		from  rotation.From
		asked int
	}{
		{f.at(rotation.Prepare), f.old, rotation.FromOld, 0},
		{f.at(rotation.Trust), f.old, rotation.FromOld, 0},
		{f.at(rotation.Switch), f.fresh, rotation.FromNew, 2},
		{f.at(rotation.Finish), f.fresh, rotation.FromNew, 0},
		{f.aborted(rotation.Switch), f.fresh, rotation.FromNew, 0},
		{f.aborted(rotation.Trust), f.old, rotation.FromOld, 2},
		{f.aborted(rotation.Prepare), f.old, rotation.FromOld, 0},
	} {
		for _, want := range []int{step.asked, 0} {
			signs, asked = step.signs, nil
			done := must.Value(f.Apply(t.Context(), step.r))(t)
			if len(asked) != want || want > 0 && !slices.Equal(asked, []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}) {
				t.Errorf("%s: asked %q, want %d", step.r.Stage, asked, want)
			}
			for _, file := range done.Report.Files[1:] {
				if file.From != step.from {
					t.Errorf("%s: %s is from %s", step.r.Stage, file.Name, file.From)
				}
			}
		}
		for _, kind := range []string{"client", "server"} {
			file := must.Value(filepath.EvalSymlinks(filepath.Join(pki, "kubelet-"+kind+"-current.pem")))(t)
			content := must.Value(os.ReadFile(file))(t)
			if _, err := pemfile.KeyPair(content, content); err != nil || !kubeletFile.MatchString(filepath.Base(file)) {
				t.Errorf("%s: the link names %s: %v", step.r.Stage, file, err)
			}
			if info := must.Value(os.Stat(file))(t); info.Mode() != 0o600 {
				t.Errorf("%s: %s with a key has mode %s", step.r.Stage, file, info.Mode())
			}
			// An API server may not have read the new CA yet.
			between, chain := x509.NewCertPool(), pemfile.Presented(content)
			for _, c := range chain[1:] {
				between.AddCert(c)
			}
			_, err := chain[0].Verify(x509.VerifyOptions{Roots: must.Value(pemfile.Pool(f.old.cert))(t), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			if known := kind == "server" || step.from == rotation.FromOld; (err == nil) != known {
				t.Errorf("%s: a verifier of the old CA: %v, want the %s certificate verified: %t", step.r.Stage, err, kind, known)
			}
			if step.from == rotation.FromOld && len(chain) > 1 {
				t.Errorf("%s: the %s certificate has %d others behind it", step.r.Stage, kind, len(chain)-1)
			}
		}
	}
	for want, sign := range map[string]credentials.SignFunc{
		"no signer":       func(context.Context, credentials.SigningRequest) ([]byte, error) { return nil, errors.New("no signer") },
		"for another key": func(context.Context, credentials.SigningRequest) ([]byte, error) { return f.fresh.cert, nil },
		"kubejoin does not sign with the new CA yet": func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
			return f.old.sign(t, r.CSR, time.Hour), nil
		},
	} {
		f.Sign, f.logged = sign, nil
		before := must.Value(os.Readlink(filepath.Join(pki, "kubelet-client-current.pem")))(t)
		_, err := f.Apply(t.Context(), f.at(rotation.Switch))
		after := must.Value(os.Readlink(filepath.Join(pki, "kubelet-client-current.pem")))(t)
		if err != nil || before != after || !strings.Contains(strings.Join(f.logged, "\n"), "warning: the kubelet got no new client certificate: ") || !strings.Contains(strings.Join(f.logged, "\n"), want) {
			t.Errorf("%s: got %v, %q, want a warning", want, err, f.logged)
		}
	}
}

// After the rotation has ended, Apply must report files that still contain something of the replaced CA. It must remove
// former certificates of the kubelet.
func TestNamesWhatRemainsOfOldCA(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	pki := filepath.Join(f.KubeletDir, "pki")
	current := filepath.Join(pki, "kubelet-client-2026-02-02-00-00-00.pem")
	must.OK(t, os.WriteFile(current, f.fresh.kubelet(t, time.Hour), 0o600))
	must.OK(t, os.Remove(filepath.Join(pki, "kubelet-client-current.pem")))
	must.OK(t, os.Symlink(current, filepath.Join(pki, "kubelet-client-current.pem")))
	serving := filepath.Join(pki, "kubelet-server-2026-02-02-00-00-00.pem") // in use
	must.OK(t, os.WriteFile(serving, f.old.kubelet(t, time.Hour), 0o600))
	must.OK(t, os.Symlink(serving, filepath.Join(pki, "kubelet-server-current.pem")))
	f.write(t, "tmp/admin.conf", []byte(f.before["admin.conf"]))
	f.write(t, "mine/bundle.pem", append([]byte("text\n"), f.old.cert...))
	f.write(t, "mine/other.pem", f.fresh.cert)
	f.write(t, "mine/large.pem", f.old.cert)
	must.OK(t, os.Truncate(f.file("mine/large.pem"), mebibyte+1)) // too large to be read
	// The chain that the kubelet serves.
	f.write(t, "mine/cross.pem", slices.Concat(f.fresh.kubelet(t, time.Hour), f.rotation.Cross.PEM()))
	// The kubelet did not write this file.
	must.OK(t, os.WriteFile(filepath.Join(pki, "mine.pem"), f.old.kubelet(t, time.Hour), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(pki, "kubelet-client-2026-02-01-00-00-00.pem"), f.fresh.kubelet(t, time.Hour), 0o600))
	ended := f.at(rotation.Finish)
	ended.Ended, ended.Since = time.Now(), time.Now().Add(-rotation.Rereads)
	done := must.Value(f.Apply(t.Context(), ended))(t)
	text := strings.Join(done.Unfit, "\n")
	for _, name := range []string{"mine/bundle.pem", "tmp/admin.conf", filepath.Join(pki, "kubelet-server-current.pem")} {
		if !strings.Contains(text, name+" on worker-1 ") {
			t.Errorf("got %q, want %s", done.Unfit, name)
		}
	}
	if len(done.Unfit) != 3 {
		t.Errorf("got %q, want 3", done.Unfit)
	}
	if left := must.Value(filepath.Glob(filepath.Join(pki, "*")))(t); len(left) != 6 {
		t.Errorf("the kubelet has %q, want two links and their files, one of the new CA, and mine.pem", left)
	}
}

const mebibyte = 1 << 20

// Checks which content of a file is behind. Catches a YAML file that uses all memory of the container.
func TestHolds(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	l := &looking{Rotation: f.rotation}
	config, err := credentials.ParseKubeconfig([]byte(f.before[kubeletConf]))
	must.OK(t, err)
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificateData: f.old.kubelet(t, time.Hour), ClientKeyData: f.old.key}
	embedded := must.Value(clientcmd.Write(*config.Config))(t)
	third := newCA(t, "third")
	config.Clusters["kubernetes"].CertificateAuthorityData, config.AuthInfos["me"] = third.cert, &clientcmdapi.AuthInfo{}
	other := must.Value(clientcmd.Write(*config.Config))(t)
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificateData: slices.Concat(f.fresh.kubelet(t, time.Hour), f.old.cert), ClientKeyData: f.fresh.key}
	chained := must.Value(clientcmd.Write(*config.Config))(t)
	intermediate := f.fresh.crossed(t, newCA(t, "intermediate").Certificate())
	trusts := func(old, fresh bool) *rotation.Trusted { return &rotation.Trusted{Old: old, New: fresh} }
	for name, test := range map[string]struct {
		content []byte
		want    rotation.File
		config  bool
	}{
		"nothing":                       {[]byte("text"), rotation.File{}, false},
		"another CA":                    {newCA(t, "third").cert, rotation.File{}, false},
		"old CA":                        {append([]byte("text\n"), f.old.cert...), rotation.File{Trusts: trusts(true, false)}, false},
		"both CAs":                      {slices.Concat(f.old.cert, f.fresh.cert), rotation.File{Trusts: trusts(true, true)}, false},
		"cross certificate alone":       {f.rotation.Cross.PEM(), rotation.File{}, false},
		"certificate of the old CA":     {f.old.kubelet(t, time.Hour), rotation.File{From: rotation.FromOld}, false},
		"chain of the new CA":           {slices.Concat(f.fresh.kubelet(t, time.Hour), f.rotation.Cross.PEM(), f.fresh.cert), rotation.File{From: rotation.FromNew}, false},
		"certificates of both CAs":      {slices.Concat(f.fresh.kubelet(t, time.Hour), f.old.kubelet(t, time.Hour)), rotation.File{From: rotation.FromOld}, false},
		"of both, the old one first":    {slices.Concat(f.old.kubelet(t, time.Hour), f.fresh.kubelet(t, time.Hour)), rotation.File{From: rotation.FromOld}, false},
		"key of the old CA":             {f.old.key, rotation.File{From: rotation.FromOld}, false},
		"key of the new CA":             {f.fresh.key, rotation.File{From: rotation.FromNew}, false},
		"kubeconfig":                    {[]byte(f.before[kubeletConf]), rotation.File{Trusts: trusts(true, false)}, true},
		"kubeconfig of another cluster": {other, rotation.File{}, true},
		"kubeconfig with a certificate": {embedded, rotation.File{Trusts: trusts(true, false), From: rotation.FromOld}, true},
		"kubeconfig that presents a CA": {chained, rotation.File{From: rotation.FromNew}, true},
		"old CA, intermediate of new":   {slices.Concat(f.old.cert, pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: intermediate.Raw})), rotation.File{Trusts: trusts(true, false), From: rotation.FromNew}, false},
	} {
		got, _, config, err := l.holds(test.content)
		if err != nil || !reflect.DeepEqual(got, test.want) || config != test.config {
			t.Errorf("%s: got %+v, kubeconfig: %t", name, got, config)
		}
	}
	l.Replaced = []rotation.Replaced{{Rotation: "x", Pin: clusterinfo.Pin(third.Certificate()), NotAfter: time.Now().Add(time.Hour)}}
	if got, _, _, _ := l.holds(third.cert); got.Trusts == nil || !got.Trusts.Replaced {
		t.Errorf("a CA that an earlier rotation replaced: got %+v", got)
	}
	// A new CA that the old CA has signed: its certificates are not from the old CA.
	below := f.old.crossed(t, f.fresh.Certificate())
	l.New, l.Cross = rotation.Bundle{below}, nil
	if got, _, _, _ := l.holds(l.New.PEM()); !reflect.DeepEqual(got, rotation.File{Trusts: trusts(false, true)}) {
		t.Errorf("a new CA below the old one: got %+v", got)
	}
	policy := bytes.Repeat([]byte("- a: {}\n"), mebibyte/8)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, _, _ = l.holds(policy)
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 16*mebibyte {
		t.Errorf("looking at %d bytes took %d", len(policy), got)
	}
}

// The originals of a host that joined during the rotation already trust both CAs.
func TestHostThatJoinedDuringRotation(t *testing.T) {
	for _, end := range []rotation.Rotation{{Stage: rotation.Finish}, {Stage: rotation.Prepare, Aborting: true}} {
		f := newFixture(t, rotation.Cluster, true)
		both := slices.Concat(f.old.cert, f.fresh.cert)
		f.write(t, "pki/ca.crt", both)
		config, err := credentials.ParseKubeconfig([]byte(f.before[kubeletConf]))
		must.OK(t, err)
		config.Clusters["kubernetes"].CertificateAuthorityData = both
		f.write(t, kubeletConf, must.Value(clientcmd.Write(*config.Config))(t))
		must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
		r := f.at(end.Stage)
		r.Aborting, r.Ended = end.Aborting, time.Now()
		done := must.Value(f.Apply(t.Context(), r))(t)
		want := rotation.Trusted{Old: end.Aborting, New: !end.Aborting}
		for _, file := range done.Report.Files {
			if *file.Trusts != want {
				t.Errorf("%s, aborting %t: %s trusts %+v", end.Stage, end.Aborting, file.Name, *file.Trusts)
			}
		}
	}
}

// A control plane that joined while the new CA signed already has the new CA's key. If it joined in stage finish, it does not
// trust the old CA. The cross certificate does not prove the old CA to it, because any CA can certify the new CA's key.
func TestControlPlaneThatJoinedAfterSwitch(t *testing.T) {
	for _, joined := range []rotation.Stage{rotation.Switch, rotation.Finish} {
		f := newFixture(t, rotation.Cluster, false)
		must.Value(f.Apply(t.Context(), f.at(joined)))(t)
		must.OK(t, os.RemoveAll(f.file(Backups)))
		f.Key = nil
		must.Value(f.Apply(t.Context(), f.at(joined)))(t)
		if problem := f.works(t); problem != "" {
			t.Errorf("%s: %s", joined, problem)
		}
		if joined == rotation.Switch {
			continue
		}
		pin := clusterinfo.Pin(f.old.Certificate())
		_, err := f.Apply(t.Context(), f.aborted(rotation.Switch))
		if err == nil || !strings.Contains(err.Error(), "that of the old CA on a host that is older than the rotation, and give it with: --ca-pin "+pin) {
			t.Errorf("after an abort: got %v", err)
		}
		f.Pins = []string{pin}
		must.Value(f.Apply(t.Context(), f.aborted(rotation.Switch)))(t)
	}
}

// A rotation that ended long ago must affect only hosts that missed its end.
func TestAfterTheEnd(t *testing.T) {
	f, third := newFixture(t, rotation.Cluster, true), newCA(t, "third")
	ended := f.at(rotation.Finish)
	ended.Ended = time.Now()
	f.write(t, "pki/ca.crt", third.cert)
	if done, err := f.Apply(t.Context(), ended); err != nil || len(done.Changed) > 0 {
		t.Errorf("a host of a later CA: %+v, %v", done, err)
	}
	f.write(t, "pki/ca.crt", f.old.cert)
	if done, err := f.Apply(t.Context(), ended); err != nil || summary(done.Report) != "false+true " {
		t.Errorf("a host that was off: %+v, %v", done, err)
	}
	aborted := f.aborted(rotation.Prepare)
	aborted.Ended = time.Now()
	f.write(t, "pki/ca.crt", f.old.cert)
	if done, err := f.Apply(t.Context(), aborted); err != nil || len(done.Changed) > 0 {
		t.Errorf("a host that never began: %+v, %v", done, err)
	}
}

// A control plane without the key of the old CA must not get the key of the new CA.
func TestKeyStaysAway(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	must.OK(t, os.Remove(f.file("pki/ca.key")))
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	found := must.Value(filepath.Glob(f.file("*", "*", "*", "*", "ca.key")))(t)
	if _, err := os.Stat(f.file("pki/ca.key")); !errors.Is(err, os.ErrNotExist) || len(found) > 0 {
		t.Errorf("the host has a key: %v, %q", err, found)
	}
	if problem := f.works(t); problem != "" {
		t.Error(problem)
	}
}

// The backup must keep the signed files, but no copy of the new CA's key. So an operator need encrypt only the key file.
func TestKeepsOnlyWhatItSigned(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	done := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	want := authorities[rotation.Cluster].signed()
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(tree(t, filepath.Join(done.Backup, signedDirs[rotation.FromNew]))))
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f.write(t, "pki/ca.key", []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	f.Key = nil
	must.Value(f.Apply(t.Context(), f.at(rotation.Finish)))(t)
}

// A temporary file of a killed Apply may contain a key.
func TestRemovesTemporaryFiles(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.write(t, "pki/.ca.key.123456", f.fresh.key)
	f.write(t, "pki/.ca.key.swp", []byte("of an editor"))
	f.write(t, Backups+"/cluster-0123456789abcdef"+unfinished+"/signed/pki/ca.key", f.fresh.key)
	kubelet := filepath.Join(f.KubeletDir, "pki", ".kubelet-client-2026-01-02-03-04-05.pem.123456")
	must.OK(t, os.WriteFile(kubelet, f.fresh.key, 0o600))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	if _, err := os.Stat(kubelet); err == nil {
		t.Errorf("%s is still there", kubelet)
	}
	for name, want := range map[string]bool{"pki/.ca.key.123456": false, "pki/.ca.key.swp": true, Backups + "/cluster-0123456789abcdef" + unfinished: false} {
		if _, err := os.Stat(f.file(name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", name, err, want)
		}
	}
}

// Apply must keep file modes. It must refuse a symbolic link, because it would replace the link by a file.
func TestKeepsModes(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	must.OK(t, os.Chmod(f.file("pki/ca.crt"), 0o644))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	if info := must.Value(os.Stat(f.file("pki/ca.crt")))(t); info.Mode() != 0o644 {
		t.Errorf("got mode %s", info.Mode())
	}
	if info := must.Value(os.Stat(f.file("pki/ca.key")))(t); info.Mode() != 0o600 {
		t.Errorf("the key has mode %s", info.Mode())
	}
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	must.OK(t, filepath.WalkDir(f.file(Backups), func(path string, d fs.DirEntry, _ error) error {
		info, err := d.Info()
		if err == nil && d.Type()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s in the backup has mode %s", path, info.Mode())
		}
		return err
	}))
	f = newFixture(t, rotation.Cluster, true)
	must.OK(t, os.Rename(f.file("pki/ca.crt"), f.file("pki/real.crt")))
	must.OK(t, os.Symlink("real.crt", f.file("pki/ca.crt")))
	if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), "not a link") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// If the host trusts a further CA, the bundle must keep this CA. The CA that signs must come first.
func TestBundle(t *testing.T) {
	f, third := newFixture(t, rotation.Cluster, true), newCA(t, "third")
	before := []*x509.Certificate{third.Certificate(), f.old.Certificate()}
	for stage, want := range map[rotation.Stage]string{rotation.Trust: "old new third", rotation.Switch: "new old third", rotation.Finish: "new third"} {
		var got []string
		for _, c := range must.Value(pemfile.Certificates(bundleOf(before, f.at(stage))))(t) {
			got = append(got, c.Subject.CommonName)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", stage, got, want)
		}
	}
}

// While clients may trust only the old CA, kube-apiserver must also present the cross certificate, which the old CA
// has signed for the new CA.
func TestServesCrossCertificate(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	between := must.Value(pemfile.Pool(f.rotation.Cross.PEM()))(t)
	ended := f.at(rotation.Finish)
	ended.Ended, ended.Since = time.Now(), time.Now()
	settled := ended
	settled.Since = time.Now().Add(-rotation.Rereads)
	for _, step := range []struct {
		name string
		rotation.Rotation
		crosses bool
	}{
		{"switch", f.at(rotation.Switch), true}, {"finish", f.at(rotation.Finish), true}, {"just ended", ended, true}, {"ended", settled, false},
	} {
		done := must.Value(f.Apply(t.Context(), step.Rotation))(t)
		chain := must.Value(pemfile.Certificates(must.Value(os.ReadFile(f.file("pki/apiserver.crt")))(t)))(t)
		served := between
		if len(chain) == 1 {
			served = x509.NewCertPool()
		}
		_, err := chain[0].Verify(x509.VerifyOptions{Roots: must.Value(pemfile.Pool(f.old.cert))(t), Intermediates: served})
		if (err == nil) != step.crosses || (done.Backup != "") != step.crosses {
			t.Errorf("%s: a client of the old CA: %v, want %t; backup %q", step.name, err, step.crosses, done.Backup)
		}
	}
}

// Apply must keep the CA of another cluster in a kubeconfig.
func TestKubeconfigKeepsOtherClusters(t *testing.T) {
	f, third := newFixture(t, rotation.Cluster, false), newCA(t, "third")
	config, err := credentials.ParseKubeconfig([]byte(f.before["admin.conf"]))
	must.OK(t, err)
	other := config.Clusters["kubernetes"].DeepCopy()
	other.CertificateAuthorityData = third.cert
	config.Clusters["other"] = other
	f.write(t, "admin.conf", must.Value(clientcmd.Write(*config.Config))(t))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	config, err = credentials.ParseKubeconfig(must.Value(os.ReadFile(f.file("admin.conf")))(t))
	must.OK(t, err)
	if string(config.Clusters["other"].CertificateAuthorityData) != string(third.cert) || !strings.Contains(string(config.Clusters["kubernetes"].CertificateAuthorityData), string(f.fresh.cert)) {
		t.Errorf("got %+v", config.Clusters)
	}
}

// clientcmd reads only the first document, so the others would be gone.
func TestRefusesKubeconfigOfTwoDocuments(t *testing.T) {
	for _, name := range []string{"admin.conf", "kubelet.conf"} {
		f := newFixture(t, rotation.Cluster, false)
		f.write(t, name, []byte(f.before[name]+"---\nkind: Config\n"))
		if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), name+": more than one YAML document") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Two concurrent runs would treat each other's files as written by somebody else.
func TestExcludesAnotherApply(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	unlock := must.Value(f.exclude())(t)
	if done, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || done.Report != nil || !strings.Contains(err.Error(), "another 'kubejoin ca apply'") || !strings.Contains(err.Error(), "fuser -v "+f.file(Backups)) {
		t.Errorf("got %v", err)
	}
	if info := must.Value(os.Stat(f.file(Backups)))(t); info.Mode().Perm() != 0o700 {
		t.Errorf("any user can lock a folder of mode %s", info.Mode())
	}
	unlock()
	// A user who can only read the folder of kubeadm must not be able to block Apply.
	dir := must.Value(os.Open(f.Dir))(t)
	must.OK(t, syscall.Flock(int(dir.Fd()), syscall.LOCK_EX))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	must.OK(t, dir.Close())
}

// Catches two concurrent runs: one of them locks a folder that a third run has just removed.
func TestExcludesOthersWhileLockIsMadeAgain(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	var holders, got atomic.Int32
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			for until := time.Now().Add(time.Second / 2); time.Now().Before(until); {
				unlock, err := f.exclude()
				if err != nil {
					continue
				}
				got.Add(1)
				if n := holders.Add(1); n > 1 {
					t.Errorf("%d at once", n)
				}
				runtime.Gosched()
				holders.Add(-1)
				unlock()
			}
		})
	}
	running.Wait()
	if got.Load() == 0 {
		t.Error("nobody got the lock")
	}
}

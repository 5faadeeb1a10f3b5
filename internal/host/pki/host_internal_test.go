package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// A testCA is a CA with its key in PEM.
type testCA struct {
	*signer.CA
	cert, key []byte
	private   crypto.Signer
}

func newCA(t testing.TB, name string) testCA {
	t.Helper()
	ca := must.Value(signer.GenerateCA(name, time.Now(), 24*365*2*time.Hour))(t)
	cert, key, err := ca.PEM()
	must.OK(t, err)
	return testCA{ca, cert, key, must.Value(pemfile.Key(key))(t)}
}

// crossed returns a cross certificate: this CA signs the key of another CA.
func (ca testCA) crossed(t testing.TB, other *x509.Certificate) *x509.Certificate {
	t.Helper()
	der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: other.Subject, RawSubject: other.RawSubject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, ca.Certificate(), other.PublicKey, ca.private))(t)
	return must.Value(x509.ParseCertificate(der))(t)
}

// A fixture is a host before the rotation of a CA.
type fixture struct {
	Host
	old, fresh testCA
	rotation   rotation.Rotation
	machine    *fakeMachine
	before     map[string]string
	logged     []string
}

// newFixture returns a control plane or a worker, and a rotation with a cross certificate in stage prepare.
func newFixture(t testing.TB, ca rotation.CA, worker bool) *fixture {
	t.Helper()
	f := &fixture{old: newCA(t, "old"), fresh: newCA(t, "new")}
	f.Dir, f.KubeletDir = t.TempDir(), t.TempDir()
	f.KubeletReloads = func(context.Context) bool { return true }
	f.write(t, "pki/ca.crt", f.old.cert)
	if !worker {
		f.controlPlane(t, ca)
	}
	config := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"kubernetes": {Server: "https://192.0.2.1:6443", CertificateAuthorityData: f.old.cert}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientCertificate: filepath.Join(f.KubeletDir, "pki/kubelet-client-current.pem"), ClientKey: filepath.Join(f.KubeletDir, "pki/kubelet-client-current.pem")}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "kubernetes", AuthInfo: "me"}}, CurrentContext: "x",
	}
	f.write(t, "kubelet.conf", must.Value(clientcmd.Write(config))(t))
	file := filepath.Join(f.KubeletDir, "pki", "kubelet-client-2026-01-01-00-00-00.pem")
	must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
	of := f.old
	if ca != rotation.Cluster {
		of = newCA(t, "cluster")
	}
	must.OK(t, os.WriteFile(file, of.kubelet(t, 24*time.Hour), 0o600))
	must.OK(t, os.Symlink(file, filepath.Join(f.KubeletDir, "pki", "kubelet-client-current.pem")))
	f.rotation = must.Value(rotation.New(ca, []*x509.Certificate{f.old.Certificate()}, []*x509.Certificate{f.fresh.Certificate()}, f.old.crossed(t, f.fresh.Certificate()), time.Now()))(t)
	f.machine = newMachine(f.Dir, time.Now().Add(-time.Hour))
	f.system, f.Wait = f.machine, time.Minute
	f.Key = func(context.Context) (crypto.Signer, error) { return f.fresh.private, nil }
	f.Log = func(line string) { f.logged = append(f.logged, line) }
	f.before = tree(t, f.Dir)
	return f
}

// sign returns a client certificate for a request.
func (ca testCA) sign(t testing.TB, request []byte, life time.Duration) []byte {
	t.Helper()
	csr := must.Value(pkcs10.Parse(request))(t)
	der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: csr.Subject, IPAddresses: csr.IPAddresses,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Certificate(), csr.PublicKey, ca.private))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// kubelet returns a client certificate of a kubelet with its key.
func (ca testCA) kubelet(t testing.TB, life time.Duration) []byte {
	t.Helper()
	key := csrtest.NewKey()
	der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(life), IPAddresses: []net.IP{net.IPv4(192, 0, 2, 9)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Certificate(), key.Public(), ca.private))(t)
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)...)
}

// write writes a file of the host, and creates its folder.
func (f *fixture) write(t testing.TB, name string, content []byte) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(f.file(name)), 0o700))
	must.OK(t, os.WriteFile(f.file(name), content, 0o600))
}

// controlPlane writes the files that kubeadm writes on a control plane. The rotated CA is f.old. The other CAs are generated.
func (f *fixture) controlPlane(t testing.TB, rotated rotation.CA) {
	t.Helper()
	for ca, a := range authorities {
		of := f.old
		if ca != rotated {
			of = newCA(t, string(ca))
		}
		f.write(t, a.bundle, of.cert)
		f.write(t, a.key, of.key)
	}
	cluster := must.Value(os.ReadFile(f.file("pki/ca.crt")))(t)
	for name, subject := range map[string]pkix.Name{
		"pki/apiserver.crt":                {CommonName: "kube-apiserver"},
		"pki/apiserver-kubelet-client.crt": {CommonName: "kube-apiserver-kubelet-client"},
		"pki/front-proxy-client.crt":       {CommonName: "front-proxy-client"},
		"pki/etcd/server.crt":              {CommonName: "control-1"},
		"pki/etcd/peer.crt":                {CommonName: "control-1"},
		"pki/etcd/healthcheck-client.crt":  {CommonName: "kube-etcd-healthcheck-client"},
		"pki/apiserver-etcd-client.crt":    {CommonName: "kube-apiserver-etcd-client"},
		"admin.conf":                       {CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}},
		"super-admin.conf":                 {CommonName: "kubernetes-super-admin", Organization: []string{"system:masters"}},
		"controller-manager.conf":          {CommonName: "system:kube-controller-manager"},
		"scheduler.conf":                   {CommonName: "system:kube-scheduler"},
	} {
		template := &x509.CertificateRequest{Subject: subject}
		if strings.HasSuffix(name, "server.crt") || strings.HasSuffix(name, "peer.crt") {
			template.DNSNames, template.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1).To4()}
		}
		key := csrtest.NewKey()
		encoded := must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)
		request := csrtest.PEM(t, template, key)
		if path, found := strings.CutSuffix(name, ".crt"); found {
			f.write(t, path+".key", encoded)
			f.write(t, path+".csr", request)
			continue
		}
		f.write(t, name+".csr", request)
		f.write(t, name, must.Value(clientcmd.Write(clientcmdapi.Config{
			Clusters:  map[string]*clientcmdapi.Cluster{"kubernetes": {Server: "https://192.0.2.1:6443", CertificateAuthorityData: cluster}},
			AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientKeyData: encoded}},
			Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "kubernetes", AuthInfo: "me"}}, CurrentContext: "x",
		}))(t))
	}
	signers, _, err := credentials.SignersOf(f.file("pki"), "")
	must.OK(t, err)
	must.Value(credentials.KubeadmFiles{Dir: f.Dir}.Sign(t.Context(), credentials.SignLocally(signers)))(t)
	for _, a := range authorities {
		for _, name := range a.signed() {
			must.OK(t, os.RemoveAll(f.file(strings.TrimSuffix(name, ".crt")+".csr")))
		}
		for _, p := range a.pods {
			f.write(t, "manifests/"+p.name+".yaml", []byte(podYAML(p.name)))
		}
	}
}

// ports are the ports in the probes of static pods.
var ports = map[string]int{"kube-controller-manager": 10257, "kube-scheduler": 10259, "etcd": 2381, "kube-apiserver": 6443}

func podYAML(name string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  labels:
    tier: control-plane
  name: %s
spec:
  containers:
  - name: x
    image: x
    livenessProbe:
      httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}
    ports:
    - {containerPort: %d, name: probe-port, protocol: TCP}
`, name, ports[name])
}

// at returns the rotation in a stage.
func (f *fixture) at(stage rotation.Stage) rotation.Rotation {
	r := f.rotation
	r.Stage = stage
	return r
}

func (f *fixture) aborted(stage rotation.Stage) rotation.Rotation {
	r := f.at(stage)
	r.Aborting = true
	return r
}

// tree returns the content of all files below a folder, except the backups.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.OK(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == Backups {
				return fs.SkipDir
			}
			return nil
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[name] = string(content)
		return err
	}))
	return all
}

// A fakeMachine is a machine whose kubelet restarts a static pod when its process has ended.
type fakeMachine struct {
	dir       string
	booted    time.Time          // start time of the first processes
	kubelet   process            // pid 0 means that it does not run
	stuck     bool               // the kubelet starts no pod
	sick      error              // the error of every health check
	invisible error              // the error of every search for a process
	refused   error              // the error of every attempt to end a process
	hidden    int                // how many searches do not find etcd
	skew      time.Duration      // change of the clock since the boot
	running   map[int]process    // processes by port
	others    map[string]process // processes by container name
	ended     []int
	graces    []time.Duration // grace periods of the ended processes
	deadlines []time.Time     // deadlines of health checks
	pids      int

	mu sync.Mutex // held during end
}

func newMachine(dir string, booted time.Time) *fakeMachine {
	return &fakeMachine{dir: dir, running: map[int]process{}, booted: booted, kubelet: process{1, booted}}
}

// next starts a process. The clock of the file system may lag, so next waits until the next change of a file is newer
// than the process.
func (m *fakeMachine) next() process {
	m.pids++
	p := process{100 + m.pids, time.Now()}
	changed := m.dir + ".changed"
	if err := wait.Poll(wait.Most, func() error {
		if err := os.WriteFile(changed, []byte("x"), 0o600); err != nil {
			return err
		}
		if at := must.Get(os.Stat(changed)).ModTime(); !at.After(p.started) {
			return fmt.Errorf("%s changed at %s, before %s", changed, at, p.started)
		}
		return nil
	}); err != nil {
		panic(err)
	}
	return p
}

func (m *fakeMachine) boot() (boot, error) {
	return boot{"1", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(m.skew)}, nil
}

func (m *fakeMachine) listener(s service) (process, error) {
	if s.pod != "" {
		return m.others[s.pod], nil
	}
	const maxComm = 15
	if s.comm != s.name[:min(len(s.name), maxComm)] {
		return process{}, errors.New("anything may listen on the port of the " + s.name)
	}
	p, err := m.find(s.port)
	p.started = p.started.Add(m.skew)
	return p, err
}

func (m *fakeMachine) find(port int) (process, error) {
	if m.invisible != nil {
		return process{}, m.invisible
	}
	if port == ports["etcd"] && m.hidden > 0 {
		m.hidden--
		return process{}, nil
	}
	if port == 10248 || port == 10250 || port == 10260 {
		return m.kubelet, nil
	}
	for name, own := range ports {
		if _, err := os.Stat(filepath.Join(m.dir, "manifests", name+".yaml")); own != port || err != nil || m.kubelet.pid == 0 {
			continue
		}
		p, before := m.running[port]
		switch {
		case !before:
			m.running[port] = process{own, m.booted}
		case p.pid == 0 && !m.stuck:
			m.running[port] = m.next()
		}
	}
	return m.running[port], nil
}

func (m *fakeMachine) healthy(ctx context.Context, url string) error {
	deadline, _ := ctx.Deadline()
	m.deadlines = append(m.deadlines, deadline)
	for _, port := range []string{":10248/healthz", ":10257/livez", ":10259/livez", ":2381/livez", ":6443/livez"} {
		if strings.HasSuffix(url, port) {
			return m.sick
		}
	}
	return fmt.Errorf("nothing at %s", url)
}

func (m *fakeMachine) end(_ context.Context, p process, grace time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused != nil {
		return m.refused
	}
	m.ended, m.graces = append(m.ended, p.pid), append(m.graces, grace)
	if p.pid == m.kubelet.pid {
		m.kubelet = m.next()
	}
	for name, running := range m.others {
		if running.pid == p.pid {
			m.others[name] = m.next()
		}
	}
	for port, running := range m.running {
		if running.pid == p.pid {
			m.running[port] = process{}
		}
	}
	return nil
}

// works returns why the files of a host do not work together; empty if they do. Each file with trusted CAs must
// verify each presented certificate.
func (f *fixture) works(t testing.TB) string {
	t.Helper()
	a := authorities[f.rotation.CA]
	trusts, presents := map[string][]byte{}, map[string][]byte{}
	for _, name := range a.files() {
		content, err := os.ReadFile(f.file(name))
		if err != nil {
			continue
		}
		switch {
		case name == a.bundle:
			trusts[name] = content
		case slices.Contains(a.leaves, name):
			presents[name] = content
			key := must.Value(os.ReadFile(f.file(strings.TrimSuffix(name, ".crt") + ".key")))(t)
			if _, err := pemfile.KeyPair(content, key); err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
		case strings.HasSuffix(name, ".conf"):
			config, err := credentials.ParseKubeconfig(content)
			must.OK(t, err)
			trusts[name] = config.Clusters["kubernetes"].CertificateAuthorityData
			if file := config.Clusters["kubernetes"].CertificateAuthority; file != "" {
				trusts[name] = must.Value(os.ReadFile(file))(t)
			}
			if name != kubeletConf {
				presents[name] = config.User.ClientCertificateData
				if _, err := pemfile.KeyPair(config.User.ClientCertificateData, config.User.ClientKeyData); err != nil {
					return fmt.Sprintf("%s: %v", name, err)
				}
			}
		case name == a.key:
			certs := must.Value(pemfile.Certificates(must.Value(os.ReadFile(f.file(a.bundle)))(t)))(t)
			if _, err := signer.NewCA(certs, must.Value(pemfile.Key(content))(t)); err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
		}
	}
	for truster, bundle := range trusts {
		pool := must.Value(pemfile.Pool(bundle))(t)
		for name, chain := range presents {
			certs := must.Value(pemfile.Certificates(chain))(t)
			if _, err := certs[0].Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				return fmt.Sprintf("%s does not trust %s: %v", truster, name, err)
			}
		}
	}
	return ""
}

// summary returns a report as text: which files trust which CAs, and which files are from the old CA or the new CA.
func summary(report *rotation.Report) string {
	var trusts, from []string
	for _, file := range report.Files {
		if file.Trusts != nil {
			trusts = append(trusts, fmt.Sprintf("%t+%t", file.Trusts.Old, file.Trusts.New))
		}
		if file.From != "" && file.Name != kubeletConf {
			from = append(from, string(file.From))
		}
	}
	slices.Sort(trusts)
	slices.Sort(from)
	return strings.Join(slices.Compact(trusts), ",") + " " + strings.Join(slices.Compact(from), ",")
}

// copied returns a copy of the host in another folder.
func (f *fixture) copied(t testing.TB) *fixture {
	t.Helper()
	other := *f
	other.Dir = t.TempDir()
	must.OK(t, os.CopyFS(other.Dir, os.DirFS(f.Dir)))
	other.machine = newMachine(other.Dir, time.Now()) // after the files were written
	other.system = other.machine
	return &other
}

var everyHost = []struct {
	name   string
	ca     rotation.CA
	worker bool
}{{"control plane", rotation.Cluster, false}, {"worker", rotation.Cluster, true}, {"front-proxy", rotation.FrontProxy, false}, {"etcd", rotation.Etcd, false}}

// In each stage, all files of a host must match this stage. On the way back, they must get their original bytes.
func TestStagesThereAndBack(t *testing.T) {
	t.Parallel()
	for _, host := range everyHost {
		t.Run(host.name, func(t *testing.T) {
			t.Parallel() // the test waits for the disk
			want := map[rotation.Stage]string{rotation.Prepare: "true+false old", rotation.Trust: "true+true old", rotation.Switch: "true+true new", rotation.Finish: "false+true new"}
			for turn := range stages {
				f := newFixture(t, host.ca, host.worker)
				there := stages[:turn+1]
				back := slices.Clone(stages[:turn])
				slices.Reverse(back)
				step := func(r rotation.Rotation) {
					t.Helper()
					files := tree(t, f.Dir)
					done := must.Value(f.Apply(t.Context(), r))(t)
					slices.Sort(done.Changed)
					if got := differ(files, tree(t, f.Dir)); !slices.Equal(got, done.Changed) {
						t.Errorf("%s: changed %q, and says %q", r.Stage, got, done.Changed)
					}
					expected := want[r.Stage]
					if host.worker {
						expected = expected[:strings.Index(expected, " ")+1]
					}
					if got := summary(done.Report); got != expected || done.Report.Ended || len(done.Report.Restart) > 0 || !done.Report.Since.Equal(r.Since) || done.Report.ID != r.ID {
						t.Errorf("%s: got %q, %+v, want %q", r.Stage, got, done.Report, expected)
					}
					if problem := f.works(t); problem != "" {
						t.Errorf("%s: %s", r.Stage, problem)
					}
					files = tree(t, f.Dir)
					again := must.Value(f.Apply(t.Context(), r))(t)
					if len(again.Changed)+len(again.Restarted) > 0 || !maps.Equal(files, tree(t, f.Dir)) {
						t.Errorf("%s, the second time: %+v", r.Stage, again)
					}
				}
				for _, stage := range there {
					step(f.at(stage))
				}
				for _, stage := range back {
					step(f.aborted(stage))
				}
				if !maps.Equal(f.before, tree(t, f.Dir)) {
					t.Errorf("after an abort from %s the files are not the original ones", stages[turn])
				}
				ended := f.aborted(rotation.Prepare)
				ended.Ended = time.Now()
				done := must.Value(f.Apply(t.Context(), ended))(t)
				if _, err := os.Stat(f.file(Backups)); !errors.Is(err, fs.ErrNotExist) || !done.Report.Ended || !maps.Equal(f.before, tree(t, f.Dir)) {
					t.Errorf("after the end: %v, want no backup and the original files", err)
				}
			}
		})
	}
}

// differ returns the names of files that two trees do not have in common, sorted.
func differ(a, b map[string]string) []string {
	names := map[string]bool{}
	for name := range maps.All(a) {
		names[name] = a[name] != b[name]
	}
	for name := range maps.All(b) {
		names[name] = a[name] != b[name]
	}
	maps.DeleteFunc(names, func(_ string, differs bool) bool { return !differs })
	return slices.Sorted(maps.Keys(names))
}

// errKilled simulates a kill: it stops an Apply at a write.
var errKilled = errors.New("killed")

// After a crash before any write, the host must work, and the next Apply must complete the stage. Catches a host that was
// off and skips stages, and an Apply that treats its own file as changed by somebody else.
func TestResumesAfterEveryWrite(t *testing.T) {
	t.Parallel()
	there := []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish}
	back := []rotation.Stage{rotation.Switch, rotation.Trust, rotation.Prepare}
	for _, host := range everyHost {
		for _, way := range []struct {
			name     string
			from     []rotation.Stage
			to       rotation.Stage
			aborting bool
		}{
			{"all stages at once", slices.Concat(there, back), rotation.Finish, false},
			{"back at once", there, rotation.Prepare, true},
		} {
			if host.ca != rotation.Cluster || host.worker { // the backup and the signing are the same on all hosts
				way.from = nil
				if way.aborting {
					continue
				}
			}
			t.Run(host.name+" "+way.name, func(t *testing.T) {
				t.Parallel()
				template := newFixture(t, host.ca, host.worker)
				for _, stage := range way.from {
					must.Value(template.Apply(t.Context(), template.at(stage)))(t)
				}
				for n := 0; ; n++ {
					f := template.copied(t)
					r := f.at(way.to)
					r.Aborting, r.Since, r.Ended = way.aborting, time.Now().Add(-rotation.Rereads), time.Now()
					writes := 0
					f.beforeWrite = func(string) error {
						writes++
						if writes > n {
							return errKilled
						}
						return nil
					}
					_, err := f.Apply(t.Context(), r)
					if err != nil && !errors.Is(err, errKilled) {
						t.Fatalf("write %d: %v", n, err)
					}
					if problem := f.works(t); problem != "" {
						t.Fatalf("killed before write %d: %s", n, problem)
					}
					killed := err != nil
					f.beforeWrite = nil
					done, err := f.Apply(t.Context(), r)
					if err != nil {
						t.Fatalf("resume after write %d: %v", n, err)
					}
					want := "false+true new"
					if way.aborting {
						want = "true+false old"
					}
					if host.worker {
						want = want[:strings.Index(want, " ")+1]
					}
					if got := summary(done.Report); got != want || f.works(t) != "" {
						t.Fatalf("resumed after write %d: got %q, want %q; %s", n, got, want, f.works(t))
					}
					if way.aborting && !maps.Equal(f.before, tree(t, f.Dir)) {
						t.Fatalf("resumed after write %d: the files are not the original ones", n)
					}
					if _, err := os.Stat(f.file(Backups)); !errors.Is(err, fs.ErrNotExist) {
						t.Fatalf("resumed after write %d: the backup remains: %v", n, err)
					}
					if !killed {
						if n < 5 {
							t.Fatalf("only %d writes were seen, so the test does not see all", n)
						}
						return
					}
				}
			})
		}
	}
}

// Apply must not overwrite an operator's change. The error must name the file and what to do.
func TestRefusesFilesThatSomebodyChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(f *fixture) error{
		"pki/ca.crt":        func(f *fixture) error { return os.WriteFile(f.file("pki/ca.crt"), newCA(t, "third").cert, 0o600) },
		"pki/ca.key":        func(f *fixture) error { return os.WriteFile(f.file("pki/ca.key"), newCA(t, "third").key, 0o600) },
		"pki/apiserver.crt": func(f *fixture) error { return os.Remove(f.file("pki/apiserver.crt")) },
		"admin.conf":        func(f *fixture) error { return os.WriteFile(f.file("admin.conf"), []byte("mine"), 0o600) },
	} {
		for _, at := range stages {
			f := newFixture(t, rotation.Cluster, false)
			must.Value(f.Apply(t.Context(), f.at(at)))(t)
			must.OK(t, change(f))
			files := tree(t, f.Dir)
			done, err := f.Apply(t.Context(), f.at(rotation.Finish))
			if err == nil || !strings.Contains(err.Error(), f.file(name)+" was ") || !strings.Contains(err.Error(), "cp "+done.Backup) {
				t.Errorf("%s in %s: got %v", name, at, err)
			}
			if !maps.Equal(files, tree(t, f.Dir)) {
				t.Errorf("%s in %s: files changed", name, at)
			}
		}
	}
}

// When the kubelet bootstraps again, for example after a rejoin, it writes kubelet.conf. Apply must accept this file.
func TestTakesKubeletConfOfKubelet(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	f.write(t, kubeletConf, []byte(strings.ReplaceAll(f.before[kubeletConf], "192.0.2.1", "192.0.2.9")))
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	config, err := credentials.ParseKubeconfig([]byte(tree(t, f.Dir)[kubeletConf]))
	must.OK(t, err)
	if c := config.Clusters["kubernetes"]; c.Server != "https://192.0.2.9:6443" || !strings.Contains(string(c.CertificateAuthorityData), string(f.fresh.cert)) {
		t.Errorf("got %+v, want the server of the kubelet and both CAs", c)
	}
}

// Apply cannot tell which CA issued a chain of more than 10 certificates. Catches a host that keeps such a chain in
// stage switch.
func TestRefusesLongChain(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.write(t, "pki/apiserver.crt", bytes.Repeat(must.Value(os.ReadFile(f.file("pki/apiserver.crt")))(t), 11))
	if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), "pki/apiserver.crt: its chain has 11 certificates") {
		t.Errorf("got %v, want a refusal", err)
	}
	f = newFixture(t, rotation.Cluster, true)
	f.Sign = func(context.Context, credentials.SigningRequest) ([]byte, error) { return nil, errors.New("asked") }
	file := must.Value(filepath.EvalSymlinks(filepath.Join(f.KubeletDir, "pki", "kubelet-client-current.pem")))(t)
	must.OK(t, os.WriteFile(file, bytes.Repeat(f.old.kubelet(t, time.Hour), 11), 0o600))
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	if logged := strings.Join(f.logged, "\n"); !strings.Contains(logged, "the kubelet got no new client certificate: its chain has 11 certificates") {
		t.Errorf("got %q, want a warning", logged)
	}
}

// The copy of the state is public, and others may change it. A host must trust only CAs that are proven.
func TestTrustsOnlyWhatIsProven(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	third := newCA(t, "third")
	text := func(r rotation.Rotation, old, fresh []byte, cross rotation.Bundle) rotation.Rotation {
		r.Old, r.New, r.Cross = must.Value(pemfile.Certificates(old))(t), must.Value(pemfile.Certificates(fresh))(t), cross
		return r
	}
	cross := f.rotation.Cross
	r := f.at(rotation.Trust)
	for _, test := range []struct {
		name string
		r    rotation.Rotation
		pins []string
		want string // the CA that the error names
	}{
		{"cross-signed", r, nil, ""},
		{"no cross", text(r, f.old.cert, f.fresh.cert, nil), nil, "new"},
		{"pinned", text(r, f.old.cert, f.fresh.cert, nil), []string{clusterinfo.Pin(f.fresh.Certificate())}, ""},
		{"another pin", text(r, f.old.cert, f.fresh.cert, nil), []string{clusterinfo.Pin(third.Certificate())}, "new"},
		{"cross of another CA", text(r, f.old.cert, third.cert, cross), nil, "third"},
		{"one more new CA", text(r, f.old.cert, slices.Concat(f.fresh.cert, third.cert), cross), nil, "third"},
		{"one more old CA", text(r, slices.Concat(f.old.cert, third.cert), f.fresh.cert, cross), nil, "third"},
		{"one more old CA in stage prepare", text(f.at(rotation.Prepare), third.cert, f.old.cert, nil), nil, "third"},
		{"one more old CA, pinned", text(r, slices.Concat(f.old.cert, third.cert), f.fresh.cert, cross), []string{clusterinfo.Pin(third.Certificate())}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := f.copied(t)
			f.Pins = test.pins
			_, err := f.Apply(t.Context(), test.r)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), `nobody proved CA "CN=`+test.want)):
				t.Errorf("got %v, want a refusal of %s", err, test.want)
			case test.want != "" && !maps.Equal(f.before, tree(t, f.Dir)):
				t.Error("files changed")
			}
		})
	}
}

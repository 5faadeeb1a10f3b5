package ha

import (
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// A rotatingService is a service whose replicas have their own CA files, as on different hosts.
type rotatingService struct {
	*service
	files []string // the folder of each replica
	roots atomic.Pointer[x509.CertPool]
	down  atomic.Int64 // index of a replica that does not run, or -1
	off   []string     // node names of machines that are off
}

func (s *rotatingService) cert(i int) string { return filepath.Join(s.files[i], "ca.crt") }
func (s *rotatingService) key(i int) string  { return filepath.Join(s.files[i], "ca.key") }

// run starts replica i, at the address that it had before.
func (s *rotatingService) run(t *testing.T, c *etcd.Cluster, i int) {
	t.Helper()
	flags := []string{"--cluster-signing-cert-file=" + s.cert(i), "--cluster-signing-key-file=" + s.key(i), "--data-dir=" + filepath.Join(s.files[i], "data")}
	if i < len(s.all) {
		s.all[i] = s.start(t, c.Endpoints(), append(flags, "--listen="+s.all[i].Endpoint)...)
		return
	}
	s.all = append(s.all, s.start(t, c.Endpoints(), flags...))
}

// trust makes clients trust the CAs of replica i.
func (s *rotatingService) trust(t *testing.T, i int) {
	t.Helper()
	content := harness.ReadFile(t, s.cert(i))
	must.OK(t, os.WriteFile(s.dir.Path(datadir.Bundle), content, 0o600))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(content)
	s.roots.Store(roots)
}

// A machine has a certificate, and can request another one with the same key and token.
type machine struct {
	node, csr string
	key       []byte
	token     tokens.Token
	chain     []byte
}

// request requests the certificate of a machine at replica i.
func (s *rotatingService) request(t *testing.T, i int, m *machine) error {
	chain, err := s.at(i, api.Secret(m.token.Reveal())).Certificate(t.Context(), api.SignCertificate{CSR: []byte(m.csr), Signer: certificates.KubeAPIServerClientKubeletSignerName})
	if err == nil {
		m.chain = chain
	}
	return err
}

// renew requests a certificate at replica i with the machine's current certificate.
func (s *rotatingService) renew(t *testing.T, i int, m *machine) error {
	t.Helper()
	_, err := s.showing(t, i, must.Value(tls.X509KeyPair(m.chain, m.key))(t)).Certificate(t.Context(), api.SignCertificate{
		CSR: []byte(m.csr), Signer: certificates.KubeAPIServerClientKubeletSignerName,
	})
	return err
}

// showing returns a client of replica i that presents a certificate, even if the replica does not list its CA in the TLS
// handshake.
func (s *rotatingService) showing(t *testing.T, i int, shown tls.Certificate) *client.Client {
	t.Helper()
	own := &http.Transport{TLSClientConfig: s.http.Transport.(*http.Transport).TLSClientConfig.Clone()}
	t.Cleanup(own.CloseIdleConnections)
	own.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
	return &client.Client{URL: "https://" + s.all[i].Endpoint, HTTP: &http.Client{Transport: own}}
}

// bind binds a key to the node of a machine at replica i, and returns a certificate that only this key has signed.
func (s *rotatingService) bind(t *testing.T, i int, m *machine) tls.Certificate {
	t.Helper()
	key := csrtest.NewKey()
	public := must.Value(x509.MarshalPKIXPublicKey(key.Public()))(t)
	must.Value(s.showing(t, i, must.Value(tls.X509KeyPair(m.chain, m.key))(t)).BindKey(t.Context(), api.BindKey{
		Key: api.Text(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
	}))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: csrtest.Node(m.node), NotAfter: time.Unix(1, 0)}
	return tls.Certificate{Certificate: [][]byte{must.Value(x509.CreateCertificate(crand.Reader, template, template, key.Public(), key))(t)}, PrivateKey: key}
}

func (s *rotatingService) newMachine(t *testing.T, node string) *machine {
	key := csrtest.NewKey()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Error(err)
	}
	return &machine{
		node: node, csr: string(csrtest.PEM(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, key)),
		key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), token: tokens.Generate(),
	}
}

// joinOnce creates a token at one replica, and joins at another one. It retries only if one of them is down.
func (s *rotatingService) joinOnce(t *testing.T, m *machine) error {
	for deadline := time.Now().Add(time.Minute); ; {
		i, j := rand.IntN(len(s.all)), rand.IntN(len(s.all))
		if down := int(s.down.Load()); i == down || j == down {
			continue
		}
		err := s.newToken(t.Context(), i, m.token, time.Now().Add(time.Hour), api.TokenSpec{})
		if err == nil {
			err = s.request(t, j, m)
		}
		var p *api.Problem
		if err == nil || errors.As(err, &p) && p.Status < 500 || time.Now().After(deadline) {
			return err
		}
		if down := int(s.down.Load()); errors.As(err, &p) || down != i && down != j {
			return err
		}
	}
}

// step makes a step at replica i as soon as nothing is behind.
func (s *rotatingService) step(t *testing.T, i int, step string) (r api.CARotation) {
	t.Helper()
	harness.Wait(t, "step "+step, func() (err error) {
		how := api.StepCA{}
		if step == "finish" {
			how = api.StepCA{ExpireTokens: true, LeaveBehind: s.off}
		}
		r, err = s.at(i, s.bearer).StepCA(t.Context(), "cluster", step, how)
		return err
	})
	return r
}

// TestReplicasRotateTheirCA rotates the CA of three replicas, which have their own CA files, while machines join. Each step
// goes to another replica, and after each step the test kills a replica. Catches a join that fails, a replica that does not
// follow, a step that does not wait for a replica, and a replica that accepts the old CA afterwards. A machine that was off
// rejoins at the end.
func TestReplicasRotateTheirCA(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{})
	s := &rotatingService{service: newService(t, c, 0, "--rejoin-window=720h")}
	s.down.Store(-1)
	old := harness.ReadFile(t, s.dir.Path(datadir.CA))
	for i := range 3 {
		s.files = append(s.files, t.TempDir())
		must.OK(t, os.WriteFile(s.cert(i), harness.ReadFile(t, s.dir.Path(datadir.Bundle)), 0o644))
		must.OK(t, os.WriteFile(s.key(i), old[strings.Index(string(old), "-----BEGIN PRIVATE KEY"):], 0o600))
	}
	s.trust(t, 0)
	transport := &http.Transport{MaxIdleConnsPerHost: inFlight, TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection verifies with the current roots instead
		VerifyConnection: func(state tls.ConnectionState) error {
			o := x509.VerifyOptions{Roots: s.roots.Load(), Intermediates: x509.NewCertPool(), DNSName: state.ServerName}
			for _, cert := range state.PeerCertificates[1:] {
				o.Intermediates.AddCert(cert)
			}
			_, err := state.PeerCertificates[0].Verify(o)
			return err
		},
	}}
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for i := range 3 {
		s.run(t, c, i)
	}
	before := must.Value(x509.ParseCertificate(must.Value(firstBlock(harness.ReadFile(t, s.cert(0))))(t)))(t)

	stop, joined := make(chan struct{}), make(chan []*machine, 1)
	var joining sync.WaitGroup
	joining.Go(func() {
		var all []*machine
		for n := 0; ; n++ {
			select {
			case <-stop:
				joined <- all
				return
			case <-time.After(200 * time.Millisecond):
			}
			m := s.newMachine(t, fmt.Sprintf("machine-%d", n))
			if err := s.joinOnce(t, m); err != nil {
				t.Errorf("%s did not join: %v", m.node, err)
			}
			all = append(all, m)
		}
	})

	harness.Wait(t, "prepare", func() error { // replicas report their CAs within seconds
		_, err := s.at(0, s.bearer).PrepareCA(t.Context(), "cluster", api.PrepareCA{})
		return err
	})
	s.step(t, 0, "trust")
	s.down.Store(1)
	s.all[1].Kill(t)
	s.run(t, c, 1)
	s.down.Store(-1)
	r := s.step(t, 1, "switch") // succeeds only when all three replicas trust both CAs
	for i := range 3 {
		harness.Wait(t, "both CAs", func() error {
			if n := strings.Count(string(harness.ReadFile(t, s.cert(i))), "BEGIN CERT"); n != 2 {
				return fmt.Errorf("replica %d has %d CAs", i, n)
			}
			return nil
		})
	}
	s.down.Store(2)
	s.all[2].Kill(t)
	s.run(t, c, 2)
	s.down.Store(-1)
	if signs := string(harness.ReadFile(t, s.key(2))); signs == string(harness.ReadFile(t, s.key(2)+".before-"+r.ID)) {
		t.Error("a replica that was off when the new CA began to sign has the old key after its start")
	}
	harness.Wait(t, "each replica to sign with the new CA", func() error {
		status, err := s.at(0, s.bearer).CARotation(t.Context(), "cluster")
		for _, b := range status.Behind {
			if b.Kind == "kubejoin" || b.Kind == "file" {
				err = errors.Join(err, errors.New(b.Why))
			}
		}
		return err
	})
	close(stop)
	all := <-joined
	joining.Wait()
	oldest := *all[0]
	bound := s.bind(t, 0, &oldest)
	s.off = []string{oldest.node} // this machine is off from here on
	for n, m := range all[1:] {   // renew, as a kubelet does
		must.OK(t, s.request(t, n%3, m))
	}
	s.trust(t, 0)

	s.all[0].Kill(t) // it has followed so far, and kubejoin treats it as off only after 40 s
	s.step(t, 2, "finish")
	newest := must.Value(x509.ParseCertificate(must.Value(firstBlock([]byte(r.New[0].Certificate)))(t)))(t)
	s.roots.Store(x509.NewCertPool())
	s.roots.Load().AddCert(newest)
	_, err := s.at(2, s.bearer).StepCA(t.Context(), "cluster", "finish", api.StepCA{})
	if err == nil || !strings.Contains(err.Error(), "does not follow stage finish yet") && !strings.Contains(err.Error(), " is off: ") {
		t.Errorf("the end without a replica: got %v, want a refusal that names it", err)
	}
	s.run(t, c, 0)
	s.step(t, 1, "finish")

	if leaf := harness.ParseLeaf(t, oldest.chain); leaf.CheckSignatureFrom(before) != nil {
		t.Errorf("the oldest certificate is from %s, want %s", leaf.Issuer, before.Subject)
	}
	for i := range 3 {
		harness.Wait(t, "the files of the end", func() error {
			left := must.Value(filepath.Glob(filepath.Join(s.files[i], "*.before-*")))(t)
			leaf := must.Value(tls.LoadX509KeyPair(s.cert(i), s.key(i)))(t)
			if len(left) > 0 || !leaf.Leaf.Equal(newest) || strings.Count(string(harness.ReadFile(t, s.cert(i))), "BEGIN CERT") != 1 {
				return fmt.Errorf("replica %d: %q remain, and %s signs", i, left, leaf.Leaf.Subject)
			}
			return nil
		})
		m := s.newMachine(t, fmt.Sprintf("last-%d", i))
		must.OK(t, s.newToken(t.Context(), i, m.token, time.Now().Add(time.Hour), api.TokenSpec{}))
		must.OK(t, s.request(t, i, m))
		if leaf := harness.ParseLeaf(t, m.chain); leaf.CheckSignatureFrom(newest) != nil {
			t.Errorf("replica %d signs with %s", i, leaf.Issuer)
		}
		must.OK(t, s.renew(t, i, m))
		if p := (*api.Problem)(nil); !errors.As(s.renew(t, i, &oldest), &p) || p.Status != http.StatusUnauthorized {
			t.Errorf("replica %d: a certificate of the old CA: got %v, want 401", i, p)
		}
	}
	chain := must.Value(s.showing(t, 0, bound).Certificate(t.Context(), api.SignCertificate{CSR: []byte(oldest.csr), Signer: certificates.KubeAPIServerClientKubeletSignerName}))(t)
	if leaf := harness.ParseLeaf(t, chain); leaf.CheckSignatureFrom(newest) != nil {
		t.Errorf("a machine that was off rejoins with a certificate of %s", leaf.Issuer)
	}
	t.Logf("%d machines joined during the rotation", len(all))
}

func firstBlock(content []byte) ([]byte, error) {
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, errors.New("no PEM")
	}
	return block.Bytes, nil
}

package limits

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// returners is how many machines rejoin at once.
const returners = 1000

const rejoinWindow = 720 * time.Hour

// A returner is a node whose certificate has expired, with the request for another one.
type returner struct {
	node    string
	expired tls.Certificate
	csr     []byte // in PEM
	key     string // ID of the key in csr
}

// newReturner stores a Node and its identity, as they are after the machine was off for long.
func newReturner(ctx context.Context, s *harness.Site, ca *tls.Certificate, claims tokens.Claims, node string) (*returner, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	object, err := s.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(-time.Second), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, err
	}
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: tokens.NodeUserPrefix + node, Organization: []string{tokens.NodesGroup}}}, next)
	if err != nil {
		return nil, err
	}
	_, err = claims.Create(ctx, tokens.Claim{Node: node, Identity: tokens.Identity{
		NodeUID: string(object.UID), Keys: []string{pkcs10.IDOfKey(public)}, NotAfter: time.Now().Add(-time.Second).UTC().Truncate(time.Second),
	}})
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	m := &returner{node: node, expired: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
	m.csr = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})
	parsed, err := pkcs10.Parse(m.csr)
	if err != nil {
		return nil, err
	}
	m.key = pkcs10.KeyID(parsed)
	return m, nil
}

// errFinal is wrapped by a refusal that a retry does not change.
var errFinal = errors.New("refused")

// A replica lets a machine rejoin once, and returns its certificate.
type replica func(ctx context.Context, m *returner) (chain []byte, err error)

// inProcess is a replica whose writes to the API server fail nearly a third of the time.
func inProcess(ctx context.Context, t *testing.T, s *harness.Site, transport *faults.Transport) replica {
	t.Helper()
	config, err := s.Config(s.OwnKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(transport.Wrap)
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	store, err := secretstore.Open(ctx, clientset, log)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := secretstore.OpenClaims(ctx, clientset, store, secretstore.ClaimNamespace, log)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := kubefacts.OpenNodes(ctx, clientset)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	authority := &signer.Authority{
		Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), time.Hour))),
		Facts:   signer.Standalone{Claims: claims},
		Nodes:   &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, RejoinWindow: rejoinWindow},
	}
	return func(ctx context.Context, m *returner) ([]byte, error) {
		csr, err := pkcs10.Parse(m.csr)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errFinal, err)
		}
		chain, err := authority.Issue(ctx, approval.Request{
			SignerName: certificates.KubeAPIServerClientKubeletSignerName, Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			User: tokens.NodeUserPrefix + m.node, Groups: []string{tokens.NodesGroup, tokens.AuthenticatedGroup}, CSR: csr,
			Rejoin: &approval.Rejoin{Key: pkcs10.IDOfKey(m.expired.Leaf.RawSubjectPublicKeyInfo), NotAfter: m.expired.Leaf.NotAfter},
		})
		if approval.Refused(err) != nil {
			return nil, fmt.Errorf("%w: %w", errFinal, err)
		}
		return chain, err
	}
}

// overHTTPS is a replica that is a process.
func overHTTPS(p *harness.Program) replica {
	return func(ctx context.Context, m *returner) ([]byte, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.Roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.expired, nil }}}
		defer transport.CloseIdleConnections()
		c := &client.Client{URL: "https://" + p.Endpoint, HTTP: &http.Client{Transport: transport}}
		chain, err := c.Certificate(ctx, api.SignCertificate{CSR: m.csr})
		if p := (*api.Problem)(nil); errors.As(err, &p) && (p.Status == http.StatusUnauthorized || p.Status == http.StatusForbidden) {
			return nil, fmt.Errorf("%w: %w", errFinal, err)
		}
		return chain, err
	}
}

// TestThousandRejoinsCountOnceEach lets 1,000 machines rejoin at once at four replicas: two whose writes fail nearly a
// third of the time, and two processes, of which the leader is killed in the middle. It catches a machine that gets no
// certificate, or one whose key kubejoin does not know, and a rejoin that is counted twice or not at all.
func TestThousandRejoinsCountOnceEach(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--rejoin-window="+rejoinWindow.String(), "--client-qps=0", "--user-qps=0")
	s.Start(t)
	s.WaitLeader(t)
	first := s.Program
	s.Start(t)
	ctx, stop := context.WithTimeout(t.Context(), 8*time.Minute)
	defer stop()
	ca, err := tls.LoadX509KeyPair(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	claims, err := secretstore.OpenClaims(ctx, s.Client(), nil, secretstore.ClaimNamespace, nil)
	if err != nil {
		t.Fatal(err)
	}
	machines := make([]*returner, returners)
	each := func(do func(i int)) {
		next := make(chan int)
		var working sync.WaitGroup
		for range 32 {
			working.Go(func() {
				for i := range next {
					do(i)
				}
			})
		}
		for i := range returners {
			next <- i
		}
		close(next)
		working.Wait()
	}
	each(func(i int) {
		var err error
		if machines[i], err = newReturner(ctx, s, &ca, claims, fmt.Sprint("returner-", i)); err != nil {
			t.Errorf("returner %d: %v", i, err)
		}
	})
	if t.Failed() {
		return
	}
	var failing []*faults.Transport
	replicas := []replica{overHTTPS(first), overHTTPS(s.Program)}
	for i := range 2 {
		transport := &faults.Transport{Seed: harness.Seed(t) + uint64(i), Rate: 0.3}
		failing = append(failing, transport)
		replicas = append(replicas, inProcess(ctx, t, s, transport))
	}

	began := time.Now()
	var done, attempts atomic.Int64
	got := make([][2][]byte, returners)
	each(func(i int) {
		if done.Add(1) == returners/2 {
			first.Kill(t)
		}
		// Two requests of one machine at once, at two replicas. Each goes on to the next replica after a failure.
		var both sync.WaitGroup
		for half := range 2 {
			both.Go(func() {
				for try := 0; ; try++ {
					attempts.Add(1)
					chain, err := replicas[(i+half*2+try)%len(replicas)](ctx, machines[i])
					if err == nil {
						got[i][half] = chain
						return
					}
					if errors.Is(err, errFinal) || ctx.Err() != nil {
						t.Errorf("%s: %v", machines[i].node, err)
						return
					}
				}
			})
		}
		both.Wait()
	})
	t.Logf("%d rejoins, each at two replicas, after %s and %d attempts", returners, time.Since(began).Round(time.Second), attempts.Load())
	for i, m := range machines {
		var fingerprints []string
		for _, chain := range got[i] {
			block, _ := pem.Decode(chain)
			if block == nil {
				t.Errorf("%s: got no certificate", m.node)
				continue
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || cert.Subject.CommonName != tokens.NodeUserPrefix+m.node || pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo) != m.key {
				t.Errorf("%s: got %v, %v, want a certificate of the node for its key", m.node, cert, err)
				continue
			}
			fingerprints = append(fingerprints, string(revocation.FingerprintOf(cert)))
		}
		c, err := claims.Get(ctx, m.node)
		known := pkcs10.IDOfKey(m.expired.Leaf.RawSubjectPublicKeyInfo)
		if err != nil || len(c.Identity.Rejoins) != 1 || !slices.Equal(c.Identity.Keys, []string{known, m.key}) || !slices.Contains(fingerprints, c.Identity.Fingerprint) {
			t.Errorf("%s: got identity %+v, %v, want one rejoin, both keys, and a certificate that the machine got", m.node, c.Identity, err)
		}
	}
	for i, transport := range failing {
		total := 0
		for _, n := range transport.Failed() {
			total += n
		}
		if total == 0 {
			t.Errorf("connection %d: got no failed write, want some", i)
		}
		t.Logf("connection %d: %d writes passed, %d failed", i, transport.Passed(), total)
	}
}

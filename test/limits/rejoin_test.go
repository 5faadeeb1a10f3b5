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
	"math/big"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// returners is how many machines rejoin at once.
const returners = 200

const rejoinWindow = 720 * time.Hour

// A returner is a node whose certificate has expired, with its request for a new certificate.
type returner struct {
	node    string
	expired tls.Certificate
	csr     []byte // PEM
	key     string // ID of the key in csr
}

// newReturner stores a Node and its Identity, as if the machine had been off for a long time.
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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	_, err = storetest.CreateClaim(ctx, claims, tokens.Claim{Node: node, Identity: tokens.Identity{
		NodeUID: string(object.UID), Credentials: []tokens.Credential{{Key: pkcs10.IDOfKey(public), Fingerprint: string(revocation.FingerprintOf(leaf))}}, NotAfter: time.Now().Add(-time.Second).UTC().Truncate(time.Second),
	}})
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

// errFinal is wrapped if a retry cannot change the refusal.
var errFinal = errors.New("refused")

// A replica is a function that lets a machine rejoin once, and returns its certificate.
type replica func(ctx context.Context, m *returner) (chain []byte, err error)

// overHTTPS returns a replica that runs as another process.
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

// TestRejoinsCountOnceEach lets many machines rejoin at once, each at two replicas, and kills the leader meanwhile. It
// catches a machine that gets no certificate, a certificate whose key kubejoin does not know, and a rejoin that is counted
// twice or not at all.
func TestRejoinsCountOnceEach(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--rejoin-window="+rejoinWindow.String(), "--client-qps=0", "--user-qps=0")
	s.Start(t)
	s.WaitLeader(t)
	first := s.Program
	s.Start(t)
	ctx, stop := context.WithTimeout(t.Context(), 8*time.Minute)
	defer stop()
	ca := must.Value(tls.LoadX509KeyPair(s.CAFile(), s.CAKeyFile()))(t)
	store := must.Value(secretstore.Open(ctx, s.Client(), nil))(t)
	claims := must.Value(secretstore.OpenClaims(ctx, s.Client(), store, secretstore.ClaimNamespace, nil))(t)
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
	replicas := []replica{overHTTPS(first), overHTTPS(s.Program)}
	var done atomic.Int64
	got := make([][2][]byte, returners)
	each(func(i int) {
		if done.Add(1) == returners/2 {
			first.Kill(t)
		}
		// A machine sends two requests at once to two replicas. After a failure, each request goes to the next replica.
		var both sync.WaitGroup
		for half := range 2 {
			both.Go(func() {
				for try := 0; ; try++ {
					chain, err := replicas[(i+half+try)%len(replicas)](ctx, machines[i])
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
		c, err := claims.Get(ctx, m.node, tokens.Live)
		known := pkcs10.IDOfKey(m.expired.Leaf.RawSubjectPublicKeyInfo)
		all := c.Identity.Credentials
		ok := err == nil && len(c.Identity.Rejoins) == 1 && len(all) > 1 && all[0].Key == known
		for _, made := range all[min(1, len(all)):] {
			ok = ok && made.Key == m.key
		}
		for _, f := range fingerprints { // the machine may keep any of its new certificates
			_, found := c.Identity.Find("", f)
			ok = ok && (found || len(all) == tokens.MaxCredentials)
		}
		if !ok {
			t.Errorf("%s: got identity %+v, %v, want one rejoin, both keys, and the certificates that the machine got", m.node, c.Identity, err)
		}
	}
}

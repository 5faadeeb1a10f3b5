package limits

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rejoin"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// returners is how many machines rejoin at once.
const returners = 1000

// lastSecret is a Secret that the test creates after all tokens.
const lastSecret = "bootstrap-token-last00"

const rejoinWindow = 720 * time.Hour

// A returner is a node whose certificate has expired.
type returner struct {
	node  string
	key   crypto.Signer
	chain []byte
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
	_, err = claims.Create(ctx, tokens.Claim{Node: node, Identity: tokens.Identity{
		NodeUID: string(object.UID), Keys: []string{pkcs10.IDOfKey(public)}, NotAfter: time.Now().Add(-time.Second).UTC().Truncate(time.Second),
	}})
	return &returner{node, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

func (m *returner) sign(challenge, server string) []byte {
	signature, err := proof.Sign(m.key, proof.Rejoin(challenge, m.node, server))
	if err != nil { // cannot happen: the key is ECDSA
		return nil
	}
	return signature
}

// errFinal is wrapped by a refusal that a retry does not change.
var errFinal = errors.New("refused")

// A replica lets a machine rejoin once, and returns its token.
type replica func(ctx context.Context, m *returner) (token string, err error)

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
	claims, err := secretstore.OpenClaims(ctx, clientset, secretstore.ClaimNamespace, log)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := csr.OpenNodes(ctx, clientset)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := signer.LoadCA(s.CAFile(), s.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	const server = "join.example.com"
	desk := &rejoin.Desk{
		Authority: &signer.Authority{
			Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(ca), time.Hour)),
			Nodes:   &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, RejoinWindow: rejoinWindow},
		},
		IsServer: func(host string) bool { return host == server },
	}
	return func(ctx context.Context, m *returner) (string, error) {
		challenge, _, err := desk.Challenge()
		if err != nil {
			return "", err
		}
		record, err := desk.Rejoin(ctx, rejoin.Request{Certificate: m.chain, Challenge: challenge, Server: server, Signature: m.sign(challenge, server)}, netip.Addr{})
		if refused := (*approval.Refused)(nil); errors.As(err, &refused) && refused.Reason != rejoin.ReasonChallengeUsed {
			return "", fmt.Errorf("%w: %w", errFinal, err)
		}
		if err != nil {
			return "", err
		}
		return record.Token.Reveal(), nil
	}
}

var tokenInKubeconfig = regexp.MustCompile(`token: ([a-z0-9]{6}\.[a-z0-9]{16})`)

// overHTTPS is a replica that is a process.
func overHTTPS(p *harness.Program) replica {
	host, _, _ := net.SplitHostPort(p.Endpoint) // it is an address
	c := &client.Client{URL: "https://" + p.Endpoint, HTTP: p.HTTP}
	return func(ctx context.Context, m *returner) (string, error) {
		challenge, err := c.RejoinChallenge(ctx)
		if err != nil {
			return "", err
		}
		kubeconfig, err := c.Rejoin(ctx, api.Rejoin{
			Certificate: api.Text(m.chain), Challenge: api.Text(challenge.Challenge), Server: api.Text(host),
			Signature: api.Text(base64.StdEncoding.EncodeToString(m.sign(challenge.Challenge, host))),
		})
		if p := (*api.Problem)(nil); errors.As(err, &p) && p.Named(api.ProblemRejoinRefused) && p.Reason != rejoin.ReasonChallengeUsed {
			return "", fmt.Errorf("%w: %w", errFinal, err)
		}
		if err != nil {
			return "", err
		}
		return tokenInKubeconfig.FindStringSubmatch(string(kubeconfig))[1], nil
	}
}

// TestThousandRejoinsGetOneTokenEach lets 1,000 machines rejoin at once at four replicas: two whose writes fail nearly a
// third of the time, and two processes, of which the leader is killed in the middle. It catches a machine that gets no
// token or two, and a rejoin that is counted twice or not at all.
func TestThousandRejoinsGetOneTokenEach(t *testing.T) {
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
	claims, err := secretstore.OpenClaims(ctx, s.Client(), secretstore.ClaimNamespace, nil)
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

	every, err := s.Client().CoreV1().Secrets("kube-system").Watch(ctx, metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"})
	if err != nil {
		t.Fatal(err)
	}
	created := map[string]int{} // tokens for each node, after each write
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range every.ResultChan() {
			if secret, ok := event.Object.(*corev1.Secret); ok && event.Type == watch.Added {
				if secret.Name == lastSecret {
					every.Stop()
					return
				}
				node, _, _ := strings.Cut(secret.Annotations["kubejoin.io/replaces-node"], "/")
				if created[node]++; created[node] > 1 {
					t.Errorf("%s: another token was created", node)
				}
			}
		}
	})
	began := time.Now()
	var done, attempts atomic.Int64
	got := make([][2]string, returners)
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
					token, err := replicas[(i+half*2+try)%len(replicas)](ctx, machines[i])
					if err == nil {
						got[i][half] = token
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
	last := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: lastSecret}, Type: corev1.SecretTypeBootstrapToken}
	if _, err := s.Client().CoreV1().Secrets("kube-system").Create(ctx, last, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	watching.Wait()
	if len(created) != returners {
		t.Errorf("saw tokens for %d nodes created, want %d", len(created), returners)
	}
	for i, pair := range got {
		if pair[0] == "" || pair[0] != pair[1] {
			t.Errorf("%s: got tokens %s and %s, want one", machines[i].node, tokens.Redact(pair[0]), tokens.Redact(pair[1]))
		}
		if pair[0] != "" {
			s.ParseToken(t, pair[0])
		}
	}
	secrets, err := s.Client().CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]int{}
	for _, secret := range secrets.Items {
		node, _, _ := strings.Cut(secret.Annotations["kubejoin.io/replaces-node"], "/")
		of[node]++
	}
	for _, m := range machines {
		c, err := claims.Get(ctx, m.node)
		if err != nil || len(c.Identity.Rejoins) != 1 || of[m.node] != 1 {
			t.Errorf("%s: got rejoins %v, %v and %d tokens, want one of each", m.node, c.Identity.Rejoins, err, of[m.node])
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

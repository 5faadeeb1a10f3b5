package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	cfssllog "github.com/cloudflare/cfssl/log"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// seed is what KUBEJOIN_TEST_SEED says, or another one each time.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("KUBEJOIN_TEST_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to have the same faults again: KUBEJOIN_TEST_SEED=%d", s)
		}
	})
	return s
}

// A workshop is all of kubejoin's parts in this process, on a real cluster, under the rights of
// deploy/manifests, over a connection that fails nearly a third of all writes.
type workshop struct {
	*site
	*ledger
	faults  *faults.Transport
	api     http.Handler
	info    *configmap.ConfigMap
	log     *lockedBuffer
	machine kubernetes.Interface

	minted minted
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorkshop(t *testing.T) *workshop {
	t.Helper()
	cfssllog.Level = cfssllog.LevelWarning
	w := &workshop{
		site: prepare(t, cluster.Options{}), faults: &faults.Transport{Seed: seed(t), Rate: 0.3}, log: &lockedBuffer{},
	}
	w.ledger, w.machine = keepLedger(t, w.Cluster), machine(t, w.Cluster)
	config, err := w.Config(w.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(w.faults.Wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(w.log, nil))
	store, err := secretstore.Open(t.Context(), client, log)
	if err != nil {
		t.Fatal(err)
	}
	w.info = configmap.Open(t.Context(), client)
	ca, err := signer.LoadCA(w.CAFile(), w.CAKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	claims, err := secretstore.OpenClaims(t.Context(), client, "kubejoin-system", log)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := csr.OpenNodes(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	authority := &signer.Authority{
		Facts: &csr.Facts{Client: client}, Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour)),
		Nodes: &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready, Logger: log}, Record: &inProcess,
	}
	requests := csr.NewInformer(client)

	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { requests.RunWithContext(ctx); return nil },
		configmap.Signer{ConfigMap: w.info, Tokens: store, Logger: log}.Run,
		// An injected Conflict is one that nothing follows: the next look is at the sweep.
		cleaner.Tokens{Store: store, Sweep: 2 * time.Second, Logger: log}.Run,
		csr.Controller{Client: client, Informer: requests, Authority: authority, Approve: true, Sign: true, Logger: log}.Run,
		csr.Cleaner{Client: client, Informer: requests, Retention: csr.Retention{Denied: 2 * time.Second}, Logger: log}.Run,
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
		w.site.known.absent(t, "the log", w.log.String())
		if t.Failed() {
			said := w.log.String()
			t.Logf("the end of the log:\n%s", said[max(0, len(said)-20_000):])
		}
	})
	w.api = server.Server{
		Tokens: store, ClusterInfo: w.info, Logger: log,
		Authenticate: func(*http.Request) (auth.User, error) {
			return auth.User{Name: "ada", Groups: []string{"admins"}}, nil
		},
		Authorize: auth.AllowGroup("admins"),
	}.Handler()
	return w
}

// mint asks for a join command until there is one.
func (w *workshop) mint(ctx context.Context, query string) (tokens.Token, error) {
	for {
		answer := httptest.NewRecorder()
		w.api.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, "POST", "/v1/token/print-join-command"+query, nil))
		if token, err := w.minted.answer(answer.Code, answer.Body.String()); err == nil || !errors.Is(err, errTryAgain) || ctx.Err() != nil {
			return token, err
		}
	}
}

// round is so many tokens and requests, of which each ends in a way of its own.
func (w *workshop) round(t *testing.T, number, tokenCount, requestCount int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	each := func(n int, do func(i int) error) {
		next := make(chan int)
		for range 10 {
			asking.Go(func() {
				for i := range next {
					if err := do(i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		asking.Go(func() {
			defer close(next)
			for i := range n {
				next <- i
			}
		})
	}
	each(tokenCount, func(i int) error {
		query := ""
		if i%5 == 0 {
			query = "?ttl=3s"
		}
		token, err := w.mint(ctx, query)
		if err != nil {
			return fmt.Errorf("token %d: %w", i, err)
		}
		switch i % 5 {
		case 0: // the cleaner's
		case 1: // a person's
			if err := w.Client().CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, "bootstrap-token-"+token.ID(), metav1.DeleteOptions{}); err != nil {
				return err
			}
		default:
			return nil
		}
		w.minted.gone(token)
		return nil
	})
	var mu sync.Mutex
	names := map[int][]string{} // by the kind of end
	const issued, denied, failed, pending = 0, 1, 2, 3
	each(requestCount, func(i int) error {
		end := issued
		if i%20 < 3 {
			end = denied + i%20
		}
		name, signerName, node := fmt.Sprintf("csr-%d-%d", number, i), certificates.KubeletServingSignerName, fmt.Sprintf("worker-%d", i)
		switch end {
		case issued:
			signerName = certificates.KubeAPIServerClientKubeletSignerName
		case failed:
			signerName, node = certificates.KubeAPIServerClientKubeletSignerName, "" // whose name is nobody's
		}
		if err := request(ctx, w.machine, name, signerName, node); err != nil {
			return fmt.Errorf("request %s: %w", name, err)
		}
		mu.Lock()
		names[end] = append(names[end], name)
		mu.Unlock()
		switch end {
		case denied:
			return decide(ctx, w.Client(), name, certificates.CertificateDenied)
		case failed:
			return decide(ctx, w.Client(), name, certificates.CertificateApproved)
		}
		return nil
	})
	asking.Wait()

	w.ledger.issued(t, names[issued])
	wait(t, "the end of hostile and denied requests", func() error {
		for _, name := range names[failed] {
			if e := w.entry(name); e.conditions[certificates.CertificateFailed] != 1 {
				return fmt.Errorf("%s has conditions %v", name, e.conditions)
			}
		}
		for _, name := range names[denied] {
			if e := w.entry(name); !e.gone || e.conditions[certificates.CertificateDenied] != 1 {
				return fmt.Errorf("%s has conditions %v; gone: %t", name, e.conditions, e.gone)
			}
		}
		return nil
	})
	for _, end := range []int{denied, failed, pending} {
		for _, name := range names[end] {
			if w.entry(name).certificate != nil {
				t.Errorf("%s has a certificate", name)
			}
		}
	}
	for _, name := range names[pending] {
		if e := w.entry(name); len(e.conditions) > 0 {
			t.Errorf("%s has conditions %v, and nobody decided", name, e.conditions)
		}
	}
	w.ledger.check(t)
	w.minted.check(t, w.Client())
}

// Nearly a third of all writes fail, in every way that a write can, and all ends well.
func TestFaultyWrites(t *testing.T) {
	t.Parallel()
	w := newWorkshop(t)
	const rounds, tokenCount, requestCount = 5, 200, 200
	for i := range rounds {
		began := time.Now()
		w.round(t, i, tokenCount, requestCount)
		if t.Failed() {
			t.FailNow()
		}
		t.Logf("round %d: %s", i, time.Since(began).Round(time.Millisecond))
	}
	total := 0
	failed := w.faults.Failed()
	for kind := range faults.Kinds() {
		if failed[kind] == 0 {
			t.Errorf("no %s was injected", kind)
		}
		total += failed[kind]
	}
	passed := w.faults.Passed()
	t.Logf("%d tokens and %d requests; %d writes passed, %d failed: %v; %d tokens named as perhaps left", rounds*tokenCount, rounds*requestCount, passed, total, failed, len(w.minted.named))
	if rate := float64(total) / float64(passed+total); rate < 0.27 || rate > 0.33 {
		t.Errorf("%.0f %% of writes failed, want 30 %%", 100*rate)
	}
}

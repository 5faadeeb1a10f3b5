package outage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	cfssllog "github.com/cloudflare/cfssl/log"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/testing/faults"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// faultyKubejoin runs all parts of kubejoin in this process on a real cluster with the rights of deploy/manifests. Its
// connection to the API server fails nearly a third of all writes.
type faultyKubejoin struct {
	*harness.Site
	*harness.Ledger
	faults  *faults.Transport
	api     http.Handler
	info    *configmap.ConfigMap
	log     *logs.Buffer
	machine kubernetes.Interface

	minted minted
}

func newFaultyKubejoin(t *testing.T) *faultyKubejoin {
	t.Helper()
	cfssllog.Level = cfssllog.LevelWarning
	w := &faultyKubejoin{
		Site: harness.PrepareSite(t, cluster.Options{}), faults: &faults.Transport{Seed: harness.Seed(t), Rate: 0.3}, log: &logs.Buffer{},
	}
	w.Ledger, w.machine = harness.NewLedger(t, w.Cluster), harness.AsMachine(t, w.Cluster)
	config := must.Value(w.Config(w.OwnKubeconfig))(t)
	config.Wrap(w.faults.Wrap)
	client := must.Value(kubernetes.NewForConfig(config))(t)
	log := slog.New(slog.NewTextHandler(w.log, nil))
	store := must.Value(secretstore.Open(t.Context(), client, log))(t)
	w.info = configmap.Open(t.Context(), client)
	ca := must.Value(signer.LoadCA(w.CAFile(), w.CAKeyFile()))(t)
	claims := must.Value(secretstore.OpenClaims(t.Context(), client, store, "kubejoin-system", log))(t)
	nodes := kubefacts.OpenNodes(t.Context(), client)
	authority := &signer.Authority{
		Facts: &kubefacts.Facts{Client: client}, Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour))),
		Nodes: &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready, Logger: log}, Record: &harness.InProcess,
	}
	requests := csr.NewInformer(client)

	var running sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { requests.RunWithContext(ctx); return nil },
		configmap.Signer{ConfigMap: w.info, Tokens: store, Logger: log}.Run,
		// After an injected conflict there is no change that sends a hint, so the cleaner retries only at the next sweep.
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
		w.Site.Secrets.CheckAbsent(t, "the log", w.log.String())
		if t.Failed() {
			text := w.log.String()
			t.Logf("the end of the log:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	w.api = must.Value(server.Server{
		Tokens: store, ClusterInfo: w.info, Logger: log,
		Callers: server.Callers{
			Authenticate: func(*http.Request) (auth.User, error) { return auth.User{Name: "ada", Groups: []string{"admins"}}, nil },
			Authorize:    auth.AllowGroup("admins"),
		},
	}.Handler())(t)
	return w
}

// mint requests a join command until it gets one.
func (w *faultyKubejoin) mint(ctx context.Context, query string) (tokens.Token, error) {
	for {
		answer := httptest.NewRecorder()
		w.api.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, "POST", "/v1/token/print-join-command"+query, nil))
		if token, err := w.minted.answer(answer.Code, answer.Body.String()); err == nil || !errors.Is(err, errTryAgain) || ctx.Err() != nil {
			return token, err
		}
	}
}

// round creates tokens and requests. They end in different ways: expired, deleted, issued, denied, failed, or pending.
func (w *faultyKubejoin) round(t *testing.T, number, tokenCount, requestCount int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // usually 10 s
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
		case 0: // the cleaner deletes it
		case 1: // a person deletes it
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
	names := map[int][]string{} // by outcome
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
			signerName, node = certificates.KubeAPIServerClientKubeletSignerName, "" // an empty node name is invalid
		}
		if err := harness.CreateRequest(ctx, w.machine, name, signerName, node); err != nil {
			return fmt.Errorf("request %s: %w", name, err)
		}
		mu.Lock()
		names[end] = append(names[end], name)
		mu.Unlock()
		switch end {
		case denied:
			return harness.Decide(ctx, w.Client(), name, certificates.CertificateDenied)
		case failed:
			return harness.Decide(ctx, w.Client(), name, certificates.CertificateApproved)
		}
		return nil
	})
	asking.Wait()

	w.Ledger.WaitIssued(t, names[issued])
	harness.Wait(t, "failure of invalid requests and deletion of denied ones", func() error {
		for _, name := range names[failed] {
			if e := w.Entry(name); e.Conditions[certificates.CertificateFailed] != 1 {
				return fmt.Errorf("%s: got conditions %v, want one Failed", name, e.Conditions)
			}
		}
		for _, name := range names[denied] {
			if e := w.Entry(name); !e.Gone || e.Conditions[certificates.CertificateDenied] != 1 {
				return fmt.Errorf("%s: got conditions %v, deleted: %t, want one Denied and deletion", name, e.Conditions, e.Gone)
			}
		}
		return nil
	})
	for _, end := range []int{denied, failed, pending} {
		for _, name := range names[end] {
			if w.Entry(name).Certificate != nil {
				t.Errorf("%s has a certificate, want none", name)
			}
		}
	}
	for _, name := range names[pending] {
		if e := w.Entry(name); len(e.Conditions) > 0 {
			t.Errorf("%s: got conditions %v, want none", name, e.Conditions)
		}
	}
	w.Ledger.Check(t)
	w.minted.check(t, w.Client())
}

// TestRecoversFromFailedWrites fails nearly a third of all writes in every way that a write can fail. It catches lost or
// repeated decisions, lost tokens, and tokens that are not deleted.
func TestRecoversFromFailedWrites(t *testing.T) {
	harness.Parallel(t)
	w := newFaultyKubejoin(t)
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
			t.Errorf("got no injected %s, want some", kind)
		}
		total += failed[kind]
	}
	passed := w.faults.Passed()
	t.Logf("%d tokens and %d requests; %d writes passed, %d failed: %v; %d tokens that problems named as possibly left", rounds*tokenCount, rounds*requestCount, passed, total, failed, len(w.minted.named))
	if rate := float64(total) / float64(passed+total); rate < 0.27 || rate > 0.33 {
		t.Errorf("got %.0f %% failed writes, want 27 to 33 %%", 100*rate)
	}
}

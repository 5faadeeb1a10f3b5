package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// A csrLoad is a burst of kubelets that request their first certificate.
type csrLoad struct {
	name     string
	requests int
	tokens   int           // number of the requesters' tokens
	limit    int           // node limit of each token; zero means unlimited
	delay    time.Duration // delay of all data that the API server sends to the contender
}

func csrLoads(n int) []csrLoad {
	most := min(n, tokens.MaxNodes)
	return []csrLoad{
		{name: "a token each", requests: n, tokens: n},
		{name: "one token", requests: n, tokens: 1},
		{name: "a token for one node each", requests: n, tokens: n, limit: 1},
		{name: fmt.Sprintf("one token for %s nodes", thousands(most)), requests: most, tokens: 1, limit: most},
	}
}

// csrBurst creates the CSRs of a load as fast as the API server accepts them.
func (b *bench) csrBurst(ctx context.Context, who contender, p running, load csrLoad) error {
	row := csrRows(load)
	if who == stock {
		load.requests = min(b.stock, load.requests)
		load.tokens = min(load.tokens, load.requests)
	}
	n, identities := load.requests, load.tokens
	requests := make([]*certificates.CertificateSigningRequest, n)
	for i := range requests {
		var err error
		if requests[i], err = kubeletRequest(i); err != nil {
			return err
		}
	}
	issued, stop, err := watchIssued(ctx, b.load[1])
	if err != nil {
		return err
	}
	defer stop()
	secrets, users := generate(identities)
	// The tokens do not sign cluster-info, because tokenBurst measures that. Create them before the CSRs.
	err = b.each(ctx, identities, func(ctx context.Context, c client, i int) error {
		return c.createLimited(ctx, secrets[i], load.limit)
	})
	if err != nil {
		return err
	}
	time.Sleep(4 * load.delay) // wait until the contender has seen the tokens
	before, err := b.apiCalls(ctx)
	if err != nil {
		return err
	}
	used, err := p.used()
	if err != nil {
		return err
	}
	start := time.Now()
	asked, names := make([]time.Time, n), make([]string, n)
	err = b.each(ctx, n, func(ctx context.Context, c client, i int) error {
		asked[i] = time.Now()
		created, err := c.CertificatesV1().CertificateSigningRequests().Create(asToken(ctx, users[i%identities]), requests[i], metav1.CreateOptions{})
		if err == nil {
			names[i] = created.Name
		}
		return err
	})
	if err != nil {
		return err
	}
	created := time.Since(start)
	at, err := issued.wait(ctx, names)
	if err != nil {
		return err
	}
	last := start
	took := make([]float64, n)
	for i := range took {
		took[i] = at[i].Sub(asked[i]).Seconds() * 1000
		if at[i].After(last) {
			last = at[i]
		}
	}
	time.Sleep(300*time.Millisecond + 2*load.delay) // include work after the last certificate
	own, plane, err := used()
	if err != nil {
		return err
	}
	after, err := b.apiCalls(ctx)
	if err != nil {
		return err
	}
	asks := after.since(before)
	each := float64(n)
	rate := each / last.Sub(start).Seconds()
	count := asks.about([]string{"certificatesigningrequests", "subjectaccessreviews", "events", "secrets", "leases", "nodes"}, "POST certificatesigningrequests")
	b.say("%d CSRs, %s: created in %.2f s, issued %.0f/s, p99 %.0f ms, %.2f ms CPU, %.2f calls each %v",
		n, load.name, created.Seconds(), rate, percentile(took, 99), own.Seconds()*1000/each, count/each, asks)
	b.report.add(row.rate, who, rate)
	b.report.add(row.p50, who, percentile(took, 50))
	b.report.add(row.p99, who, percentile(took, 99))
	b.report.add(row.cpu, who, own.Seconds()*1000/each)
	b.report.add(row.plane, who, plane.Seconds()*1000/each)
	b.report.add(row.calls, who, count/each)
	if err := b.memory(row.rss, who, p); err != nil {
		return err
	}
	err = b.clear(ctx)
	time.Sleep(500 * time.Millisecond)
	return err
}

// kubeletRequest returns the CSR object that a kubelet creates for its first certificate.
func kubeletRequest(i int) (*certificates.CertificateSigningRequest, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	request, err := nodeRequest(fmt.Sprintf("worker-%d", i), key)
	if err != nil {
		return nil, err
	}
	return &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    request,
			SignerName: certificates.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		},
	}, nil
}

// issuedTimes records when each CSR was first seen with its certificate.
type issuedTimes struct {
	mu sync.Mutex
	at map[string]time.Time
}

func watchIssued(ctx context.Context, c client) (*issuedTimes, func(), error) {
	times := &issuedTimes{at: map[string]time.Time{}}
	ctx, cancel := context.WithCancel(ctx)
	informer := informers.NewSharedInformerFactory(c, 0).Certificates().V1().CertificateSigningRequests().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if csr, ok := o.(*certificates.CertificateSigningRequest); ok && len(csr.Status.Certificate) > 0 {
			times.mu.Lock()
			defer times.mu.Unlock()
			if times.at[csr.Name].IsZero() {
				times.at[csr.Name] = time.Now()
			}
		}
	}}); err != nil {
		cancel()
		return nil, nil, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); informer.RunWithContext(ctx) }()
	stop := func() { cancel(); <-ended }
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		stop()
		return nil, nil, context.Cause(ctx)
	}
	return times, stop, nil
}

// wait waits until each CSR has its certificate. If a contender loses a CSR, the run fails.
func (t *issuedTimes) wait(ctx context.Context, names []string) ([]time.Time, error) {
	deadline := time.Now().Add(patience)
	for {
		all, got := t.of(names)
		if got == len(names) {
			return all, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%d of %d certificates within %s", got, len(names), patience)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// of returns when each CSR got its certificate, and how many CSRs got one.
func (t *issuedTimes) of(names []string) (all []time.Time, got int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all = make([]time.Time, len(names))
	for i, name := range names {
		if all[i] = t.at[name]; !all[i].IsZero() {
			got++
		}
	}
	return all, got
}

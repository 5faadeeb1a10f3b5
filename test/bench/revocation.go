package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
)

const (
	revokedNodes = 10_000 // besides those that the benchmark revokes
	locked       = 50     // nodes of which the time until the first 403 is measured
	reviewRate   = 2_000  // reviews a second
	readRate     = 500    // requests of nodes to an API server a second: the load and the API server share the processors
	reviewers    = 16     // connections that send them
	nodeWrites   = 500    // for each cost of the policy
)

// revocations measures what it takes to refuse revoked certificates with 10,000 revoked nodes, by webhook and by policy.
func (b *bench) revocations(ctx context.Context) error {
	c, err := cluster.Start(ctx, cluster.Options{Progress: b.progress})
	if err != nil {
		return err
	}
	b.cluster = c
	defer func() {
		if err := c.Close(); err != nil {
			b.say("closing the control plane: %v", err)
		}
	}()
	if err := b.deploy(ctx); err != nil {
		return err
	}
	ca, err := tls.LoadX509KeyPair(c.CAFile(), c.CAKeyFile())
	if err != nil {
		return err
	}
	r := &revoking{bench: b, ca: ca}
	var table bytes.Buffer
	fmt.Fprintf(&table, "Revocation, with %s revoked nodes besides those measured:\n\n| | median | p99 |\n|---|---:|---:|\n", thousands(revokedNodes))
	r.line = func(what string, ms []float64) {
		b.say("%s: median %.2f ms, p99 %.2f ms", what, percentile(ms, 50), percentile(ms, 99))
		fmt.Fprintf(&table, "| %s | %.2f ms | %.2f ms |\n", what, percentile(ms, 50), percentile(ms, 99))
	}
	for _, step := range []func(context.Context) error{r.policy, r.reviews, r.lockOut} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for _, cost := range r.costs {
		fmt.Fprintf(&table, "| %s | %.3f ms | |\n", cost.what, cost.ms)
	}
	b.report.notes = append(b.report.notes, table.String())
	return nil
}

type revoking struct {
	*bench
	ca       tls.Certificate
	line     func(what string, ms []float64)
	costs    []cost
	kubejoin running
}

// A cost is processor time for one request.
type cost struct {
	what string
	ms   float64
}

// asNode returns a client with a new certificate of a node, and the fingerprint of the certificate.
func (r *revoking) asNode(node string) (*http.Client, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(mathrand.Int64()), Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, r.ca.Leaf, key.Public(), r.ca.PrivateKey)
	if err != nil {
		return nil, err
	}
	return r.client(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}), nil
}

func (r *revoking) client(certificate tls.Certificate) *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: r.cluster.CAPool(), Certificates: []tls.Certificate{certificate}},
		MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1,
	}}
}

// ask sends a request, and returns the status and the start of the body.
func ask(ctx context.Context, client *http.Client, method, url, contentType, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), errors.Join(err, response.Body.Close())
}

// policy measures a write of a node without the policy, with it, and with it and many revoked nodes.
func (r *revoking) policy(ctx context.Context) error {
	const node = "writer"
	client, err := r.asNode(node)
	if err != nil {
		return err
	}
	url := r.cluster.Server() + "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	if status, body, err := ask(ctx, client, http.MethodPost, url, "application/json", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"`+node+`"}}`); err != nil || status != http.StatusCreated {
		return fmt.Errorf("create Lease: %d %.300s %w", status, body, err)
	}
	measure := func(what string) error {
		for warm := range 2 {
			ms := make([]float64, nodeWrites)
			before, err := controlPlaneCPU()
			if err != nil {
				return err
			}
			for i := range ms {
				start := time.Now()
				status, body, err := ask(ctx, client, http.MethodPatch, url+"/"+node, "application/merge-patch+json", fmt.Sprintf(`{"spec":{"leaseDurationSeconds":%d}}`, 40+i%2))
				if err != nil || status != http.StatusOK {
					return fmt.Errorf("patch Lease: %d %.300s %w", status, body, err)
				}
				ms[i] = time.Since(start).Seconds() * 1000
			}
			after, err := controlPlaneCPU()
			if err != nil {
				return err
			}
			if warm == 1 {
				r.line("write of a Lease, "+what, ms)
				r.costs = append(r.costs, cost{"CPU of API server and etcd for a write, " + what, (after - before).Seconds() * 1000 / nodeWrites})
			}
		}
		return nil
	}
	if err := measure("no policy"); err != nil {
		return err
	}
	revoked, err := r.asNode("gone-1")
	if err != nil {
		return err
	}
	denied := func(want bool) error {
		end := time.Now().Add(patience)
		for {
			status, body, err := ask(ctx, revoked, http.MethodPost, url+"?dryRun=All", "application/json", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"gone-1"}}`)
			if err == nil && want == (status == http.StatusForbidden && strings.Contains(body, "kubejoin has revoked")) {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("the policy does not act: %d %.300s %w", status, body, err)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	if _, err := r.cluster.Kubectl(ctx, "apply", "-f", "deploy/revocation.yaml"); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // until the API server has compiled it
	if err := measure("policy, nothing revoked"); err != nil {
		return err
	}
	if err := cluster.FillRevocations(ctx, r.cluster.Client(), "kubejoin-system", revokedNodes); err != nil {
		return err
	}
	if err := denied(true); err != nil {
		return err
	}
	if err := measure("policy, " + thousands(revokedNodes) + " revoked"); err != nil {
		return err
	}
	_, err = r.cluster.Kubectl(ctx, "delete", "-f", "deploy/revocation.yaml")
	return errors.Join(err, denied(false))
}

// steady calls do at a constant rate on all connections. It returns the milliseconds of each call. A call that could not
// begin in time, because the one before on its connection had not ended, counts from when it should have begun.
func steady(ctx context.Context, rate, connections int, duration time.Duration, do func(ctx context.Context, connection, n int) error) ([]float64, error) {
	took, errs := make([][]float64, connections), make([]error, connections)
	begin := time.Now().Add(100 * time.Millisecond)
	gap := time.Second * time.Duration(connections) / time.Duration(rate)
	var running sync.WaitGroup
	for i := range connections {
		running.Go(func() {
			for n := 0; errs[i] == nil && ctx.Err() == nil; n++ {
				at := begin.Add(gap*time.Duration(i)/time.Duration(connections) + gap*time.Duration(n))
				if at.Sub(begin) > duration {
					return
				}
				if wait := time.Until(at); wait > 0 {
					time.Sleep(wait)
					at = time.Now()
				}
				errs[i] = do(ctx, i, n)
				took[i] = append(took[i], time.Since(at).Seconds()*1000)
			}
		})
	}
	running.Wait()
	var all []float64
	for _, t := range took {
		all = append(all, t...)
	}
	return all, errors.Join(append(errs, ctx.Err())...)
}

// reviews sends reviews to the webhook at a constant rate, and then requests of nodes to an API server without webhook.
func (r *revoking) reviews(ctx context.Context) (err error) {
	r.kubejoin, err = r.launch(ctx, ours, false, "--webhook-client-ca-file="+r.cluster.CAFile(), "--webhook-client-name=kube-apiserver-kubelet-client")
	if err != nil {
		return err
	}
	anybody := r.client(tls.Certificate{})
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		status, text, err := ask(ctx, anybody, http.MethodGet, "https://"+r.kubejoin.address+"/readyz", "", "")
		if status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("kubejoin is not ready: %s %w", text, err)
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(r.cluster.Dir, "pki/apiserver-kubelet-client.crt"), filepath.Join(r.cluster.Dir, "pki/apiserver-kubelet-client.key"))
	if err != nil {
		return err
	}
	var clients, nodes []*http.Client
	for i := range reviewers {
		clients = append(clients, r.client(pair))
		node, err := r.asNode(fmt.Sprintf("reader-%d", i))
		if err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	review := func(ctx context.Context, i, n int) error {
		node, want := fmt.Sprintf("reader-%d", n), `"allowed":false}`
		if n%10 == 0 {
			node, want = fmt.Sprintf("gone-%d", n%revokedNodes), `"denied":true`
		}
		body := `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"system:node:` + node + `","groups":["system:nodes","system:authenticated"],` +
			`"extra":{"` + revocation.CredentialIDKey + `":["X509SHA256=83d205359b238bd47a71b1508a8f4bb80e05b96f0be039f749f4aed49f72515a"]},"resourceAttributes":{"verb":"get","resource":"nodes","name":"` + node + `"}}}`
		status, text, err := ask(ctx, clients[i], http.MethodPost, "https://"+r.kubejoin.address+"/apis/authorization.k8s.io/v1/subjectaccessreviews", "application/json", body)
		if err == nil && (status != http.StatusOK || !strings.Contains(text, want)) {
			err = fmt.Errorf("review: %d %.300s, want %s", status, text, want)
		}
		return err
	}
	read := func(ctx context.Context, i, _ int) error {
		status, text, err := ask(ctx, nodes[i], http.MethodGet, fmt.Sprintf("%s/api/v1/nodes/reader-%d", r.cluster.Server(), i), "", "")
		if err == nil && status != http.StatusNotFound { // authorized, and there is none
			err = fmt.Errorf("read: %d %.300s", status, text)
		}
		return err
	}
	for _, load := range []struct {
		what, cpu string
		rate      int
		do        func(context.Context, int, int) error
		used      func() (time.Duration, error)
	}{
		{"review by the webhook", "CPU of kubejoin for a review", reviewRate, review, func() (time.Duration, error) { return cpu(r.kubejoin.PID()) }},
		{"GET of a Node by a node at an API server", "CPU of API server and etcd for a GET", readRate, read, controlPlaneCPU},
	} {
		if _, err := steady(ctx, load.rate, reviewers, 2*time.Second, load.do); err != nil { // warm up
			return err
		}
		before, err := load.used()
		if err != nil {
			return err
		}
		ms, err := steady(ctx, load.rate, reviewers, r.askFor, load.do)
		if err != nil {
			return err
		}
		after, err := load.used()
		if err != nil {
			return err
		}
		r.line(fmt.Sprintf("%s, %s a second", load.what, thousands(load.rate)), ms)
		r.costs = append(r.costs, cost{load.cpu, (after - before).Seconds() * 1000 / float64(len(ms))})
	}
	return nil
}

// lockOut measures the time from the response to a revocation until the first 403 of kube-apiserver with the webhook, for
// requests that it has cached a response of and for others.
func (r *revoking) lockOut(ctx context.Context) error {
	dir := filepath.Join(r.cluster.Dir, "authorization")
	pki := filepath.Join(r.cluster.Dir, "pki")
	print := exec.CommandContext(ctx, r.bench.kubejoin, "authorization-config", "--url=https://"+r.kubejoin.address, "--ca-file="+r.cluster.CAFile(), "--dir="+dir, "--output-dir="+dir,
		"--client-certificate="+filepath.Join(pki, "apiserver-kubelet-client.crt"), "--client-key="+filepath.Join(pki, "apiserver-kubelet-client.key"))
	print.Stderr = os.Stderr
	if err := errors.Join(os.Mkdir(dir, 0o700), print.Run()); err != nil {
		return err
	}
	r.cluster.StopAPIServer()
	if err := r.cluster.StartAPIServer(ctx, "--authorization-config="+filepath.Join(dir, "authorization.yaml")); err != nil {
		return err
	}
	admin := r.client(tls.Certificate{})
	admin.Transport = bearer{r.kubejoin.bearer, admin.Transport}
	var mu sync.Mutex
	var cached, fresh []float64
	var all sync.WaitGroup
	errs := make([]error, locked)
	for i := range locked {
		all.Go(func() {
			errs[i] = func() error {
				node := fmt.Sprintf("locked-%d", i)
				client, err := r.asNode(node)
				if err != nil {
					return err
				}
				asks := 0
				refused := func(name string) (bool, error) {
					asks++
					status, text, err := ask(ctx, client, http.MethodGet, r.cluster.Server()+"/api/v1/nodes/"+name, "", "")
					if err == nil && status != http.StatusNotFound && status != http.StatusForbidden {
						err = fmt.Errorf("%s: %d %.300s", name, status, text)
					}
					return strings.Contains(text, "is revoked"), err
				}
				for end := time.Now().Add(time.Duration(mathrand.IntN(10_000)) * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if no, err := refused(node); err != nil || no {
						return fmt.Errorf("%s before: %t %w", node, no, err)
					}
				}
				status, text, err := ask(ctx, admin, http.MethodPost, "https://"+r.kubejoin.address+"/v1/revocation", "application/json", `{"node":"`+node+`"}`)
				if err != nil || status/100 != 2 {
					return fmt.Errorf("revoke: %d %.300s %w", status, text, err)
				}
				start := time.Now()
				var first float64
				for {
					if first == 0 { // of a request that was not sent before
						no, err := refused(fmt.Sprintf("%s-%d", node, asks))
						if err != nil {
							return err
						}
						if no {
							first = time.Since(start).Seconds() * 1000
						}
					}
					no, err := refused(node)
					if err != nil {
						return err
					}
					if no {
						break
					}
					if time.Since(start) > patience {
						return fmt.Errorf("%s is not refused", node)
					}
					time.Sleep(20 * time.Millisecond)
				}
				mu.Lock()
				defer mu.Unlock()
				fresh, cached = append(fresh, first), append(cached, time.Since(start).Seconds()*1000)
				return nil
			}()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.line(fmt.Sprintf("revoked until a new request gets 403, %d nodes", locked), fresh)
	r.line("… until a request that was sent before gets 403", cached)
	return nil
}

// bearer adds a bearer token to requests.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (t bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	return t.next.RoundTrip(r)
}

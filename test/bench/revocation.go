package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/test/cluster"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	manyRevocations = 10_000
	reviewRate      = 2000 // requests a second, of kubejoin and of kube-apiserver
	reviewNodes     = 20   // nodes that send requests to kube-apiserver, each on its own connection
	revokedAtOnce   = 10
)

// A revocationWorld is a control plane with revoked nodes.
type revocationWorld struct {
	*bench
	issuer *signingWorld
	notes  []string
}

// measureRevocation measures both tiers of docs/revocation.md with the real kube-apiserver.
func (b *bench) measureRevocation(ctx context.Context) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Progress: b.progress})
	if err != nil {
		return err
	}
	b.cluster = c
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := b.deploy(ctx); err != nil {
		return err
	}
	w := &revocationWorld{bench: b, issuer: &signingWorld{}}
	if err := w.loadCA(); err != nil {
		return err
	}
	if err := w.policy(ctx); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := c.WriteRevocations(ctx, cluster.Revocations(manyRevocations, time.Now())); err != nil {
		return err
	}
	if err := w.webhook(ctx); err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	b.report.notes = append(b.report.notes, w.notes...)
	return nil
}

func (w *revocationWorld) loadCA() error {
	pair, err := tls.LoadX509KeyPair(w.cluster.CAFile(), w.cluster.CAKeyFile())
	if err != nil {
		return err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("CA key of type %T", pair.PrivateKey)
	}
	w.issuer.root, w.issuer.rootKey = pair.Leaf, key
	return nil
}

// node creates a Node, and returns a client with its certificate and a connection of its own.
func (w *revocationWorld) node(ctx context.Context, name string) (kubernetes.Interface, error) {
	if _, err := w.cluster.Client().CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pair, err := w.issuer.certificate(&x509.Certificate{Subject: nodeSubject(name), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(w.cluster.AdminConfig())
	config.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// policy measures writes of a Lease without the ValidatingAdmissionPolicy, and with it and some revocations.
func (w *revocationWorld) policy(ctx context.Context) error {
	writes := 1000
	if w.small {
		writes = 100
	}
	client, err := w.node(ctx, "writer")
	if err != nil {
		return err
	}
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if _, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "writer"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	write := func(n int) error {
		_, err := leases.Patch(ctx, "writer", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"leaseDurationSeconds":%d}}`, 40+n%2), metav1.PatchOptions{})
		return err
	}
	var table strings.Builder
	table.WriteString("| one run: a node writes its Lease, one write after the other | p50 | p99 | CPU of kube-apiserver for one |\n|---|---:|---:|---:|\n")
	for _, one := range []struct {
		name    string
		applied bool
		entries int
	}{
		{"without the policy", false, 0}, {"policy, nothing revoked", true, 0}, {"policy, 1 entry", true, 1},
		{fmt.Sprintf("policy, %s entries", thousands(manyRevocations)), true, manyRevocations},
	} {
		if one.applied {
			if _, err := w.cluster.Kubectl(ctx, "apply", "-f", "deploy/revocation.yaml"); err != nil {
				return err
			}
			// The policy is in force when it denies the node itself, and then when it allows it again.
			if err := w.cluster.WriteRevocations(ctx, append(cluster.Revocations(one.entries, time.Now()), revocation.Entry{Node: "writer", Since: time.Now()})); err != nil {
				return err
			}
			if _, err := waitUntil(ctx, func() bool { return apierrors.IsForbidden(write(0)) }); err != nil {
				return err
			}
			if err := w.cluster.WriteRevocations(ctx, cluster.Revocations(one.entries, time.Now())); err != nil {
				return err
			}
			if _, err := waitUntil(ctx, func() bool { return write(0) == nil }); err != nil {
				return err
			}
		}
		before, err := processCPU("kube-apiserver")
		if err != nil {
			return err
		}
		var took []float64
		for n := range writes {
			start := time.Now()
			if err := write(n); err != nil {
				return err
			}
			took = append(took, time.Since(start).Seconds()*1000)
		}
		after, err := processCPU("kube-apiserver")
		if err != nil {
			return err
		}
		line := fmt.Sprintf("| %s | %.2f ms | %.2f ms | %.2f ms |\n", one.name, percentile(took, 50), percentile(took, 99), (after-before).Seconds()*1000/float64(writes))
		w.say("%s", strings.TrimSpace(line))
		table.WriteString(line)
	}
	w.notes = append(w.notes, table.String())
	_, err = w.cluster.Kubectl(ctx, "delete", "-f", "deploy/revocation.yaml")
	return err
}

// waitUntil calls check every 10 ms until it returns true, and returns the time.
func waitUntil(ctx context.Context, check func() bool) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nothing after %s", patience))
	defer cancel()
	for !check() {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return time.Now(), nil
}

// webhook starts kubejoin and a kube-apiserver that asks it.
func (w *revocationWorld) webhook(ctx context.Context) error {
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p, err := w.cluster.StartProcess("kubejoin", exec.Command(w.kubejoin, "serve", "--kubeconfig="+w.identity, "--listen="+address, "--leader-elect=false",
		"--cluster-signing-cert-file="+w.cluster.CAFile(), "--cluster-signing-key-file="+w.cluster.CAKeyFile(),
		"--webhook-client-ca-file="+w.cluster.CAFile(), "--webhook-client-name=kube-apiserver-kubelet-client"))
	if err != nil {
		return err
	}
	defer p.Stop(20 * time.Second)
	certificate, key := filepath.Join(w.cluster.Dir, "pki/apiserver-kubelet-client.crt"), filepath.Join(w.cluster.Dir, "pki/apiserver-kubelet-client.key")
	if out, err := exec.CommandContext(ctx, w.kubejoin, "authorization-config", "--url=https://"+address, "--ca-file="+w.cluster.CAFile(),
		"--client-certificate="+certificate, "--client-key="+key, "--dir="+w.cluster.Dir, "--output-dir="+w.cluster.Dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	w.cluster.StopAPIServer()
	if err := w.cluster.StartAPIServer(ctx, "--authorization-config="+filepath.Join(w.cluster.Dir, "authorization.yaml")); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	if err := w.first403(ctx); err != nil {
		return err
	}
	return w.reviews(ctx, address, pair, p)
}

// first403 measures the time from 'kubejoin revoke' to the first refused request of nodes that send one after the other.
func (w *revocationWorld) first403(ctx context.Context) error {
	samples := 50
	if w.small {
		samples = revokedAtOnce
	}
	var mu sync.Mutex
	var took, ran []float64
	var failed error
	for batch := range samples / revokedAtOnce {
		var running sync.WaitGroup
		for n := range revokedAtOnce {
			running.Go(func() {
				command, forbidden, err := w.revokeOne(ctx, fmt.Sprintf("stolen-%d", batch*revokedAtOnce+n))
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
				ran, took = append(ran, command.Seconds()), append(took, forbidden.Seconds())
			})
		}
		if running.Wait(); failed != nil {
			return failed
		}
	}
	note := fmt.Sprintf("| one run: from `kubejoin revoke` to the first 403, %d nodes, %s other entries | p50 | p99 |\n|---|---:|---:|\n"+
		"| the command itself | %.2f s | %.2f s |\n| to the first 403 | %.2f s | %.2f s |\n",
		samples, thousands(manyRevocations), percentile(ran, 50), percentile(ran, 99), percentile(took, 50), percentile(took, 99))
	w.say("%s", note)
	w.notes = append(w.notes, note)
	return nil
}

// revokeOne revokes a node that reads its Node all the time. It returns how long the command ran, and the time from its
// start to the first 403.
func (w *revocationWorld) revokeOne(ctx context.Context, name string) (command, forbidden time.Duration, err error) {
	client, err := w.node(ctx, name)
	if err != nil {
		return 0, 0, err
	}
	read := func() error {
		_, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	}
	if _, err := waitUntil(ctx, func() bool { return read() == nil }); err != nil {
		return 0, 0, err
	}
	refused := make(chan error, 1)
	var at time.Time
	go func() {
		var err error
		at, err = waitUntil(ctx, func() bool { return apierrors.IsForbidden(read()) })
		refused <- err
	}()
	// kube-apiserver caches the first response for 5 s. Revoke at a random moment of that time.
	delay, err := rand.Int(rand.Reader, big.NewInt(int64(5*time.Second)))
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(time.Duration(delay.Int64()))
	start := time.Now()
	cmd := exec.CommandContext(ctx, w.kubejoin, "revoke", name)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, out)
	}
	command = time.Since(start)
	err = <-refused
	return command, at.Sub(start), err
}

// isRevoked reports whether the n-th review is about a revoked node.
func isRevoked(n int) bool { return n%100 == 0 }

// reviewed returns the node of the n-th review.
func reviewed(n int) string {
	if isRevoked(n) {
		return fmt.Sprintf("gone-%d", n%manyRevocations)
	}
	return fmt.Sprintf("worker-%d", n%5000)
}

// reviews measures the webhook at a steady rate, and beside it a kube-apiserver that serves requests of nodes at the same
// rate.
func (w *revocationWorld) reviews(ctx context.Context, address string, pair tls.Certificate, p *cluster.Process) error {
	roots := x509.NewCertPool()
	roots.AddCert(w.issuer.root)
	// Like kube-apiserver: one connection with HTTP/2.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	duration := 20 * time.Second
	if w.small {
		duration = 2 * time.Second
	}
	var bodies [][]byte // made before, because the load shares the processors
	for n := range int(duration.Seconds() * reviewRate) {
		body, err := json.Marshal(authorizationv1.SubjectAccessReview{
			TypeMeta: metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"},
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:node:" + reviewed(n), Groups: []string{"system:nodes", "system:authenticated"},
				Extra:              map[string]authorizationv1.ExtraValue{revocation.CredentialIDKey: {fmt.Sprintf("X509SHA256=%064x", n)}},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Version: "v1", Name: reviewed(n)},
			},
		})
		if err != nil {
			return err
		}
		bodies = append(bodies, body)
	}
	review := func(n int) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/apis/authorization.k8s.io/v1/subjectaccessreviews", bytes.NewReader(bodies[n]))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		content, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			return err
		}
		if denied := bytes.Contains(content, []byte(`"denied":true`)); answer.StatusCode != http.StatusOK || denied != isRevoked(n) {
			return fmt.Errorf("%s: %s %.500s", reviewed(n), answer.Status, content)
		}
		return nil
	}
	var nodes []kubernetes.Interface
	for n := range reviewNodes {
		node, err := w.node(ctx, fmt.Sprintf("reader-%d", n))
		if err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	read := func(n int) error {
		return nodes[n%reviewNodes].CoreV1().RESTClient().Get().Resource("nodes").Name(fmt.Sprintf("reader-%d", n%reviewNodes)).Do(ctx).Error()
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| one run: %s requests a second for %s, %s entries | p50 | p99 | CPU for one | of a processor |\n|---|---:|---:|---:|---:|\n", thousands(reviewRate), duration, thousands(manyRevocations))
	for _, one := range []struct {
		name string
		do   func(int) error
		cpu  func() (time.Duration, error)
	}{
		{"kubejoin: reviews over HTTPS", review, func() (time.Duration, error) { return cpu(p.PID()) }},
		{"kube-apiserver: a node reads its Node", read, func() (time.Duration, error) { return processCPU("kube-apiserver") }},
	} {
		if _, err := steadily(ctx, reviewRate, duration/5, one.do); err != nil { // warm up
			return err
		}
		before, err := one.cpu()
		if err != nil {
			return err
		}
		start := time.Now()
		took, err := steadily(ctx, reviewRate, duration, one.do)
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		elapsed := time.Since(start)
		after, err := one.cpu()
		if err != nil {
			return err
		}
		used := after - before
		line := fmt.Sprintf("| %s | %.2f ms | %.2f ms | %.3f ms | %.0f %% |\n", one.name, percentile(took, 50), percentile(took, 99),
			used.Seconds()*1000/float64(len(took)), used.Seconds()/elapsed.Seconds()*100)
		w.say("%s (%d in %s)", strings.TrimSpace(line), len(took), elapsed.Round(time.Millisecond))
		table.WriteString(line)
	}
	w.notes = append(w.notes, table.String())
	return nil
}

// steadily starts requests at a rate, whether or not the earlier ones have ended, so that a queue counts. It returns how
// many milliseconds each took.
func steadily(ctx context.Context, rate int, duration time.Duration, do func(n int) error) ([]float64, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	took := make([]float64, int(duration.Seconds()*float64(rate)))
	var running sync.WaitGroup
	began := time.Now()
	for n := range took {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		if ctx.Err() != nil {
			break
		}
		start := time.Now()
		running.Go(func() {
			if err := do(n); err != nil {
				stop(err)
			}
			took[n] = time.Since(start).Seconds() * 1000
		})
	}
	running.Wait()
	return took, context.Cause(ctx)
}

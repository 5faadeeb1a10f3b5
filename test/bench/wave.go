package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// waveRate is the default of --ca-rotation-qps, and renewals is how many certificates a host renews.
	waveRate, renewals = 20, 2
	turnEvery          = renewals * time.Second / waveRate
	// readers is the number of connections that share the polls of all hosts.
	readers = 64
)

// A wave is 'kubejoin ca apply --watch' on many hosts in stage switch. Each host is simulated by what it does in the API with
// the credential of its kubelet. The kubelets, which restart then, are not simulated.
type wave struct {
	*bench
	kubejoin  running
	ca        *x509.Certificate
	key       any
	rotation  rotation.Rotation
	next      int // node whose turn comes next
	mu        sync.Mutex
	took      []float64 // of each turn, in ms
	failure   error
	processes []string // whose CPU is measured
}

// measureWave measures the load of the API server while the hosts of a large cluster follow a rotation.
func (b *bench) measureWave(ctx context.Context) error {
	return b.onCluster(ctx, func(ctx context.Context) (err error) {
		w := &wave{bench: b, processes: []string{"kube-apiserver", "etcd", "kubejoin"}}
		if err := w.prepare(ctx); err != nil {
			return err
		}
		if w.kubejoin, _, err = b.launchSigning(ctx, ours, b.cluster.Address); err != nil {
			return err
		}
		defer w.kubejoin.end(&err)
		var table bytes.Buffer
		fmt.Fprintf(&table, "| %s Nodes | for | API calls | CPU of kube-apiserver | etcd | kubejoin |\n|---|---:|---:|---:|---:|---:|\n", thousands(b.hosts))
		for _, phase := range []struct {
			name        string
			polls, turn bool
			span        time.Duration
		}{
			{"nothing else", false, false, min(b.waveFor, time.Minute)},
			{"hosts read the stage, each once a minute", true, false, min(b.waveFor, time.Minute)},
			{fmt.Sprintf("… and take turns at %d renewals per second", waveRate), true, true, b.waveFor},
		} {
			b.say("wave: %s", phase.name)
			row, err := w.measure(ctx, phase.span, phase.polls, phase.turn)
			if err != nil {
				return err
			}
			fmt.Fprintf(&table, "| %s | %s | %s |\n", phase.name, phase.span, row)
		}
		fmt.Fprintf(&table, "\nA turn has %d certificates and one report: p50 %.0f ms, p99 %.0f ms of %d turns.\n", renewals, percentile(w.took, 50), percentile(w.took, 99), len(w.took))
		b.report.notes = append(b.report.notes, table.String())
		return nil
	})
}

// prepare creates the Nodes and the rotation that the hosts read.
func (w *wave) prepare(ctx context.Context) error {
	pair, err := tls.LoadX509KeyPair(w.cluster.CAFile(), w.cluster.CAKeyFile())
	if err != nil {
		return err
	}
	w.ca, w.key = pair.Leaf, pair.PrivateKey
	fresh, err := signer.GenerateCA("new", time.Now(), 24*time.Hour)
	if err != nil {
		return err
	}
	if w.rotation, err = rotation.New(rotation.Cluster, []*x509.Certificate{w.ca}, fresh.Bundle(), nil, time.Now()); err != nil {
		return err
	}
	w.rotation.Stage, w.rotation.Nodes = rotation.Switch, w.hosts
	if err := clusterstore.New(w.load[0]).Put(ctx, w.rotation, ""); err != nil {
		return err
	}
	return w.createNodes(ctx, 0, w.hosts)
}

// measure lets hosts work for a while, and returns the cells of a row.
func (w *wave) measure(ctx context.Context, span time.Duration, polls, turns bool) (string, error) {
	var clients []kubernetes.Interface
	if polls {
		for i := range readers {
			c, err := w.client(w.hosts - 1 - i) // these have their turns last
			if err != nil {
				return "", err
			}
			clients = append(clients, c)
		}
	}
	before, err := w.apiCalls(ctx)
	if err != nil {
		return "", err
	}
	used := make([]time.Duration, len(w.processes))
	for i, name := range w.processes {
		if used[i], err = processCPU(name); err != nil {
			return "", err
		}
	}
	var running sync.WaitGroup
	if polls {
		running.Go(func() {
			w.every(ctx, span, time.Minute/time.Duration(w.hosts), func(i int) error {
				_, err := pki.State(ctx, clients[i%len(clients)])
				return err
			})
		})
	}
	if turns {
		running.Go(func() {
			w.every(ctx, span, turnEvery, func(int) error { return w.turn(ctx) })
		})
	}
	if !polls && !turns {
		time.Sleep(span)
	}
	running.Wait()
	if w.failure != nil {
		return "", w.failure
	}
	seconds := span.Seconds() // a busy machine takes longer for the same work
	after, err := w.apiCalls(ctx)
	if err != nil {
		return "", err
	}
	sum := 0.0
	for _, n := range after.since(before) {
		sum += n
	}
	row := fmt.Sprintf("%.0f /s", sum/seconds)
	for i, name := range w.processes {
		now, err := processCPU(name)
		if err != nil {
			return "", err
		}
		row += fmt.Sprintf(" | %.1f %%", 100*(now-used[i]).Seconds()/seconds)
	}
	return row, nil
}

// every begins do at a fixed rate for a span of time, and waits for all.
func (w *wave) every(ctx context.Context, span, interval time.Duration, do func(i int) error) {
	var running sync.WaitGroup
	defer running.Wait()
	began := time.Now()
	for i := 0; ; i++ {
		at := time.Duration(i) * interval
		if at >= span {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(began.Add(at))):
		}
		running.Go(func() {
			if err := do(i); err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.failure = err
			}
		})
	}
}

// turn does what a worker does in its turn, with a connection of its own.
func (w *wave) turn(ctx context.Context) error {
	w.mu.Lock()
	i := w.next
	w.next++
	w.mu.Unlock()
	node := workerNode(i).Name
	c, err := w.client(i)
	if err != nil {
		return err
	}
	began := time.Now()
	sign := credentials.SignByCSRObject(c, func(string) {})
	for range renewals {
		csr, _, err := nodeRequest(node, nil)
		if err != nil {
			return err
		}
		if _, err := sign(ctx, credentials.Request{
			Signer: certificates.KubeAPIServerClientKubeletSignerName, CSR: csr,
			Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		}); err != nil {
			return fmt.Errorf("%s: %w", node, err)
		}
	}
	report := &rotation.Report{ID: w.rotation.ID, CA: w.rotation.CA, Stage: w.rotation.Stage, Since: w.rotation.Since}
	if err := pki.Publish(ctx, c, node, report); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = append(w.took, time.Since(began).Seconds()*1000)
	return nil
}

// client returns a client with the credential of a kubelet.
func (w *wave) client(i int) (kubernetes.Interface, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(int64(i) + 1), Subject: nodeSubject(workerNode(i).Name), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, w.ca, key.Public(), w.key)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	trusted, err := os.ReadFile(w.cluster.CAFile())
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(&rest.Config{
		Host: w.cluster.Server(), Dial: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, // prevents client-go from sharing connections
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON},
		TLSClientConfig: rest.TLSClientConfig{
			CAData: trusted, CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		},
	})
}

package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// TestJoinsWithMoreTokensThanConfigMapHolds creates more tokens than the ConfigMap can hold signatures, and lets 4,000 of
// them expire within one second. It catches joins that fail meanwhile, and a full ConfigMap that kubejoin does not report.
func TestJoinsWithMoreTokensThanConfigMapHolds(t *testing.T) {
	const alive, expire = 14_000, 4_000
	cluster.NeedRoot(t)
	address := harness.FreeAddress(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--listen="+address, "--advertise="+address, "-v=0")
	s.Secrets = harness.NewSecrets() // add only some tokens, because the check searches megabytes of logs for each secret
	s.Secrets.Add("the operator", (&harness.Program{Curlrc: s.Curlrc()}).Bearer(t))
	startPlain(t, s, s.Flags...)
	load := newLoad(t, s.Cluster)

	began := time.Now()
	all := make([]tokens.Token, alive)
	load.each(t, alive, func(ctx context.Context, c kubernetes.Interface, i int) (err error) {
		if all[i], err = tokens.New(fmt.Sprintf("t%05d", i), tokens.Generate().RevealSecret()); err != nil {
			return err
		}
		return storeKubeadmToken(ctx, c, all[i], began.Add(2*time.Hour))
	})
	created := time.Since(began)
	last := all[alive-1]
	s.Secrets.Add("the last token", last.RevealSecret())
	poll(t, "discovery of all tokens", func() error { return discoverable(t, s, all, true) })
	t.Logf("%d tokens created in %.1f s, all discoverable %.1f s later; %.0f MiB resident",
		alive, created.Seconds(), (time.Since(began) - created).Seconds(), resident(t, s.Program))

	// Machines can discover the cluster with a new token as soon as kubejoin returns the join command.
	start := time.Now()
	args, one := s.JoinArgs(t, "")
	took := time.Since(start)
	if args[0] != address {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], address)
	}
	pins := []string{args[len(args)-1]}
	if _, err := clusterinfo.Discover(t.Context(), address, one, pins); err != nil {
		t.Error(err)
	}
	t.Logf("a join command took %s", took.Round(time.Millisecond))

	// A machine joins with the last token, whose signature does not fit into the ConfigMap.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args[2] = last.Reveal()
	must.Value(s.Join(ctx, "worker-1", args))(t)
	checkReportsFull(t, s)
	other := withoutAdvertise(t, s)
	start = time.Now()
	if status, body, err := other.Do(t.Context(), http.MethodPost, "/v1/token/print-join-command", other.Bearer(t)); err != nil || status != http.StatusInsufficientStorage || !strings.Contains(body, "cluster-info-full") {
		t.Errorf("full ConfigMap without --advertise: got %d %s %v, want 507 with cluster-info-full", status, body, err)
	} else if took := time.Since(start); took > 20*time.Second { // usually 1 s; a request that waits for its signature takes 30 s
		t.Errorf("refused after %s, want at most 20s", took)
	}

	// Joins continue while these tokens expire.
	stopJoining := keepJoining(t, s, address, pins)
	ends := time.Now().Add(created + 15*time.Second).Truncate(time.Second)
	patch := fmt.Appendf(nil, `{"stringData":{"expiration":%q}}`, ends.UTC().Format(time.RFC3339))
	load.each(t, expire, func(ctx context.Context, c kubernetes.Interface, i int) error {
		_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Patch(ctx, "bootstrap-token-"+all[i].ID(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	t.Logf("%d tokens expire %.1f s after the last update of an expiration", expire, time.Until(ends).Seconds())
	poll(t, "expiration of tokens", func() error {
		if now := time.Now(); now.Before(ends) {
			return fmt.Errorf("they expire at %s, now %s", ends, now)
		}
		return discoverable(t, s, all[:expire], false)
	})
	unsigned := time.Since(ends)
	poll(t, "deletion of tokens", func() error {
		list, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{
			FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken), ResourceVersion: "0", // from the watch cache, to spare etcd
		})
		left := 0
		if err == nil {
			for _, secret := range list.Items {
				if string(secret.Data["expiration"]) == ends.UTC().Format(time.RFC3339) {
					left++
				}
			}
		}
		if left > 0 {
			err = fmt.Errorf("got %d expired tokens, want none", left)
		}
		return err
	})
	t.Logf("%d tokens expired at once: signatures removed after %.1f s, tokens deleted after %.1f s; %d joins meanwhile; %.0f MiB resident",
		expire, unsigned.Seconds(), time.Since(ends).Seconds(), stopJoining(), resident(t, s.Program))
	if err := discoverable(t, s, all[expire:], true); err != nil {
		t.Error(err)
	}
	// Now the signatures of the other tokens fit into the ConfigMap.
	poll(t, "signatures of the others in the ConfigMap", func() error {
		object, err := s.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i, token := range all {
			if signed := object.Data[clusterinfo.SignatureKey(token.ID())] != ""; signed != (i >= expire) {
				return fmt.Errorf("token %d: got signed %t, want %t", i, signed, !signed)
			}
		}
		return nil
	})
	other.JoinArgs(t, "")
}

// startPlain starts kubejoin as in a release, without the race detector.
func startPlain(t *testing.T, s *harness.Site, flags ...string) {
	t.Helper()
	file := must.Value(plain())(t)
	s.Program = harness.StartBinary(t, file, s.WorkDir, s.Curlrc(), flags...)
	s.Program.Secrets = s.Secrets
	s.WaitReady(t, s.CAFile())
}

// withoutAdvertise starts a second replica. Its join commands use the API server for discovery.
func withoutAdvertise(t *testing.T, s *harness.Site) *harness.Program {
	t.Helper()
	var flags []string
	for _, f := range s.Flags {
		if !strings.HasPrefix(f, "--advertise") && !strings.HasPrefix(f, "--listen") {
			flags = append(flags, f)
		}
	}
	other := &harness.Site{Cluster: s.Cluster, WorkDir: filepath.Clean(s.WorkDir), Secrets: s.Secrets}
	startPlain(t, other, flags...)
	return other.Program
}

// load is a set of clients of an API server.
type load []kubernetes.Interface

func newLoad(t *testing.T, c *cluster.Cluster) load {
	t.Helper()
	clients := make(load, 4)
	for i := range clients {
		config := c.AdminConfig()
		config.QPS = -1
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		client := must.Value(kubernetes.NewForConfig(config))(t)
		clients[i] = client
	}
	return clients
}

// each calls do for 0 to n-1 concurrently.
func (l load) each(t *testing.T, n int, do func(ctx context.Context, c kubernetes.Interface, i int) error) {
	t.Helper()
	next := make(chan int)
	var workers sync.WaitGroup
	for w := range 8 * len(l) {
		workers.Go(func() {
			for i := range next {
				if err := do(t.Context(), l[w%len(l)], i); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// storeKubeadmToken stores a token as kubeadm does.
func storeKubeadmToken(ctx context.Context, c kubernetes.Interface, token tokens.Token, expires time.Time) error {
	_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + token.ID()},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.RevealSecret(), "expiration": expires.UTC().Format(time.RFC3339),
			"usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true", "auth-extra-groups": tokens.DefaultGroup,
		},
	}, metav1.CreateOptions{})
	return err
}

// discoverable returns an error unless kubejoin's discovery has signatures of all these tokens (if want is true) or of none
// of them (if want is false).
func discoverable(t *testing.T, s *harness.Site, of []tokens.Token, want bool) error {
	status, body, err := s.Get(t.Context(), harness.ClusterInfoPath, "")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("discovery: %d %v", status, err)
	}
	var object corev1.ConfigMap
	if err := json.Unmarshal([]byte(body), &object); err != nil {
		return err
	}
	for i, token := range of {
		if signed := object.Data[clusterinfo.SignatureKey(token.ID())] != ""; signed != want {
			return fmt.Errorf("token %d of %d: got signed %t, want %t", i, len(of), signed, want)
		}
	}
	return nil
}

// checkReportsFull checks that an Event, /readyz, the metrics and the log report that the ConfigMap is full.
func checkReportsFull(t *testing.T, s *harness.Site) {
	t.Helper()
	harness.Wait(t, "Event ClusterInfoFull", func() error {
		events := s.RunKubectl(t, "get", "events", "-A", "-o", "jsonpath={.items[*].reason}")
		if !strings.Contains(events, "ClusterInfoFull") {
			return errors.New(events)
		}
		return nil
	})
	status, body, err := s.Get(t.Context(), "/readyz?verbose", "")
	if err != nil || status != http.StatusOK || !strings.Contains(body, "[+]cluster-info ok: cluster-info is full") {
		t.Errorf("/readyz: got %d %s %v, want 200 with cluster-info is full", status, body, err)
	}
	_, metrics, err := s.Get(t.Context(), "/metrics", s.Bearer(t))
	if err != nil {
		t.Fatal(err)
	}
	if r := harness.Metric(t, metrics, "kubejoin_clusterinfo_used_ratio"); r < 0.99 || r > 1 {
		t.Errorf("got kubejoin_clusterinfo_used_ratio %v, want 0.99 to 1", r)
	}
	if n := harness.Metric(t, metrics, "kubejoin_clusterinfo_unsigned_tokens"); n < 1000 {
		t.Errorf("got kubejoin_clusterinfo_unsigned_tokens %v, want at least 1000", n)
	}
	if !strings.Contains(s.Log(), "cluster-info is full") {
		t.Error("the log does not report that cluster-info is full")
	}
}

// keepJoining requests join commands and runs discovery with them, a few times a second. The returned function stops
// this and returns the number of joins.
func keepJoining(t *testing.T, s *harness.Site, address string, pins []string) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	joined := func() error {
		line, err := s.JoinCommand(t, "?ttl=1h") // without ctx, so that stopping does not fail a join
		if err != nil {
			return err
		}
		args, err := cluster.JoinArgs(line)
		if err != nil {
			return err
		}
		token, err := tokens.Parse(args[2])
		if err != nil {
			return err
		}
		s.Secrets.Add("token "+token.ID(), token.RevealSecret())
		_, err = clusterinfo.Discover(t.Context(), address, token, pins)
		return err
	}
	joins := make(chan int)
	go func() {
		tick := time.NewTicker(300 * time.Millisecond)
		defer tick.Stop()
		n := 0
		for ; ctx.Err() == nil; n++ {
			if err := joined(); err != nil {
				t.Errorf("join %d: %v", n, err)
				break
			}
			<-tick.C
		}
		<-ctx.Done()
		joins <- n
	}()
	return func() int {
		cancel()
		n := <-joins
		if n == 0 {
			t.Error("got no join meanwhile, want some")
		}
		return n
	}
}

// poll calls an expensive check once a second until it returns nil, for at most ten minutes.
func poll(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

package test

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
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// TestTwentyThousandTokens has more tokens alive at once than a ConfigMap can hold signatures of,
// and half of them end in the same second: machines join all the time.
func TestTwentyThousandTokens(t *testing.T) {
	const alive, expire = 20_000, 10_000
	cluster.NeedRoot(t)
	address := freeAddress(t)
	s := prepare(t, cluster.Options{}, "--listen="+address, "--advertise="+address, "-v=0")
	s.known = &secrets{list: map[string]string{}} // of some: each is looked for in megabytes of logs
	s.known.add("the operator", (&program{curlrc: s.curlrc()}).bearer(t))
	s.startPlain(t, s.flags...)
	load := newLoad(t, s.Cluster)

	began := time.Now()
	all := make([]tokens.Token, alive)
	load.each(t, alive, func(ctx context.Context, c kubernetes.Interface, i int) (err error) {
		if all[i], err = tokens.New(fmt.Sprintf("t%05d", i), tokens.Generate().RevealSecret()); err != nil {
			return err
		}
		return createToken(ctx, c, all[i], began.Add(2*time.Hour))
	})
	created := time.Since(began)
	last := all[alive-1]
	s.known.add("the last token", last.RevealSecret())
	patiently(t, "discovery of all tokens", func() error { return s.discoverable(t, all, true) })
	t.Logf("%d tokens created in %.1f s, all discoverable %.1f s later; %.0f MiB resident",
		alive, created.Seconds(), (time.Since(began) - created).Seconds(), s.resident(t))

	// One more is discoverable as soon as the line that has it is answered.
	start := time.Now()
	args, one := s.join(t, "")
	took := time.Since(start)
	if args[0] != address {
		t.Errorf("the join command names %s, want kubejoin at %s", args[0], address)
	}
	pins := []string{args[len(args)-1]}
	if _, err := clusterinfo.Discover(t.Context(), address, one, pins); err != nil {
		t.Error(err)
	}
	t.Logf("a join command took %s", took.Round(time.Millisecond))

	// A machine joins with the last one, which the ConfigMap has no room for.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args[2] = last.Reveal()
	if _, err := s.Join(ctx, "worker-1", args); err != nil {
		t.Fatal(err)
	}
	s.saysFull(t)
	other := s.withoutAdvertise(t)
	start = time.Now()
	if status, body, err := other.do(t.Context(), http.MethodPost, "/v1/token/print-join-command", other.bearer(t)); err != nil || status != http.StatusInsufficientStorage || !strings.Contains(body, "cluster-info-full") {
		t.Errorf("with a full ConfigMap and no --advertise: %d %s %v", status, body, err)
	} else if took := time.Since(start); took > 10*time.Second {
		t.Errorf("refused after %s", took)
	}

	// Joins go on while the half of them ends.
	going := s.keepJoining(t, address, pins)
	ends := time.Now().Add(created + 15*time.Second).Truncate(time.Second)
	patch := fmt.Appendf(nil, `{"stringData":{"expiration":%q}}`, ends.UTC().Format(time.RFC3339))
	load.each(t, expire, func(ctx context.Context, c kubernetes.Interface, i int) error {
		_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Patch(ctx, "bootstrap-token-"+all[i].ID(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	t.Logf("%d tokens end %.1f s after the last was told so", expire, time.Until(ends).Seconds())
	patiently(t, "the end of half of the tokens", func() error {
		if now := time.Now(); now.Before(ends) {
			return fmt.Errorf("it is %s, want %s", now, ends)
		}
		return s.discoverable(t, all[:expire], false)
	})
	unsigned := time.Since(ends)
	patiently(t, "deletion of half of the tokens", func() error {
		list, err := s.Client().CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{
			FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken), ResourceVersion: "0", // the watch cache's: it costs etcd nothing
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
			err = fmt.Errorf("%d are left", left)
		}
		return err
	})
	t.Logf("%d tokens that ended at once: unsigned after %.1f s, deleted after %.1f s; %d joins meanwhile; %.0f MiB resident",
		expire, unsigned.Seconds(), time.Since(ends).Seconds(), going(), s.resident(t))
	if err := s.discoverable(t, all[expire:], true); err != nil {
		t.Error(err)
	}
	// There is room for the others in the ConfigMap now.
	patiently(t, "signatures of the other half in the ConfigMap", func() error {
		object, err := s.Client().CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i, token := range all {
			if signed := object.Data[clusterinfo.SignatureKey(token.ID())] != ""; signed != (i >= expire) {
				return fmt.Errorf("token %d is signed: %t", i, signed)
			}
		}
		return nil
	})
	other.join(t, "")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + itoa(port)
}

// startPlain is start with kubejoin as it is shipped.
func (s *site) startPlain(t *testing.T, flags ...string) {
	t.Helper()
	file, err := plain()
	if err != nil {
		t.Fatal(err)
	}
	s.program = startBinary(t, file, s.dir, s.curlrc(), flags...)
	s.secrets = s.known
	s.ready(t, s.CAFile())
}

// withoutAdvertise starts a second replica, whose joins go through the API server.
func (s *site) withoutAdvertise(t *testing.T) *program {
	t.Helper()
	var flags []string
	for _, f := range s.flags {
		if !strings.HasPrefix(f, "--advertise") && !strings.HasPrefix(f, "--listen") {
			flags = append(flags, f)
		}
	}
	other := &site{Cluster: s.Cluster, dir: filepath.Clean(s.dir), known: s.known}
	other.startPlain(t, flags...)
	return other.program
}

// load is connections to an API server.
type load []kubernetes.Interface

func newLoad(t *testing.T, c *cluster.Cluster) load {
	t.Helper()
	clients := make(load, 4)
	for i := range clients {
		config := c.AdminConfig()
		config.QPS = -1
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = client
	}
	return clients
}

// each calls do for 0 to n-1, many at a time.
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

// createToken makes a token as kubeadm does.
func createToken(ctx context.Context, c kubernetes.Interface, token tokens.Token, expires time.Time) error {
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

// discoverable reports as an error whether kubejoin's discovery is not signed by all of the
// tokens, or by none.
func (s *site) discoverable(t *testing.T, of []tokens.Token, want bool) error {
	status, body, err := s.get(t.Context(), infoPath, "")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("discovery: %d %v", status, err)
	}
	var object corev1.ConfigMap
	if err := json.Unmarshal([]byte(body), &object); err != nil {
		return err
	}
	for i, token := range of {
		if signed := object.Data[clusterinfo.SignatureKey(token.ID())] != ""; signed != want {
			return fmt.Errorf("token %d of %d is signed: %t", i, len(of), signed)
		}
	}
	return nil
}

// saysFull looks for what tells an operator that the ConfigMap is full.
func (s *site) saysFull(t *testing.T) {
	t.Helper()
	wait(t, "an Event that cluster-info is full", func() error {
		events := s.kubectl(t, "get", "events", "-A", "-o", "jsonpath={.items[*].reason}")
		if !strings.Contains(events, "ClusterInfoFull") {
			return errors.New(events)
		}
		return nil
	})
	status, body, err := s.get(t.Context(), "/readyz?verbose", "")
	if err != nil || status != http.StatusOK || !strings.Contains(body, "[+]cluster-info ok: cluster-info is full") {
		t.Errorf("readyz: %d %s %v", status, body, err)
	}
	_, metrics, err := s.get(t.Context(), "/metrics", s.bearer(t))
	if err != nil {
		t.Fatal(err)
	}
	if r := metric(t, metrics, "kubejoin_clusterinfo_used_ratio"); r < 0.99 || r > 1 {
		t.Errorf("kubejoin_clusterinfo_used_ratio %v", r)
	}
	if n := metric(t, metrics, "kubejoin_clusterinfo_unsigned_tokens"); n < 7000 {
		t.Errorf("kubejoin_clusterinfo_unsigned_tokens %v", n)
	}
	if !strings.Contains(s.Log(), "cluster-info is full") {
		t.Error("the log does not say that cluster-info is full")
	}
}

// keepJoining asks for join commands and discovers with them, a few times a second, until the
// function returned is called, which says how often.
func (s *site) keepJoining(t *testing.T, address string, pins []string) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	joined := func() error {
		line, err := s.joinCommand(t, "?ttl=1h") // not with ctx: what has begun is to end well
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
		s.known.add("token "+token.ID(), token.RevealSecret())
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
			t.Error("no join meanwhile")
		}
		return n
	}
}

// patiently calls check, which costs something, until it returns nil, for at most five minutes.
func patiently(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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

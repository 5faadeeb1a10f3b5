package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// usage is the resources that a process holds.
type usage struct {
	descriptors, goroutines int
	resident                int64 // bytes
}

func (u usage) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %.1f MiB resident", u.descriptors, u.goroutines, float64(u.resident)/(1<<20))
}

func usageOf(t *testing.T, p *harness.Program) usage {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Fatal("needs /proc")
	}
	dir := fmt.Sprint("/proc/", p.PID())
	files := must.Value(os.ReadDir(dir + "/fd"))(t)
	u := usage{descriptors: len(files)}
	pages := strings.Fields(string(harness.ReadFile(t, dir+"/statm")))[1]
	n := must.Value(strconv.ParseInt(pages, 10, 64))(t)
	u.resident = n * int64(os.Getpagesize())
	_, metrics, err := p.Get(t.Context(), "/metrics", p.Bearer(t))
	if err != nil {
		t.Fatal(err)
	}
	u.goroutines = int(harness.Metric(t, metrics, "go_goroutines"))
	return u
}

// checkNoGrowth runs rounds and checks that the usage of the process does not grow after the rounds to warm up.
func checkNoGrowth(t *testing.T, p *harness.Program, warmUp, rounds int, round func(n int)) {
	t.Helper()
	var before, last, now usage
	for n := range warmUp + rounds {
		round(n)
		last, now = now, usageOf(t, p)
		t.Logf("round %d: %s", n, now)
		if n < warmUp {
			before = usage{max(before.descriptors, now.descriptors), max(before.goroutines, now.goroutines), max(before.resident, now.resident)}
		}
	}
	// A leak shows in both of the last two rounds. If only one of them uses more, some work has not ended yet.
	now = usage{min(last.descriptors, now.descriptors), min(last.goroutines, now.goroutines), min(last.resident, now.resident)}
	// Allow for uncollected garbage, and for some connections.
	if now.descriptors > before.descriptors+4 || now.goroutines > before.goroutines+16 || now.resident > before.resident*6/5+12<<20 {
		t.Errorf("got %s after %d rounds, want about %s as after %d rounds to warm up", now, rounds, before, warmUp)
	}
}

// each calls do with 0 to n-1, at most eight calls at a time.
func each(n int, do func(i int)) {
	var workers sync.WaitGroup
	todo := make(chan int)
	for range 8 {
		workers.Go(func() {
			for i := range todo {
				do(i)
			}
		})
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	workers.Wait()
}

// TestChurnLeaksNothing creates 400 tokens and 150 certificates in each of 8 rounds; the tokens expire or are deleted.
// It catches leaked memory, goroutines and descriptors.
func TestChurnLeaksNothing(t *testing.T) {
	harness.Parallel(t)
	const tokensARound, requestsARound = 400, 150
	s := harness.NewSite(t, cluster.Options{})
	secrets := s.Client().CoreV1().Secrets("kube-system")
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	asking := harness.AsMachine(t, s.Cluster)
	checkNoGrowth(t, s.Program, 3, 5, func(round int) {
		harness.AsMachine(t, s.Cluster) // stores the machines' token again, because each round deletes all tokens
		expires := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339)
		each(tokensARound, func(i int) {
			token, err := tokens.New(fmt.Sprintf("c%02d%03d", round, i), tokens.Generate().RevealSecret()) // random IDs may collide
			if err != nil {
				t.Error(err)
				return
			}
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + token.ID()}, Type: corev1.SecretTypeBootstrapToken,
				StringData: map[string]string{"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-signing": "true"},
			}
			if i%2 == 0 {
				secret.StringData["expiration"] = expires
			}
			if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
		each(requestsARound, func(i int) {
			name := fmt.Sprintf("csr-%d-%d", round, i)
			if err := harness.CreateRequest(t.Context(), asking, name, certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprintf("worker-%d-%d", round, i)); err != nil {
				t.Error(err)
			}
		})
		s.JoinArgs(t, "?ttl=1h")
		harness.Wait(t, "certificates", func() error {
			list, err := requests.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, r := range list.Items {
				if len(r.Status.Certificate) == 0 {
					return fmt.Errorf("%s has no certificate", r.Name)
				}
			}
			return nil
		})
		all := metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)}
		harness.Wait(t, "tokens to expire", func() error {
			list, err := secrets.List(t.Context(), all)
			if err == nil && len(list.Items) > tokensARound/2+2 { // two more tokens: of the join command and of the machines
				err = fmt.Errorf("got %d tokens", len(list.Items))
			}
			return err
		})
		harness.Wait(t, "deletion of tokens and requests", func() error {
			return errors.Join(
				secrets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, all),
				requests.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
			)
		})
		harness.Wait(t, "removal of signatures", func() error {
			if n := len(s.ClusterInfo(t)); n != 1 {
				return fmt.Errorf("got %d keys in cluster-info, want only the kubeconfig", n)
			}
			return nil
		})
	})
}

// TestStandaloneChurnLeaksNothing makes 500 join commands with short-lived tokens in each of 8 rounds. It catches
// leaks, and a database file that grows.
func TestStandaloneChurnLeaksNothing(t *testing.T) {
	need.Long(t)
	harness.Parallel(t)
	const tokensARound = 500
	dataDir := filepath.Join(t.TempDir(), "data")
	p := harness.ServeStandalone(t, dataDir, "--user-qps=0") // one user makes all requests
	bearer := p.Bearer(t)
	var size []int64
	checkNoGrowth(t, p, 3, 5, func(int) {
		each(tokensARound, func(int) {
			if _, err := mint(t.Context(), p, bearer, "?ttl=5s"); err != nil {
				t.Error(err)
			}
		})
		harness.Wait(t, "tokens to expire", func() error {
			_, body, err := p.Get(t.Context(), harness.ClusterInfoPath, "")
			if err == nil && strings.Contains(body, clusterinfo.SignaturePrefix) {
				err = errors.New("cluster-info has signatures")
			}
			return err
		})
		info := must.Value(os.Stat(filepath.Join(dataDir, "kubejoin.db")))(t)
		size = append(size, info.Size())
	})
	// The file grows by doubling. 500 tokens at a time need 1 MiB, and all 4,000 tokens would need 4 MiB.
	if last := size[len(size)-1]; last > 2<<20 {
		t.Errorf("got kubejoin.db with %d bytes, want at most 2 MiB", last)
	}
	t.Logf("kubejoin.db after each round: %d bytes", size)
}

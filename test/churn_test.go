package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// usage is what a process holds.
type usage struct {
	descriptors, goroutines int
	resident                int64 // bytes
}

func (u usage) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %.1f MiB resident", u.descriptors, u.goroutines, float64(u.resident)/(1<<20))
}

func (p *program) usage(t *testing.T) usage {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Fatal("needs /proc")
	}
	dir := fmt.Sprint("/proc/", p.PID())
	files, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	u := usage{descriptors: len(files)}
	pages := strings.Fields(string(readFile(t, dir+"/statm")))[1]
	n, err := strconv.ParseInt(pages, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	u.resident = n * int64(os.Getpagesize())
	_, metrics, err := p.get(t.Context(), "/metrics", p.bearer(t))
	if err != nil {
		t.Fatal(err)
	}
	u.goroutines = int(metric(t, metrics, "go_goroutines"))
	return u
}

// flat runs rounds and checks that after the first few, which warm up, the process holds no
// more and more.
func (p *program) flat(t *testing.T, warmUp, rounds int, round func(n int)) {
	t.Helper()
	var before, now usage
	for n := range warmUp + rounds {
		round(n)
		now = p.usage(t)
		t.Logf("round %d: %s", n, now)
		if n < warmUp && now.resident > before.resident {
			before = now
		}
	}
	// Garbage is not collected at once, and a connection may be one more or one less.
	if now.descriptors > before.descriptors+5 || now.goroutines > before.goroutines+20 || now.resident > before.resident*5/4+16<<20 {
		t.Errorf("after %d rounds: %s; after %d rounds to warm up: %s", rounds, now, warmUp, before)
	}
}

// each calls do with 0 to n-1, some at once.
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

// Tokens come, expire and are deleted, machines ask for certificates, and kubejoin needs no more
// for it in the end than after a while: 400 tokens and 150 certificates in each of 8 rounds.
func TestChurn(t *testing.T) {
	t.Parallel()
	const tokensARound, requestsARound = 400, 150
	s := newSite(t, cluster.Options{})
	secrets := s.Client().CoreV1().Secrets("kube-system")
	requests := s.Client().CertificatesV1().CertificateSigningRequests()
	asking := machine(t, s.Cluster)
	s.flat(t, 3, 5, func(round int) {
		machine(t, s.Cluster) // all tokens are deleted after each round, its own too
		expires := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339)
		each(tokensARound, func(i int) {
			token := tokens.Generate()
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
			if err := request(t.Context(), asking, name, certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprintf("worker-%d-%d", round, i)); err != nil {
				t.Error(err)
			}
		})
		s.join(t, "?ttl=1h")
		wait(t, "certificates", func() error {
			list, err := requests.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, r := range list.Items {
				if len(r.Status.Certificate) == 0 {
					return fmt.Errorf("%s has none", r.Name)
				}
			}
			return nil
		})
		all := metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)}
		wait(t, "tokens to expire", func() error {
			list, err := secrets.List(t.Context(), all)
			if err == nil && len(list.Items) > tokensARound/2+2 { // and those of the join command and of the machines
				err = fmt.Errorf("%d tokens are left", len(list.Items))
			}
			return err
		})
		if err := errors.Join(
			secrets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, all),
			requests.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}),
		); err != nil {
			t.Fatal(err)
		}
		wait(t, "signatures to go", func() error {
			if n := len(s.data(t)); n != 1 {
				return fmt.Errorf("%d keys in cluster-info, want the kubeconfig alone", n)
			}
			return nil
		})
	})
}

// The same standalone: 500 join commands in each of 8 rounds, whose tokens expire. The file
// grows no more, either.
func TestStandaloneChurn(t *testing.T) {
	t.Parallel()
	const tokensARound = 500
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir, "--user-qps=0") // one user makes them all
	bearer := p.bearer(t)
	var size []int64
	p.flat(t, 3, 5, func(int) {
		each(tokensARound, func(int) {
			if err := p.post(t.Context(), "/v1/token/print-join-command?ttl=2s", bearer); err != nil {
				t.Error(err)
			}
		})
		wait(t, "tokens to expire", func() error {
			_, body, err := p.get(t.Context(), discoveryPath, "")
			if err == nil && strings.Contains(body, clusterinfo.SignaturePrefix) {
				err = errors.New("cluster-info has signatures")
			}
			return err
		})
		info, err := os.Stat(filepath.Join(dataDir, "kubejoin.db"))
		if err != nil {
			t.Fatal(err)
		}
		size = append(size, info.Size())
	})
	if first, last := size[2], size[len(size)-1]; last > 2*first {
		t.Errorf("kubejoin.db has %d bytes, and had %d after the rounds to warm up", last, first)
	}
	t.Logf("kubejoin.db after each round: %d bytes", size)
}

func (p *program) post(ctx context.Context, path, bearer string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.address+path, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+bearer)
	answer, err := p.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s", answer.Status, body)
	}
	return err
}

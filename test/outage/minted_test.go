package outage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// minted records which tokens must exist after requests for join commands.
type minted struct {
	mu       sync.Mutex
	known    map[string]tokens.Token // tokens that must exist, by ID
	named    map[string]bool         // IDs of tokens that may exist, according to a problem
	statuses map[int]int
}

// errTryAgain means that the client may repeat the request.
var errTryAgain = errors.New("no join command yet")

var idInProblem = regexp.MustCompile(`[Tt]oken ([a-z0-9]{6}) (could not be deleted|was stored nevertheless)`)

// answer records a response to print-join-command.
func (m *minted) answer(status int, body string) (tokens.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known, m.named, m.statuses = map[string]tokens.Token{}, map[string]bool{}, map[int]int{}
	}
	m.statuses[status]++
	switch status {
	case http.StatusOK:
		args, err := cluster.JoinArgs(body)
		if err != nil {
			return tokens.Token{}, err
		}
		token, err := tokens.Parse(args[slices.Index(args, "--token")+1])
		if err == nil {
			m.known[token.ID()] = token
		}
		return token, err
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if left := idInProblem.FindStringSubmatch(body); left != nil {
			m.named[left[1]] = true
		}
		return tokens.Token{}, fmt.Errorf("%w: %d %s", errTryAgain, status, body)
	}
	return tokens.Token{}, fmt.Errorf("got %d: %s, want 200, 503 or 504", status, body)
}

// gone records that a token was deleted or will expire.
func (m *minted) gone(t tokens.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, t.ID())
}

// ask requests a join command from a running kubejoin until it gets one.
func (m *minted) ask(ctx context.Context, p *harness.Program, bearer string) (tokens.Token, error) {
	for {
		status, body, err := p.Do(ctx, http.MethodPost, "/v1/token/print-join-command", bearer)
		if err != nil {
			return tokens.Token{}, err
		}
		if token, err := m.answer(status, body); err == nil || !errors.Is(err, errTryAgain) || ctx.Err() != nil {
			return token, err
		}
	}
}

// check waits until the cluster has exactly the known tokens, and possibly the named tokens, and cluster-info has valid
// signatures of exactly these tokens.
func (m *minted) check(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	harness.Wait(t, "tokens and signatures", func() error {
		list, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
		if err != nil {
			return err
		}
		info, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(t.Context(), clusterinfo.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		var errs []error
		existing := map[string]bool{}
		for _, s := range list.Items {
			if string(s.Data["usage-bootstrap-signing"]) != "true" {
				continue // a token for the test's own machines
			}
			id := string(s.Data["token-id"])
			token, err := tokens.Parse(id + "." + string(s.Data["token-secret"]))
			if err != nil {
				return err
			}
			existing[id] = true
			if !m.named[id] && m.known[id] != token {
				errs = append(errs, fmt.Errorf("token %s exists, but no response contained or named it", id))
			}
			if err := clusterinfo.Verify([]byte(info.Data[clusterinfo.KubeconfigKey]), info.Data[clusterinfo.SignatureKey(id)], token); err != nil {
				errs = append(errs, fmt.Errorf("signature of token %s: %w", id, err))
			}
		}
		for id := range m.known {
			if !existing[id] {
				errs = append(errs, fmt.Errorf("token %s was in a response, but does not exist", id))
			}
		}
		for key := range info.Data {
			if id, found := strings.CutPrefix(key, clusterinfo.SignaturePrefix); found && !existing[id] {
				errs = append(errs, fmt.Errorf("cluster-info has a signature of token %s, which does not exist", id))
			}
		}
		return errors.Join(errs...)
	})
}

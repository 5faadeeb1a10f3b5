package test

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
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// minted is what the answers to those who asked for join commands have said.
type minted struct {
	mu       sync.Mutex
	known    map[string]tokens.Token // handed out, and not to be gone, by ID
	named    map[string]bool         // IDs that an answer said may be left
	statuses map[int]int
}

// errTryAgain is an answer that says so honestly.
var errTryAgain = errors.New("no join command yet")

var idInProblem = regexp.MustCompile(`[Tt]oken ([a-z0-9]{6}) (could not|have been)`)

// answer notes an answer to print-join-command.
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
	return tokens.Token{}, fmt.Errorf("answer %d: %s", status, body)
}

// gone notes that a token was deleted, or will be soon.
func (m *minted) gone(t tokens.Token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, t.ID())
}

// ask asks a running kubejoin until there is a join command.
func (m *minted) ask(ctx context.Context, p *program, bearer string) (tokens.Token, error) {
	for {
		status, body, err := p.do(ctx, http.MethodPost, "/v1/token/print-join-command", bearer)
		if err != nil {
			return tokens.Token{}, err
		}
		if token, err := m.answer(status, body); err == nil || !errors.Is(err, errTryAgain) || ctx.Err() != nil {
			return token, err
		}
	}
}

// check waits until the tokens in the cluster are those that were handed out and perhaps those
// that were named, and cluster-info has the valid signatures of exactly these.
func (m *minted) check(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	wait(t, "tokens and signatures", func() error {
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
		there := map[string]bool{}
		for _, s := range list.Items {
			if string(s.Data["usage-bootstrap-signing"]) != "true" {
				continue // what machines of the test ask with
			}
			id := string(s.Data["token-id"])
			token, err := tokens.Parse(id + "." + string(s.Data["token-secret"]))
			if err != nil {
				return err
			}
			there[id] = true
			if !m.named[id] && m.known[id] != token {
				errs = append(errs, fmt.Errorf("token %s is there, and nobody knows of it", id))
			}
			if err := clusterinfo.Verify([]byte(info.Data[clusterinfo.KubeconfigKey]), info.Data[clusterinfo.SignatureKey(id)], token); err != nil {
				errs = append(errs, fmt.Errorf("signature of token %s: %w", id, err))
			}
		}
		for id := range m.known {
			if !there[id] {
				errs = append(errs, fmt.Errorf("token %s was handed out and is not there", id))
			}
		}
		for key := range info.Data {
			if id, found := strings.CutPrefix(key, clusterinfo.SignaturePrefix); found && !there[id] {
				errs = append(errs, fmt.Errorf("a signature of token %s, which is not there", id))
			}
		}
		return errors.Join(errs...)
	})
}

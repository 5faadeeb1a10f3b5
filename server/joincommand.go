package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// printJoinCommand mints a token, waits until its signature can be read by a joining node, and
// answers the command to join with. A token that nobody signs is deleted again.
func (h *handler) printJoinCommand(r *http.Request) (answer, error) {
	var asked api.TokenSpec
	if err := readRequest(r, &asked); err != nil {
		return answer{}, err
	}
	record, err := h.newRecord(r.Context(), asked, tokens.Generate(), time.Now())
	if err != nil {
		return answer{}, err
	}
	if !record.Signing || !record.Authentication {
		return answer{}, badField("usages", "a join command needs a token for signing and authentication")
	}
	a, err := h.mint(r, record)
	if err != nil {
		h.joinCommands.WithLabelValues("failed").Inc()
		return answer{}, err
	}
	h.joinCommands.WithLabelValues("ok").Inc()
	if advice := h.advice(r.Context(), record); len(advice) > 0 {
		a.header["Warning"] = warningHeader(advice)
	}
	return a, nil
}

// warningHeader is how kube-apiserver warns, too: RFC 7234, section 5.5.
func warningHeader(warnings []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	list := make([]string, len(warnings))
	for i, w := range warnings {
		list[i] = `299 - "` + escape.Replace(w) + `"`
	}
	return strings.Join(list, ", ")
}

// signed waits for a token's signature until wait ends, which is after so long, and makes the
// command from the cluster-info that carries it.
func (h *handler) signed(wait, client context.Context, t tokens.Token, after time.Duration) (string, error) {
	kubeconfig, err := h.ClusterInfo.WaitSigned(wait, t)
	if err != nil {
		if client.Err() != nil {
			return "", fmt.Errorf("the client left: %w", err)
		}
		if wait.Err() == nil {
			return "", err
		}
		why := "what should be signing is " + h.SignedBy
		if p := h.ranOut(); p != nil {
			why = p.Detail
		}
		p := newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned,
			"no signature of the new token appeared in cluster-info within %s; %s", after, why)
		p.cause = err
		return "", p
	}
	return h.joinCommand(kubeconfig, t)
}

// joinCommand is the command to join with a token, of what a kubeconfig says.
func (h *handler) joinCommand(kubeconfig []byte, t tokens.Token) (string, error) {
	known, err := h.read(kubeconfig)
	if err != nil {
		return "", err
	}
	return clusterinfo.JoinCommand{Endpoint: known.endpoint, Token: t, Pins: known.pins}.Reveal()
}

// A target is what a join command says of a kubeconfig.
type target struct {
	kubeconfig []byte
	endpoint   string
	pins       []string
}

// read gives the target, and remembers the last one: a kubeconfig hardly ever changes.
func (h *handler) read(kubeconfig []byte) (*target, error) {
	if last := h.target.Load(); last != nil && bytes.Equal(last.kubeconfig, kubeconfig) {
		return last, nil
	}
	api, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, malformed(err)
	}
	t := &target{kubeconfig: bytes.Clone(kubeconfig), endpoint: h.Advertise, pins: clusterinfo.Pins(cas)}
	if t.endpoint == "" {
		if t.endpoint, err = hostPort(api); err != nil {
			return nil, err
		}
	}
	h.target.Store(t)
	return t, nil
}

// hostPort is what a join command names for a server's URL.
func hostPort(server string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("server in cluster-info: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

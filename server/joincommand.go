package server

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// printJoinCommand mints a token, waits until its signature can be read by a joining node, and
// answers the command to join with. A token that nobody signs is deleted again.
func (h *handler) printJoinCommand(r *http.Request) (answer, error) {
	var asked api.PrintJoinCommand
	if err := readRequest(r, &asked); err != nil {
		return answer{}, err
	}
	format, err := findJoinFormat(asked.Format)
	if err != nil {
		return answer{}, badField("format", "%v", err)
	}
	record, err := h.newRecord(r, asked.TokenSpec, tokens.Generate(), time.Now())
	if err != nil {
		return answer{}, err
	}
	if !record.Signing || !record.Authentication {
		return answer{}, badField("usages", "a join command needs a token for signing and authentication")
	}
	a, err := h.mint(r, record, format)
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

// signed waits for a token's signature until wait ends, which is after so long, or the token does,
// and says how to join by the cluster-info that carries it.
func (h *handler) signed(wait, client context.Context, record tokens.Record, after time.Duration) (joinformat.Join, error) {
	t := record.Token
	if !record.Expires.IsZero() {
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(wait, record.Expires)
		defer cancel()
	}
	kubeconfig, err := h.ClusterInfo.WaitSigned(wait, t)
	if err != nil {
		if client.Err() != nil {
			return joinformat.Join{}, fmt.Errorf("the client left: %w", err)
		}
		if record.Expired(time.Now()) {
			p := newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned,
				"the new token expired at %s, before its signature appeared in cluster-info; ask for one that lives longer", record.Expires.UTC().Format(time.RFC3339))
			p.cause = err
			return joinformat.Join{}, p
		}
		if wait.Err() == nil {
			return joinformat.Join{}, err
		}
		why := "what should be signing is " + h.SignedBy
		if p := h.ranOut(); p != nil {
			why = p.Detail
		}
		p := newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned,
			"no signature of the new token appeared in cluster-info within %s; %s", after, why)
		p.cause = err
		return joinformat.Join{}, p
	}
	return h.join(kubeconfig, t)
}

// join says how to join with a token, of what a kubeconfig says.
func (h *handler) join(kubeconfig []byte, t tokens.Token) (joinformat.Join, error) {
	known, err := h.read(kubeconfig)
	if err != nil {
		return joinformat.Join{}, err
	}
	j := known.join
	j.Token = t
	return j, nil
}

func joinLine(j joinformat.Join) (string, error) {
	line, err := j.Line()
	return strings.TrimSpace(string(line)), err
}

// A target is what a kubeconfig says of how to join.
type target struct {
	kubeconfig []byte
	join       joinformat.Join // but for the token
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
	t := &target{kubeconfig: bytes.Clone(kubeconfig), join: joinformat.Join{Endpoint: h.Advertise, Server: api, CAs: cas}}
	if t.join.Endpoint == "" {
		if t.join.Endpoint, err = clusterinfo.Endpoint(api); err != nil {
			return nil, err
		}
	}
	h.target.Store(t)
	return t, nil
}

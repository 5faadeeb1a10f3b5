package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// printJoinCommand creates a token, waits until its signature is in cluster-info, and returns the join
// command. If no signature appears, it deletes the token.
func (h *handler) printJoinCommand(r *call) (response, error) {
	var req api.PrintJoinCommand
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	format, err := joinformat.FindFormat(req.Format)
	if err != nil {
		return response{}, badField("format", "%v", err)
	}
	if req.RejoinURL != "" {
		if err := joinformat.CheckRejoinURL(req.RejoinURL); err != nil {
			return response{}, badField("rejoinURL", "%v", err)
		}
		if req.Format != api.FormatScript {
			return response{}, badField("rejoinURL", "only the format %s can install what a rejoin needs", api.FormatScript)
		}
	}
	if err := h.forControlPlane(r, &req); err != nil {
		return response{}, err
	}
	record, err := h.newRecord(r, req.TokenSpec, tokens.Generate(), time.Now())
	if err != nil {
		return response{}, err
	}
	if !record.Signing || !record.Authentication {
		return response{}, badField("usages", "a join command needs a token for signing and authentication")
	}
	var a response
	if err = h.checkClusterInfo(r.Context(), record); err == nil {
		a, err = h.mint(r, record, format, req)
	}
	if err != nil {
		h.joinCommands.WithLabelValues("failed").Inc()
		return response{}, err
	}
	h.joinCommands.WithLabelValues("ok").Inc()
	return a, nil
}

// warn adds a Warning header as kube-apiserver sends it (RFC 7234, section 5.5), unless there are no warnings.
func (a *response) warn(warnings []string) {
	if len(warnings) == 0 {
		return
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	list := make([]string, len(warnings))
	for i, w := range warnings {
		list[i] = `299 - "` + escape.Replace(w) + `"`
	}
	if a.header == nil {
		a.header = map[string]string{}
	}
	a.header["Warning"] = strings.Join(list, ", ")
}

// mint stores a record, waits for its signature and returns how to join with it. For a control plane it then
// uploads the certificates. It takes SignTimeout at most, plus withdrawTimeout to delete the token after a
// failure.
func (h *handler) mint(r *call, record tokens.Record, format joinformat.Format, req api.PrintJoinCommand) (response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), h.SignTimeout)
	defer cancel()
	start := time.Now()
	record, err := h.create(ctx, record, false)
	if quotaProblem := (*problem)(nil); errors.As(err, &quotaProblem) {
		return response{}, quotaProblem
	}
	if err != nil {
		p := newProblem(http.StatusServiceUnavailable, "token-not-stored", "the token could not be stored; retry")
		p.cause, p.retryAfter = err, retryAfter
		if refused(err) {
			return response{}, p
		}
		return response{}, h.withdraw(context.WithoutCancel(ctx), record, p)
	}
	r.log(slog.String("token", record.Token.ID()))
	created := time.Now()

	join, err := h.signed(ctx, r.Context(), record, h.SignTimeout)
	signed := time.Now()
	var warnings []string
	join.RejoinURL = req.RejoinURL
	if err == nil && req.ControlPlane {
		warnings, err = h.upload(ctx, r, &join)
	}
	var body []byte
	if err == nil {
		warnings = append(warnings, h.advice(r.Context(), record)...)
		join.Expires, join.Warnings = record.Expires, warnings
		body, err = format.Write(join)
	}
	if err != nil {
		// Nobody has received the secret. Delete the token, also if the client has disconnected.
		return response{}, h.withdraw(context.WithoutCancel(ctx), record, err)
	}
	header := map[string]string{
		"Server-Timing": fmt.Sprintf(`create;dur=%.1f, sign;dur=%.1f;desc="until the signature was live"`, milliseconds(created.Sub(start)), milliseconds(signed.Sub(created))),
	}
	a := response{contentType: format.ContentType, header: header, body: body}
	a.warn(warnings)
	return a, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// signed waits for a token's signature until wait ends or the token expires. It returns how to join by the
// signed cluster-info. client is the context of the request, and after is the timeout of wait, for messages.
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
			return joinformat.Join{}, fmt.Errorf("the client disconnected: %w", err)
		}
		if record.Expired(time.Now()) {
			p := newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned,
				"the new token expired at %s, before its signature appeared in cluster-info; request a longer ttl", record.Expires.UTC().Format(time.RFC3339))
			p.cause = err
			return joinformat.Join{}, p
		}
		if wait.Err() == nil {
			return joinformat.Join{}, err
		}
		why := "the signer should be " + h.SignedBy
		if p := h.clusterInfoFull(); p != nil {
			why = p.Detail
		}
		p := newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned,
			"no signature of the new token appeared in cluster-info within %s; %s", after, why)
		p.cause = err
		return joinformat.Join{}, p
	}
	return h.join(kubeconfig, t)
}

// awaitSigned waits for the signature of a stored token, if it has the usage signing. It returns the join
// command, which is empty unless the token has both usages. If wait is zero it does not wait.
func (h *handler) awaitSigned(ctx context.Context, record tokens.Record, wait time.Duration) (string, error) {
	if !record.Signing || wait == 0 {
		return h.unsignedCommand(ctx, record), nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	join, err := h.signed(waiting, ctx, record, wait)
	if err == nil {
		if !record.Authentication {
			return "", nil
		}
		var command string
		if command, err = joinLine(join); err == nil {
			return command, nil
		}
	}
	var p *problem
	if !errors.As(err, &p) {
		p = newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned, "cluster-info has no signature by the new token; the signer should be %s", h.SignedBy)
		p.cause = err
	}
	p.TokenID = record.Token.ID()
	p.Detail += fmt.Sprintf(". Token %s was created nevertheless and %s", p.TokenID, lifetime(record))
	return "", p
}

// checkClusterInfo returns a problem if no machine can join by the kubeconfig in cluster-info, for a token that would
// sign it. A missing kubeconfig is no problem here: the signer may add one.
func (h *handler) checkClusterInfo(ctx context.Context, record tokens.Record) error {
	if !record.Signing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	kubeconfig, err := h.ClusterInfo.Config(ctx)
	if err != nil || len(kubeconfig) == 0 {
		return nil
	}
	_, err = h.read(kubeconfig)
	return err
}

// unsignedCommand returns the join command of a token without waiting for its signature. It is empty unless
// the token has both usages and cluster-info can be read.
func (h *handler) unsignedCommand(ctx context.Context, record tokens.Record) string {
	if !record.Signing || !record.Authentication {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	data, err := h.clusterInfo(ctx)
	if err != nil {
		return ""
	}
	join, err := h.join([]byte(data["kubeconfig"]), record.Token)
	if err != nil {
		return ""
	}
	command, _ := joinLine(join) // empty with an error
	return command
}

// join returns how to join with a token, by a kubeconfig.
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

// A target is how to join by a kubeconfig.
type target struct {
	kubeconfig []byte
	join       joinformat.Join // without the token
}

// read returns the target of a kubeconfig. It caches the last one, because the kubeconfig rarely changes.
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
			return nil, malformed(fmt.Errorf("no join command can name its server: %w; give --advertise or --api-server to kubejoin serve", err))
		}
	}
	h.target.Store(t)
	return t, nil
}

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	kjson "sigs.k8s.io/json"
)

// joinRequest is what may be said of a token that is to be made, as query parameters or as a
// JSON body.
type joinRequest struct {
	// TTL is a Go duration; "0" is for ever, and nothing is tokens.DefaultTTL.
	TTL *string `json:"ttl"`
	// Description is for people.
	Description *string `json:"description"`
}

// MaxTTL is the longest time that a token may live, short of for ever.
const MaxTTL = 10 * 365 * 24 * time.Hour

// printJoinCommand mints a token, waits until its signature can be read by a joining node, and
// answers the command to join with. A token that nobody signs is deleted again.
func (h *handler) printJoinCommand(r *http.Request) (answer, error) {
	record, err := newRecord(r, time.Now())
	if err != nil {
		return answer{}, err
	}
	a, err := h.mint(r, record)
	if err != nil {
		h.joinCommands.WithLabelValues("failed").Inc()
		return answer{}, err
	}
	h.joinCommands.WithLabelValues("ok").Inc()
	return a, nil
}

// newRecord is the token that a request asks for.
func newRecord(r *http.Request, now time.Time) (tokens.Record, error) {
	asked, err := readJoinRequest(r)
	if err != nil {
		return tokens.Record{}, err
	}
	lifetime := tokens.DefaultTTL
	if asked.TTL != nil {
		lifetime, err = time.ParseDuration(*asked.TTL)
		switch {
		case err != nil:
			return tokens.Record{}, badField("ttl", "%.40q is not a duration; want one such as 2h or 30m, or 0 for ever", *asked.TTL)
		case lifetime != 0 && (lifetime < time.Second || lifetime > MaxTTL):
			return tokens.Record{}, badField("ttl", "%s given; want 1s to %s, or 0 for ever", lifetime, MaxTTL)
		}
	}
	record := tokens.NewRecord(tokens.Generate(), lifetime, now)
	if asked.Description != nil {
		record.Description = *asked.Description
	}
	if err := record.Check(); err != nil { // all but the description is ours
		p := newProblem(http.StatusBadRequest, "invalid-field", "%v", err)
		p.Field = "description"
		return record, p
	}
	return record, nil
}

func readJoinRequest(r *http.Request) (joinRequest, error) {
	var asked joinRequest
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return asked, newProblem(http.StatusBadRequest, "invalid-query", "the query cannot be read: want name=value pairs, percent-encoded")
	}
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return asked, newProblem(http.StatusRequestEntityTooLarge, "body-too-large", "the body has more than %d bytes", tooLarge.Limit)
	} else if err != nil {
		return asked, newProblem(http.StatusBadRequest, "invalid-body", "the body ended early")
	}
	if len(body) > 0 {
		// What curl -d sends without a header is taken for a form by name, and is JSON in fact
		// or nothing that could be read.
		if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" && media != "application/x-www-form-urlencoded" {
			return asked, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", "want a body of application/json, or none")
		}
		// Strict: unknown and repeated fields are errors, names are case-sensitive.
		strict, err := kjson.UnmarshalStrict(body, &asked)
		if err != nil {
			return asked, newProblem(http.StatusBadRequest, "invalid-body", `the body is not a JSON object such as {"ttl": "2h", "description": "rack 7"}`)
		}
		if len(strict) > 0 {
			return asked, newProblem(http.StatusBadRequest, "invalid-body", "the body has fields that are unknown or repeated; known are ttl and description")
		}
	}
	fields := map[string]**string{"ttl": &asked.TTL, "description": &asked.Description}
	for name, values := range query {
		field, known := fields[name]
		switch {
		case !known:
			return asked, badField(fmt.Sprintf("%.40q", name), "unknown query parameter; known are ttl and description")
		case len(values) > 1 || *field != nil:
			return asked, badField(name, "given more than once")
		}
		*field = &values[0]
	}
	return asked, nil
}

// mint stores a record and answers its join command once it is signed.
func (h *handler) mint(r *http.Request, record tokens.Record) (answer, error) {
	ctx := r.Context()
	start := time.Now()
	record, err := h.create(ctx, record)
	if err != nil {
		p := newProblem(http.StatusServiceUnavailable, "token-not-stored", "the token could not be stored; try again")
		p.cause, p.retryAfter = err, retryAfter
		return answer{}, p
	}
	logAttrs(ctx, slog.String("token", record.Token.ID()))
	created := time.Now()

	command, err := h.signed(ctx, record.Token)
	if err != nil {
		// Nobody was told the secret: what is left of the token must go, also when it is the
		// client that has gone.
		return answer{}, h.withdraw(context.WithoutCancel(ctx), record, err)
	}
	return answer{
		contentType: "text/plain; charset=utf-8",
		header: map[string]string{
			"Server-Timing": fmt.Sprintf(`create;dur=%.1f, sign;dur=%.1f;desc="until the signature was live"`, milliseconds(created.Sub(start)), milliseconds(time.Since(created))),
		},
		body: []byte(command + "\n"),
	}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (h *handler) create(ctx context.Context, record tokens.Record) (tokens.Record, error) {
	for {
		stored, err := h.Tokens.Create(ctx, record)
		if !errors.Is(err, tokens.ErrExists) {
			return stored, err
		}
		// One in two billion, unless somebody has stored very many.
		record.Token = tokens.Generate()
	}
}

// signed waits for a token's signature and makes the command from the cluster-info that
// carries it.
func (h *handler) signed(ctx context.Context, t tokens.Token) (string, error) {
	wait, cancel := context.WithTimeout(ctx, h.SignTimeout)
	defer cancel()
	kubeconfig, err := h.ClusterInfo.WaitSigned(wait, t)
	if err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("the client left: %w", err)
		}
		if wait.Err() == nil {
			return "", err
		}
		p := newProblem(http.StatusGatewayTimeout, "token-not-signed",
			"no signature of the new token appeared in cluster-info within %s; what should be signing is %s", h.SignTimeout, h.SignedBy)
		p.cause = err
		return "", p
	}
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
		return nil, newProblem(http.StatusInternalServerError, "malformed-cluster-info", "the kubeconfig in cluster-info is of no use to a joining node: %v", err)
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

// withdraw deletes a token that is not handed out, and returns what the client is told.
func (h *handler) withdraw(ctx context.Context, record tokens.Record, why error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := h.delete(ctx, record)
	var p *problem
	if !errors.As(why, &p) {
		p = newProblem(http.StatusInternalServerError, "internal", "the join command could not be made; kubejoin's log has the reason under this request ID")
		p.cause = why
	}
	if err == nil {
		p.Detail += fmt.Sprintf(". Token %s was deleted again", record.Token.ID())
		return p
	}
	p.Detail += fmt.Sprintf(". Token %s could not be deleted again: it was told to nobody and %s", record.Token.ID(), lifetime(record))
	p.cause = errors.Join(p.cause, err)
	return p
}

func lifetime(r tokens.Record) string {
	if r.Expires.IsZero() {
		return "stays until it is deleted"
	}
	return "ends at " + r.Expires.UTC().Format(time.RFC3339)
}

// delete removes a record, also if it has changed meanwhile, unless it is another one now. It
// tries until ctx ends.
func (h *handler) delete(ctx context.Context, record tokens.Record) error {
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		err := h.Tokens.Delete(ctx, record)
		if errors.Is(err, tokens.ErrConflict) {
			var now tokens.Record
			if now, err = h.Tokens.Get(ctx, record.Token.ID()); err == nil {
				if now.UID != record.UID {
					return nil
				}
				record, wait = now, 50*time.Millisecond
				continue
			}
		}
		if err == nil || errors.Is(err, tokens.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete token %s: %w", record.Token.ID(), err)
		case <-time.After(wait):
		}
	}
}

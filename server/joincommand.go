package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// signed waits for a token's signature until wait ends, and makes the command from the
// cluster-info that carries it.
func (h *handler) signed(wait, client context.Context, t tokens.Token) (string, error) {
	kubeconfig, err := h.ClusterInfo.WaitSigned(wait, t)
	if err != nil {
		if client.Err() != nil {
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

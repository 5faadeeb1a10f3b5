package signerd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	kjson "sigs.k8s.io/json"
)

const (
	// maxInFlight is the maximum number of orders that are signed at once. One requester gets at most half, as many
	// as two replicas of kubejoin send.
	maxInFlight = 128
	// orderTimeout limits the time for one order.
	orderTimeout = 10 * time.Second
	// maxDetail limits the text of a problem.
	maxDetail = 1000
	// readQPS and readBurst limit requests other than orders. kubejoin reads the CA every 15 seconds.
	readQPS, readBurst = 5, 50
	// overRate is the delay of the response to a request over the rate. So the number of connections limits the cost of
	// such requests.
	overRate = time.Second
)

// A handler serves the requests of the requesters in the policy.
type handler struct {
	policy func() *config.Policy
	ca     func() *signer.CA
	// authority signs orders, and records issued and refused ones.
	authority *signer.Authority
	// requester returns the requester that sent a request, or an error.
	requester func(r *http.Request, p *config.Policy) (config.Requester, error)
	metrics   http.Handler
	log       *slog.Logger
	orders    *prometheus.CounterVec
	now       func() time.Time

	slots *httplimit.Shares // the holder is the name of a requester
	seen  *replays
	rates rates // limits orders
	reads rates // limits other requests
	warn  rate.Sometimes
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, err := web.Recover(func() (web.Response, error) { return h.serve(w, r) })
	if err != nil {
		p := web.ProblemOf(err)
		if p.Status >= http.StatusInternalServerError {
			h.log.Error("request failed", "path", safetext.Text(r.URL.Path, safetext.MaxName), "status", p.Status, "error", err)
		}
		a = p.Response("", false)
	}
	a.Write(w, r)
}

func (h *handler) serve(w http.ResponseWriter, r *http.Request) (web.Response, error) {
	policy := h.policy()
	from, err := h.requester(r, policy)
	if err != nil {
		h.refuse(r.RemoteAddr, err)
		w.Header().Set("Connection", "close") // so the next request needs a new connection, and connections are rate-limited
		return web.Response{}, web.NewProblem("forbidden", "the policy names no such requester")
	}
	route := r.Method + " " + r.URL.Path
	if route == "POST "+remote.SignPath {
		r.Body = http.MaxBytesReader(w, r.Body, remote.MaxOrder)
		certificate, err := h.sign(r, from)
		return web.Response{ContentType: "application/pem-certificate-chain", Body: certificate}, err
	}
	if p := h.limit(r, &h.reads, config.Requester{Name: from.Name, QPS: readQPS, Burst: readBurst}); p != nil {
		return web.Response{}, p
	}
	switch route {
	case "GET " + remote.CAPath:
		return web.Response{ContentType: "application/pem-certificate-chain", Body: pemfile.Encode(h.ca().Certificate())}, nil
	case "GET /metrics":
		return web.Response{Serve: h.metrics}, nil
	}
	return web.Response{}, web.NewProblem("not-found", "want POST %s, GET %s or GET /metrics", remote.SignPath, remote.CAPath)
}

// refuse counts and logs a request from a requester that is not in the policy.
func (h *handler) refuse(from string, why error) {
	h.orders.WithLabelValues("unknown_requester").Inc()
	h.warn.Do(func() { h.log.Warn("requester refused", "from", from, "error", why) })
}

// limit takes one request from the requester's rate. If none is left, it waits for overRate and returns a problem.
func (h *handler) limit(r *http.Request, left *rates, from config.Requester) *web.Problem {
	if left.take(from, h.now()) {
		return nil
	}
	select {
	case <-time.After(overRate):
	case <-r.Context().Done():
	}
	return web.TooMany("requester %q has used up its rate of %g requests a second", from.Name, from.QPS)
}

// sign signs an order, and counts it. It charges the rate before it reads or verifies anything, so refused orders are also
// charged. This limits how fast the record grows.
func (h *handler) sign(r *http.Request, from config.Requester) (certificate []byte, err error) {
	result := "failed"
	defer func() { h.orders.WithLabelValues(result).Inc() }()
	if p := h.limit(r, &h.rates, from); p != nil {
		result = "over_rate"
		return nil, p
	}
	var order signer.Order
	body, err := web.ReadAll(r) // read before taking a slot: a client that sends slowly would hold it
	if err == nil {
		if !h.slots.Take(from.Name) {
			result = "overloaded"
			return nil, unavailable(nil, "too many orders are in flight; retry")
		}
		defer h.slots.Free(from.Name)
		order, err = h.read(body, from)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
		defer cancel()
		certificate, err = h.authority.SignOrder(ctx, from.Signers[order.Request.SignerName], order)
	} else if no := approval.Refused(err); no != nil && order.Request.SignerName != "" {
		err = h.authority.Refuse(r.Context(), order.Request, no)
	}
	var p *web.Problem
	switch {
	case err == nil:
		result = "signed"
		h.log.Info("certificate signed", "requester", from.Name, "signer", order.Request.SignerName, "subject", order.Request.CSR.Subject.String())
		return certificate, nil
	case errors.As(err, &p):
		if result = "invalid"; p.Status == http.StatusConflict {
			result = "not_new"
		}
		h.log.Warn("order refused", "requester", from.Name, "status", p.Status, "message", p.Detail)
		return nil, err
	case approval.Refused(err) != nil:
		result = "refused"
		message := approval.Refused(err).Message
		h.log.Warn("order refused", "requester", from.Name, "signer", order.Request.SignerName, "message", message)
		return nil, web.NewProblem("order-refused", "%.*s", maxDetail, message)
	}
	return nil, unavailable(err, "the signer process cannot sign now; retry, and see its log")
}

func unavailable(cause error, text string) *web.Problem {
	p := web.NewProblem("unavailable", "%s", text)
	p.Cause, p.RetryAfter = cause, time.Second
	return p
}

// read parses an order. It returns an error if the order is not new, or if its requester may not use the signer. If the
// order could be parsed, read returns it even with an error.
func (h *handler) read(body []byte, from config.Requester) (signer.Order, error) {
	var order remote.Order
	if strict, err := kjson.UnmarshalStrict(body, &order); err != nil || len(strict) > 0 {
		return signer.Order{}, web.NewProblem("invalid-body", "the order is not valid: want the JSON fields of this version of kubejoin, each once")
	}
	made, err := order.Parse(from.Name)
	if err != nil {
		return made, err
	}
	same, err := json.Marshal(order) // so that white space and the order of fields do not matter
	if err != nil {
		return made, err
	}
	if p := h.seen.take(same, made.Made, h.now()); p != nil {
		return made, p
	}
	if _, found := from.Signers[order.SignerName]; !found {
		return made, approval.RefuseFor(approval.ReasonNotPermitted, "the policy allows requester %.100q no certificate of signer %.100q", from.Name, order.SignerName)
	}
	return made, nil
}

// rates limits each requester. Only requesters in the policy have an entry, so there are few.
type rates struct {
	mu   sync.Mutex
	left map[string]*rate.Limiter
}

// take takes one request from the requester's rate, and reports whether one was left.
func (l *rates) take(q config.Requester, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left == nil {
		l.left = map[string]*rate.Limiter{}
	}
	limiter := l.left[q.Name]
	if limiter == nil {
		limiter = rate.NewLimiter(rate.Limit(q.QPS), q.Burst)
		l.left[q.Name] = limiter
	}
	if limiter.Limit() != rate.Limit(q.QPS) || limiter.Burst() != q.Burst { // the policy has changed
		limiter.SetLimitAt(now, rate.Limit(q.QPS))
		limiter.SetBurstAt(now, q.Burst)
	}
	return limiter.AllowN(now, 1)
}

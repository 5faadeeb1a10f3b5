package server

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

const certificatePath = "/v1/certificate"

// certificateTimeout limits the time to decide and sign a request.
const certificateTimeout = 30 * time.Second

// Lifetimes that a client may request: the limits of spec.expirationSeconds of a CertificateSigningRequest, a
// 32-bit number.
const (
	minExpiration = 10 * time.Minute
	maxExpiration = math.MaxInt32 * time.Second
)

// Certificates issues certificates without a CertificateSigningRequest object, by the same rules, claims and
// durations. For bootstrap tokens and nodes, the Authority approves requests. Other users approve their own
// requests if they have the permission "sign" on "signers" of certificates.k8s.io, by Callers.Authorize.
//
// It also applies the checks of kube-apiserver for such objects, see [approval.CheckAdmission].
type Certificates struct {
	// Authority decides about requests, claims node names and signs. It is required.
	Authority *signer.Authority
	// ClientCertificate authenticates nodes and other users by client certificate, if the request has no
	// Authorization header. It is usually made by [auth.ClientCertificate]. Nil accepts no certificate.
	ClientCertificate auth.Authenticate
	// Warning returns a warning for the user who gets a certificate of a signer, or an empty text. Nil never warns.
	Warning func(ctx context.Context, signer string) string
	// RejoinEvent, if set, is called with reason "Rejoined" when a node has rejoined, and with "KeyBound" when it has
	// bound a key. It is also called for each refusal of a node that has proven a key.
	RejoinEvent func(node string, refused bool, reason, message string)
	// Now is the clock for the expiration of bootstrap tokens and client certificates; nil is time.Now.
	Now func() time.Time
}

// certificate serves POST /v1/certificate.
func (h *handler) certificate(r *call) (a web.Response, err error) {
	defer func() {
		if result := resultOf(err); result != "" {
			h.results.certificates.WithLabelValues(result).Inc()
		}
	}()
	user, rejoin, err := h.certificateUser(r)
	if err != nil {
		return web.Response{}, err
	}
	if rejoin == nil {
		err = h.identified(r, user)
	} else { // the key may not be current: only the Authority can decide that
		r.log(slog.String("user", user.Name))
		err = charged(r, user.Name, rejoin.Key)
	}
	if err != nil {
		return web.Response{}, err
	}
	request, err := h.readCertificateRequest(r, user)
	if err != nil {
		return web.Response{}, err
	}
	request.Rejoin = rejoin
	r.log(slog.String("signer", request.SignerName), slog.String("subject", safetext.Text(request.CSR.Subject.String(), safetext.MaxName)))
	ctx, cancel := context.WithTimeout(r.Context(), certificateTimeout)
	defer cancel()
	chain, err := h.issue(ctx, r, user, request)
	if rejoin != nil {
		h.rejoined(user.Name, err, "issued", codes.Rejoined.Reason(), "The machine proved with its key that it is this Node, and got another certificate.")
	}
	if err != nil {
		if p := (*web.Problem)(nil); errors.As(err, &p) && p.Reason == signer.ReasonTooManyCertificates {
			r.limits.TooManyCertificates(user.Name)
		}
		return web.Response{}, err
	}
	r.user = user
	r.log(slog.String("serial", serialOf(chain)))
	a = web.Response{ContentType: "application/pem-certificate-chain", Body: chain} // RFC 8555, section 9.1
	if h.Certificates.Warning != nil {
		if text := h.Certificates.Warning(ctx, request.SignerName); text != "" {
			a.Warn([]string{text})
		}
	}
	return a, nil
}

// serialOf returns the serial number of the first certificate of a chain, for the log.
func serialOf(chain []byte) string {
	certs := pemfile.Presented(chain)
	if len(certs) == 0 {
		return ""
	}
	return certs[0].SerialNumber.Text(16)
}

// resultOf returns the result of a request for the metric kubejoin_http_certificates_total. It is empty for
// requests that are unauthenticated or malformed, which only kubejoin_http_requests_total counts. So
// "failed" is always a failure of the server.
func resultOf(err error) string {
	var p *web.Problem
	switch {
	case err == nil:
		return "issued"
	case errors.As(err, &p) && p.Named(api.ProblemCertificateRefused):
		return "refused"
	case p != nil && p.Named(api.ProblemCertificateNotPermitted):
		return "not_permitted"
	case p != nil && p.Named(api.ProblemCertificateWaits) && (p.Cause == nil || errors.Is(p.Cause, context.Canceled)):
		// The request has to wait, or the client disconnected.
		return "waits"
	case p != nil && p.Reason == signer.ReasonTooManyCertificates:
		return "waits"
	case p != nil && p.Status < 500:
		return ""
	}
	return "failed"
}

// certificateUser authenticates a request to /v1/certificate or /v1/rejoin/key. No other route accepts a bootstrap
// token as a bearer token. The Rejoin is not nil if the machine has no valid certificate: bindKey refuses such a
// machine. certificateUser ignores a client certificate if the request has an Authorization header.
func (h *handler) certificateUser(r *call) (auth.User, *approval.Rejoin, error) {
	_, given := r.Header["Authorization"]
	if !given && h.Certificates.ClientCertificate != nil {
		user, err := h.Certificates.ClientCertificate(r.Request)
		var revoked *auth.Revoked
		switch {
		case err == nil:
			return user, nil, notBootstrap(user)
		case errors.As(err, &revoked):
			return auth.User{}, nil, h.unaccepted(r, err)
		case errors.Is(err, auth.ErrForbidden):
			return auth.User{}, nil, web.NewProblem("forbidden", "the user of this client certificate may not request certificates")
		case errors.Is(err, auth.ErrBadCredentials):
			user, proof, late := h.returning(r.Request)
			if late == nil {
				return user, proof, nil
			}
			if errors.Is(late, auth.ErrNoCredentials) {
				late = err
			}
			return auth.User{}, nil, unauthenticated(late)
		case !errors.Is(err, auth.ErrNoCredentials):
			return auth.User{}, nil, unauthenticated(err)
		}
	}
	user, err := h.headerUser(r, given)
	return user, nil, err
}

// headerUser authenticates the request by its Authorization header. given reports whether the request has one.
func (h *handler) headerUser(r *call, given bool) (auth.User, error) {
	bearer, err := auth.Bearer(r.Request)
	if token, notToken := tokens.Parse(bearer); err == nil && notToken == nil {
		user, why, err := h.bootstrapUser(r, token, h.Certificates.Now)
		if err != nil {
			return auth.User{}, web.NewProblem("tokens-unavailable", "the tokens cannot be read now; retry").Unavailable(err)
		}
		if why == "" {
			return user, nil
		}
		r.log(slog.String("reason", why)) // only for the operator
		if why != unknownToken {          // a bootstrap token, which Authenticate cannot accept
			return auth.User{}, unauthenticated(fmt.Errorf("%w: a bootstrap token: %s", auth.ErrBadCredentials, why))
		}
	}
	if h.Callers.Authenticate == nil {
		if !given {
			return auth.User{}, noCertificateUser()
		}
		return auth.User{}, unauthenticated(auth.ErrBadCredentials)
	}
	user, err := h.Callers.Authenticate(r.Request)
	switch {
	case errors.Is(err, auth.ErrNoCredentials):
		return auth.User{}, noCertificateUser()
	case err != nil:
		return auth.User{}, h.unaccepted(r, err)
	}
	return user, notBootstrap(user)
}

// notBootstrap returns a problem for a bootstrap token's user who did not authenticate with the token itself.
// Only authentication with the token reads its record, which has its expiry and its limit on nodes.
func notBootstrap(user auth.User) error {
	if isBootstrapUser(user) {
		return web.NewProblem("forbidden", "user %q belongs to a bootstrap token, but the request did not authenticate with that token; send the header 'Authorization: Bearer TOKEN'", user.Name)
	}
	return nil
}

func noCertificateUser() *web.Problem {
	return web.NewProblem("unauthorized", "authentication required: a joining machine sends its bootstrap token in the header 'Authorization: Bearer TOKEN' "+
		"(with curl, from a file: -H @FILE); a node presents its client certificate, which a proxy that ends TLS does not pass on")
}

// Content types of a CSR: the type of RFC 5967, common types for PEM, and the default of curl --data-binary.
var requestTypes = []string{"application/pkcs10", "application/x-pem-file", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded"}

// readCertificateRequest reads the request and sets defaults for the signer and the usages.
func (h *handler) readCertificateRequest(r *call, user auth.User) (approval.Request, error) {
	var req api.SignCertificate
	if err := web.ReadQuery(r.Request, &req); err != nil {
		return approval.Request{}, err
	}
	if r.Header.Get("Content-Type") != "" && !web.HasType(r.Request, requestTypes...) {
		return approval.Request{}, web.WrongType(r.Request, "want a certificate request in PEM with one of the content types "+strings.Join(requestTypes, ", "))
	}
	body, err := web.ReadAll(r.Request)
	if err != nil {
		return approval.Request{}, err
	}
	csr, err := pkcs10.Parse(body)
	if err != nil {
		return approval.Request{}, web.NewProblem("invalid-body", "%.500v; with curl, send the file unchanged with --data-binary @FILE", err)
	}
	request := approval.Request{
		SignerName: req.Signer, User: user.Name, UserUID: user.UID,
		Groups: append(slices.Clone(user.Groups), tokens.AuthenticatedGroup), // as kube-apiserver adds it
		Extra:  user.Extra,
		From:   remoteAddr(r), CSR: csr,
	}
	s, err := h.signerOf(&request)
	if err != nil {
		return request, err
	}
	if request.Expiration, err = expiration(req.Duration); err != nil {
		return request, err
	}
	if req.Usages == nil {
		request.Usages = usualUsages(request.SignerName, s, csr)
		return request, nil
	}
	request.Usages, err = usages(req.Usages)
	return request, err
}

// remoteAddr returns the address of the connection. It ignores proxy headers, because anyone can send them.
func remoteAddr(r *call) netip.Addr {
	from, _ := netip.ParseAddrPort(r.RemoteAddr) // zero with an error, for example on a Unix socket
	return from.Addr().Unmap()
}

// signerOf returns the requested signer. For machines it sets a default if none is given.
func (h *handler) signerOf(request *approval.Request) (signer.Signer, error) {
	var all map[string]signer.Signer
	if h.Certificates.Authority.Signers != nil {
		all = h.Certificates.Authority.Signers()
	}
	csr := request.CSR
	switch {
	case request.SignerName != "":
	case isBootstrapName(request.User):
		request.SignerName = certificates.KubeAPIServerClientKubeletSignerName
	case !approval.IsNode(request.User, request.Groups):
		return signer.Signer{}, web.BadField("signer", "none given; want one of %s", strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	case len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) > 0:
		request.SignerName = certificates.KubeletServingSignerName
	default:
		request.SignerName = certificates.KubeAPIServerClientKubeletSignerName
	}
	s, found := all[request.SignerName]
	if !found {
		return s, web.BadField("signer", "%.100q is not configured here; want one of %s", request.SignerName, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	return s, nil
}

// expiration parses a lifetime and checks kube-apiserver's bounds. It returns zero if none is given.
func expiration(req string) (time.Duration, error) {
	if req == "" {
		return 0, nil
	}
	d, err := api.ParseDuration(req)
	switch {
	case err != nil:
		return 0, web.BadField("duration", "%.40q given, %v", req, err)
	case d < minExpiration:
		return 0, web.BadField("duration", "%s given, want at least %s", d, minExpiration)
	case d > maxExpiration:
		return 0, web.BadField("duration", "%s given, want at most %s", d, maxExpiration)
	}
	return d, nil
}

// usages parses a list of usages with the checks of kube-apiserver.
func usages(req []string) ([]certificates.KeyUsage, error) {
	var list []certificates.KeyUsage
	for _, name := range req {
		u := certificates.KeyUsage(strings.TrimSpace(name))
		switch {
		case !approval.KnownUsage(u):
			return nil, web.BadField("usages", "%.40q given, want a usage that a certificate can have, such as \"digital signature\", \"key encipherment\", \"client auth\" or \"server auth\"", name)
		case slices.Contains(list, u):
			return nil, web.BadField("usages", "%q is given twice", u)
		}
		list = append(list, u)
	}
	return list, nil
}

// usualUsages returns the default usages. For the signers of Kubernetes, they are the usages that a kubelet
// requests, if the signer's profile allows them. For other signers they are all usages of the profile. Only RSA
// keys get key encipherment.
func usualUsages(name string, s signer.Signer, csr *x509.CertificateRequest) []certificates.KeyUsage {
	allowed := s.Profile().Usages
	list := signer.KubernetesUsages(name)
	if list == nil {
		list = slices.Clone(allowed)
	}
	_, isRSA := csr.PublicKey.(*rsa.PublicKey)
	return slices.DeleteFunc(list, func(u certificates.KeyUsage) bool {
		return u == certificates.UsageKeyEncipherment && !isRSA || !slices.Contains(allowed, u)
	})
}

// issue returns the signed certificate chain. The Authority approves the requests of machines. Other users
// approve their own requests, if they may sign.
func (h *handler) issue(ctx context.Context, r *call, user auth.User, request approval.Request) ([]byte, error) {
	authority := h.Certificates.Authority
	machine := isBootstrapName(user.Name) || approval.IsNode(user.Name, user.Groups)
	if !machine {
		p := h.maySigner(r, user, "sign", request.SignerName)
		// CheckAdmission refuses most subjects in system:masters, regardless of the caller's permissions.
		name := approval.SystemName(request.CSR)
		if p == nil && name != "" && approval.CheckSubject(request, approval.ReasonSubjectRestriction) == nil {
			if p = h.maySigner(r, user, "approve", request.SignerName); p != nil && p.Status == http.StatusForbidden {
				p.Detail = fmt.Sprintf("%s, which a certificate for %.100q requires, because Kubernetes reserves this name", p.Detail, safetext.Redact(name))
			}
		}
		if p != nil && p.Status == http.StatusForbidden {
			return nil, h.refuse(ctx, request, approval.ReasonNotPermitted, p)
		} else if p != nil {
			return nil, p
		}
		request.Approver = user.Name
	}
	if err := approval.CheckAdmission(request); err != nil {
		return nil, undecided(authority.Refuse(ctx, request, approval.Refused(err)))
	}
	if !machine {
		chain, err := authority.Sign(ctx, request)
		return chain, undecided(err)
	}
	chain, err := authority.Issue(ctx, request)
	if no, found := errors.AsType[*approval.Error](err); found && (no.Verdict == approval.None || no.Reason == approval.ReasonScopeNotConfigured) {
		// There is no CertificateSigningRequest object that anyone could approve later.
		p := web.NewProblem(api.ProblemCertificateNotPermitted, "no rule allows this certificate for %s: %s", user.Name, notPermitted(no, request))
		p.Reason = no.Reason
		return nil, h.refuse(ctx, request, no.Reason, p)
	}
	return chain, undecided(err)
}

// refuse records a refusal that the Authority did not record, and returns p. Without a
// CertificateSigningRequest object, only the record shows the refusal.
func (h *handler) refuse(ctx context.Context, request approval.Request, reason string, p *web.Problem) error {
	refused := &approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Reason: reason, Message: p.Detail}}
	if err := h.Certificates.Authority.Refuse(ctx, request, refused); !errors.Is(err, refused) {
		return undecided(err)
	}
	return p
}

// notPermitted returns why no rule approved the request. There is no CertificateSigningRequest object that a
// person could approve instead.
func notPermitted(no *approval.Error, r approval.Request) string {
	switch {
	case no.Reason != approval.ReasonNotRecognized:
		return no.Message
	case len(no.Evidence) == 0:
		return fmt.Sprintf("no rule of signer %s applies to subject %q with usages %s; a user who may sign for this signer can request it", r.SignerName, safetext.Text(r.CSR.Subject.String(), safetext.MaxName), safetext.List(r.Usages, "and"))
	}
	return strings.Join(no.Evidence, "; ")
}

// maySigner checks a permission as kube-apiserver does: first on the signer, then on all signers of its domain.
func (h *handler) maySigner(r *call, user auth.User, verb, name string) *web.Problem {
	access := auth.Access{Verb: verb, Resource: "signers", Group: certificates.GroupName, Name: name}
	if h.Callers.Authorize == nil {
		return unauthorized(auth.ErrForbidden, user, access)
	}
	err := h.Callers.Authorize(r.Request, user, access)
	if err == nil {
		return nil
	}
	if domain, _, found := strings.Cut(name, "/"); found && errors.Is(err, auth.ErrForbidden) {
		all := access
		all.Name = domain + "/*"
		if err = h.Callers.Authorize(r.Request, user, all); err == nil {
			return nil
		}
	}
	return unauthorized(err, user, access)
}

// undecided returns the problem of an error of an Authority, or nil if err is nil.
func undecided(err error) error {
	no, found := errors.AsType[*approval.Error](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, signer.ErrUnknownSigner): // the configuration changed meanwhile
		return web.BadField("signer", "is not configured here any more")
	case !found:
		no = &approval.Error{Decision: approval.Decision{Verdict: approval.Wait, Reason: approval.ReasonFactsUnavailable}, Err: err}
	}
	return problemOf(no)
}

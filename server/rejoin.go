package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// returning authenticates a machine without a valid certificate by the key that its TLS handshake has proven. This is
// the key of an expired certificate of its node, or a key that is bound to the node, in a self-signed certificate.
// From a self-signed certificate, returning reads only the name, to find the claim. The user may only request the
// client certificate of this node.
//
// It reads no state except the cache of claims. It returns the errors of an [auth.Authenticate].
func (h *handler) returning(r *http.Request) (auth.User, *approval.Rejoin, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return auth.User{}, nil, auth.ErrNoCredentials
	}
	shown, now := r.TLS.PeerCertificates, h.Certificates.now()
	leaf := shown[0]
	node, ok := strings.CutPrefix(leaf.Subject.CommonName, tokens.NodeUserPrefix)
	if !ok || tokens.CheckNodeName(node) != nil {
		return auth.User{}, nil, fmt.Errorf("%w: client certificate: not of a node", auth.ErrBadCredentials)
	}
	user := auth.User{Name: leaf.Subject.CommonName, Groups: []string{tokens.NodesGroup}}
	proof := &approval.Rejoin{Key: pkcs10.IDOfKey(leaf.RawSubjectPublicKeyInfo)}
	if len(shown) == 1 && bytes.Equal(leaf.RawIssuer, leaf.RawSubject) {
		switch err := h.Certificates.Authority.Nodes.Bound(r.Context(), node, proof.Key); {
		case errors.Is(err, tokens.ErrNotFound):
			return auth.User{}, nil, fmt.Errorf("%w: client certificate: self-signed, and its key is not bound to the node", auth.ErrBadCredentials)
		case err != nil:
			return auth.User{}, nil, fmt.Errorf("claim of node %s: %w", node, err)
		}
		return user, proof, nil
	}
	if now.Before(leaf.NotAfter) {
		return auth.User{}, nil, fmt.Errorf("%w: client certificate: not expired", auth.ErrBadCredentials)
	}
	if !slices.Equal(leaf.Subject.Organization, user.Groups) {
		return auth.User{}, nil, fmt.Errorf("%w: client certificate: its groups are not those of a node", auth.ErrBadCredentials)
	}
	roots, err := h.Certificates.NodeCAs()
	if err != nil {
		return auth.User{}, nil, err
	}
	// The CA itself must have issued the expired certificate: an intermediate CA may belong to another signer.
	if _, err := auth.VerifyChain(shown[:1], roots, leaf.NotAfter); err != nil {
		return auth.User{}, nil, fmt.Errorf("%w: expired client certificate: %w", auth.ErrBadCredentials, err)
	}
	proof.NotAfter = leaf.NotAfter
	user.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(leaf).CredentialID()}}
	return user, proof, nil
}

// NodeCAs returns the CAs of the client certificates of nodes.
func (c *Certificates) NodeCAs() (*x509.CertPool, error) {
	s, found := c.Authority.Signer(certificates.KubeAPIServerClientKubeletSignerName)
	if !found {
		return nil, errors.New("kubejoin has no CA for client certificates of nodes")
	}
	ca, err := s.CA()
	if err != nil {
		return nil, err
	}
	return pemfile.PoolOf(ca.Bundle()), nil
}

// provesMachine reports whether the client certificate of a request is valid, or allows its node to rejoin. Such a
// request is exempt from the limit on failures of its address. provesMachine reads only caches.
func (h *handler) provesMachine(r *http.Request) bool {
	if _, given := r.Header["Authorization"]; given || h.Certificates.ClientCertificate == nil {
		return false
	}
	if _, err := h.Certificates.ClientCertificate(r); !errors.Is(err, auth.ErrBadCredentials) {
		return err == nil
	}
	_, _, err := h.returning(r)
	return err == nil
}

func (c *Certificates) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// bindKey serves POST /v1/rejoin/key. The client authenticates with the valid certificate of its node.
func (h *handler) bindKey(r *call) (web.Response, error) {
	user, proof, err := h.certificateUser(r)
	if err != nil {
		return web.Response{}, err
	}
	if proof != nil {
		return web.Response{}, unauthenticated(fmt.Errorf("%w: client certificate: expired or self-signed", auth.ErrBadCredentials))
	}
	if err := h.identified(r, user); err != nil {
		return web.Response{}, err
	}
	var req api.BindKey
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	_, header := r.Header["Authorization"]
	if !approval.IsNode(user.Name, user.Groups) || header || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return web.Response{}, web.NewProblem("forbidden", "only a node with a valid client certificate can bind a key; user %q has none", user.Name)
	}
	key, err := keyID([]byte(req.Key))
	if err != nil {
		return web.Response{}, web.BadField("key", "%v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), certificateTimeout)
	defer cancel()
	r.log(slog.String("key", key))
	err = undecided(h.Certificates.Authority.BindKey(ctx, r.TLS.PeerCertificates[0], key))
	// Report this: a thief with a copy of a valid certificate could bind a key, and rejoin with it for as long as the
	// node renews.
	h.rejoined(user.Name, err, "bound", codes.KeyBound.Reason(), "The machine bound key "+key+" to this Node, and can rejoin with it. If you do not expect this, unbind it: kubejoin claim release "+strings.TrimPrefix(user.Name, tokens.NodeUserPrefix))
	if err != nil {
		return web.Response{}, err
	}
	return web.Object(http.StatusOK, api.BoundKey{APIVersion: api.GroupVersion, Kind: api.KindBoundKey, Key: key})
}

// rejoined counts and reports the outcome of a request of a node that has proven a key: result, reason and message
// apply if err is nil.
func (h *handler) rejoined(user string, err error, result, reason, message string) {
	var p *web.Problem
	refused := errors.As(err, &p) && p.Status == http.StatusForbidden && p.Reason != ""
	switch {
	case refused:
		result, reason, message = p.Reason, p.Reason, p.Detail
	case err != nil:
		result = cmp.Or(resultOf(err), "failed")
	}
	h.results.rejoins.WithLabelValues(result).Inc()
	if event := h.Certificates.RejoinEvent; event != nil && (err == nil || refused) {
		event(strings.TrimPrefix(user, tokens.NodeUserPrefix), refused, reason, message)
	}
}

// keyID returns the ID of a public key in PEM (SubjectPublicKeyInfo).
func keyID(text []byte) (string, error) {
	der, err := pemfile.One(text, pemfile.PublicKey)
	if err != nil {
		return "", err
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return "", fmt.Errorf("public key with the algorithm %s: %w", pkcs10.KeyAlgorithm(der), err)
	}
	return pkcs10.IDOfKey(der), pkcs10.CheckKey(key, der)
}

package auth

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

// A User is the sender of a request, in Kubernetes' terms.
type User struct {
	Name   string
	UID    string
	Groups []string
	// Extra has the additional attributes that an authenticator returned. An Authorize may use them to
	// distinguish users.
	Extra map[string][]string
}

// ErrNoCredentials is the error of an Authenticate that found no credential in a request.
var ErrNoCredentials = errors.New("no credentials")

// ErrBadCredentials is the error of an Authenticate that does not accept the credential. The server then counts a
// failure for the client's address. Any other error means that the Authenticate could not decide. The server then
// responds with 503, and the client may retry.
var ErrBadCredentials = errors.New("credentials not accepted")

// Authenticate returns the sender of a request. Its errors never contain a credential. The server does not call it
// for a client that has sent too many bad credentials. The exception is a credential that was accepted from this
// address before. The server recognizes such a credential only in an Authorization header or a client certificate.
type Authenticate func(*http.Request) (User, error)

// Access is one permission, in the terms of Kubernetes RBAC.
type Access struct {
	Verb     string // for example "create"
	Resource string // for example "tokens", or "tokens/groups" with a subresource, as in RBAC rules
	Group    string // the group of the API; empty means kubejoin.io
	Name     string // the name of one object; empty means all objects
}

func (a Access) String() string {
	s := a.Verb + " " + a.Resource + "." + cmp.Or(a.Group, "kubejoin.io")
	if a.Name != "" {
		s += " " + a.Name
	}
	return s
}

// ErrForbidden is the error of an Authorize that denies. Any other error means that it could not decide. The server
// then responds with 503, and the client may retry.
var ErrForbidden = errors.New("forbidden")

// Authorize returns nil if the user has a permission. The server calls it for each Access that a request needs. A
// token that goes beyond plain "create tokens" needs a subresource for each extra, for example "tokens/groups". An
// Authorize that knows only "tokens" must deny the subresources.
type Authorize func(*http.Request, User, Access) error

// AllowGroup returns an Authorize that allows the members of one group everything, and all others nothing.
func AllowGroup(group string) Authorize {
	return func(_ *http.Request, u User, _ Access) error {
		if group != "" && slices.Contains(u.Groups, group) {
			return nil
		}
		return fmt.Errorf("%w: only members of group %s are allowed", ErrForbidden, group)
	}
}

// Hint returns the error err with a text that the server shows to the caller. err is [ErrNoCredentials], [ErrBadCredentials] or
// [ErrForbidden], or wraps one of them. The text contains nothing of a credential.
func Hint(err error, text string) error { return &tokens.Refusal{Message: text, Err: err} }

// MaxBearer is the maximum length of a bearer token, in characters. Service account tokens have about a thousand.
const MaxBearer = 8 << 10

// Bearer returns the bearer token of a request. The error wraps [ErrNoCredentials] if there is no Authorization
// header. It wraps [ErrBadCredentials] if there are several, or if the header has another scheme, no token, or
// a token longer than [MaxBearer].
func Bearer(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", ErrNoCredentials
	}
	if len(headers) > 1 {
		return "", Hint(ErrBadCredentials, fmt.Sprintf("%d Authorization headers given, want one", len(headers)))
	}
	scheme, token := parseAuthorization(headers[0])
	switch {
	case scheme == "basic":
		return "", Hint(ErrBadCredentials, "the Authorization header has the scheme Basic, want 'Bearer TOKEN'")
	case scheme != "bearer": // it may be the credential itself
		return "", Hint(ErrBadCredentials, "the Authorization header has an unknown scheme, want 'Bearer TOKEN'")
	case token == "":
		return "", Hint(ErrBadCredentials, "the bearer token is empty")
	case len(token) > MaxBearer:
		return "", Hint(ErrBadCredentials, fmt.Sprintf("the bearer token has %d characters, want at most %d", len(token), MaxBearer))
	}
	return token, nil
}

// parseAuthorization splits an Authorization header and returns the scheme in lower case. Schemes are
// case-insensitive (RFC 9110, section 11.1).
func parseAuthorization(header string) (scheme, credentials string) {
	scheme, credentials, _ = strings.Cut(header, " ")
	return strings.ToLower(scheme), strings.TrimSpace(credentials)
}

// Credential returns what identifies the credential of a request: the normalized Authorization header, or else the
// client certificate. It is empty if the request has neither, or a header that no route accepts.
func Credential(r *http.Request) string {
	if given := r.Header.Values("Authorization"); len(given) > 0 {
		if scheme, credentials := parseAuthorization(given[0]); len(given) == 1 && credentials != "" {
			return scheme + " " + credentials
		}
		return ""
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return string(r.TLS.PeerCertificates[0].Raw)
	}
	return ""
}

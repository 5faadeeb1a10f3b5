package server

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// A User is who sent a request, in Kubernetes' terms.
type User struct {
	Name   string
	UID    string
	Groups []string
	// Extra is what else an authenticator has said of the user, for an Authorize that can tell
	// users apart by it.
	Extra map[string][]string
}

// ErrNoCredentials is wrapped by an Authenticate that found nothing to judge in a request.
var ErrNoCredentials = errors.New("no credentials")

// ErrBadCredentials is wrapped by an Authenticate that does not accept what it found: it counts against
// the client's address, see Server.ClientRate. Any error that wraps neither means that it could not
// judge: the request is refused with 503, and may be tried again.
var ErrBadCredentials = errors.New("credentials not accepted")

// Authenticate says who sent a request. Its errors never hold a credential. A client that has shown too many bad ones
// waits before it is asked again. Only credentials in an Authorization header or a client certificate that were accepted
// from its address before are exempt, since no other is seen.
type Authenticate func(*http.Request) (User, error)

// Access is one thing that a user may or may not do, in the terms of Kubernetes RBAC.
type Access struct {
	Verb     string // such as "create"
	Resource string // such as "tokens", or with a subresource "tokens/groups", as RBAC's rules have it
	Group    string // of the API; empty is kubejoin.io
	Name     string // of one object; empty is every one
}

func (a Access) String() string {
	s := a.Verb + " " + a.Resource + "." + cmp.Or(a.Group, "kubejoin.io")
	if a.Name != "" {
		s += " " + a.Name
	}
	return s
}

// ErrForbidden is wrapped by an Authorize that says no. Any other error means that it could not
// say: the request is refused with 503, and may be tried again.
var ErrForbidden = errors.New("forbidden")

// Authorize returns nil if the user may. It is asked once for each Access that a request needs: a
// token beyond what "create tokens" is good for takes a subresource of tokens for each of its
// liberties, such as "tokens/groups", and one that knows "tokens" alone is to refuse them.
type Authorize func(*http.Request, User, Access) error

// AllowGroup is an Authorize that lets the members of one group do everything, and nobody else
// anything.
func AllowGroup(group string) Authorize {
	return func(_ *http.Request, u User, _ Access) error {
		if group != "" && slices.Contains(u.Groups, group) {
			return nil
		}
		return fmt.Errorf("%w: only members of group %s may", ErrForbidden, group)
	}
}

// allowed lets an action happen for users who may, and nobody else.
func (h *handler) allowed(access Access, act action) action {
	return func(r *http.Request) (answer, error) {
		if h.Authenticate == nil || h.Authorize == nil {
			return answer{}, newProblem(http.StatusForbidden, "forbidden", "nobody may %s here: no way to authenticate is configured", access)
		}
		user, err := h.Authenticate(r)
		if err != nil {
			return answer{}, unauthenticated(err)
		}
		if err := h.identified(r, user); err != nil {
			return answer{}, err
		}
		if bootstraps(user) {
			return answer{}, newProblem(http.StatusForbidden, "forbidden", "user %q is a bootstrap token's, which is for machines that join and may not %s", user.Name, access)
		}
		if err := h.may(r, access); err != nil {
			return answer{}, err
		}
		return act(r)
	}
}

// note keeps who sent a request.
func note(r *http.Request, user User) *noted {
	seen := notedOf(r.Context())
	seen.user = user
	seen.attrs = append(seen.attrs, slog.String("user", user.Name))
	return seen
}

// identified notes who sent a request, and is an error if he is not to be served now.
func (h *handler) identified(r *http.Request, user User) error {
	if refusal := note(r, user).limits.User(user.Name); refusal != nil {
		return exceeds(refusal)
	}
	return nil
}

// bootstraps reports whether a user is a bootstrap token's, by whatever way it has come.
func bootstraps(u User) bool {
	return isBootstrap(u.Name) || slices.ContainsFunc(u.Groups, func(g string) bool {
		return g == bootstrapapi.BootstrapDefaultGroup || strings.HasPrefix(g, bootstrapapi.BootstrapDefaultGroup+":")
	})
}

// unauthenticated is the problem of an error of an Authenticate.
func unauthenticated(err error) *problem {
	switch {
	case errors.Is(err, ErrNoCredentials):
		return newProblem(http.StatusUnauthorized, "unauthorized", "who is asking? send the header 'Authorization: Bearer TOKEN'; curl takes it from a file, which keeps it out of the command line: curl -K curlrc")
	case errors.Is(err, ErrBadCredentials):
		p := newProblem(http.StatusUnauthorized, "unauthorized", "the credentials sent are not accepted here")
		p.cause = err
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "authentication-unavailable", "cannot tell now who is asking; try again")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// unauthorized is the problem of an error of an Authorize.
func unauthorized(err error, user User, access Access) *problem {
	if errors.Is(err, ErrForbidden) {
		p := newProblem(http.StatusForbidden, "forbidden", "user %q may not %s", user.Name, access)
		p.cause = err
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "authorization-unavailable", "cannot tell now whether user %q may %s; try again", user.Name, access)
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// A TokenFile knows users by bearer tokens, in the form that kube-apiserver's
// --token-auth-file has: token,user,uid,"group1,group2". The zero TokenFile knows nobody.
type TokenFile struct {
	// Tokens are found by their MAC under a key of this process, so that the time a look-up
	// takes tells nothing of the tokens.
	key   [32]byte
	users map[[sha256.Size]byte]User
}

// MinBearer is the fewest characters that a bearer token may have.
const MinBearer = 16

// ParseTokenFile reads a token file. Its errors name the line and never a token.
func ParseTokenFile(data []byte) (*TokenFile, error) {
	f := &TokenFile{users: map[[sha256.Size]byte]User{}}
	_, _ = rand.Read(f.key[:]) // documented never to fail
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		var at *csv.ParseError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d: %w", at.Line, at.Err)
		}
		return nil, err
	}
	for i, row := range rows {
		// Every row is one line: nothing in it may hold a line break.
		line := i + 1
		if len(row) < 3 || len(row) > 4 {
			return nil, fmt.Errorf("row %d: %d columns given, want token,user,uid or token,user,uid,\"group1,group2\"", line, len(row))
		}
		token, user := row[0], User{Name: row[1], UID: row[2]}
		switch {
		case len(token) < MinBearer:
			return nil, fmt.Errorf("row %d: token has %d characters, want at least %d", line, len(token), MinBearer)
		case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
			return nil, fmt.Errorf("row %d: token has characters that no HTTP header can carry", line)
		case user.Name == "":
			return nil, fmt.Errorf("row %d: user is empty", line)
		}
		if len(row) == 4 {
			for g := range strings.SplitSeq(row[3], ",") {
				if g = strings.TrimSpace(g); g != "" {
					user.Groups = append(user.Groups, g)
				}
			}
		}
		mac := f.mac(token)
		if _, twice := f.users[mac]; twice {
			return nil, fmt.Errorf("row %d: this token stands in an earlier row already", line)
		}
		f.users[mac] = user
	}
	return f, nil
}

func (f *TokenFile) mac(token string) (sum [sha256.Size]byte) {
	m := hmac.New(sha256.New, f.key[:])
	m.Write([]byte(token))
	m.Sum(sum[:0])
	return sum
}

// Authenticate is an [Authenticate] by the file's tokens.
func (f *TokenFile) Authenticate(r *http.Request) (User, error) {
	token, err := Bearer(r)
	if err != nil {
		return User{}, err
	}
	user, known := f.users[f.mac(token)]
	if !known {
		return User{}, fmt.Errorf("%w: no token of the token file", ErrBadCredentials)
	}
	return user, nil
}

// MaxBearer is the most characters that a bearer token may have. Those of service accounts have
// about a thousand.
const MaxBearer = 8 << 10

// Bearer is the bearer token of a request. The error wraps [ErrNoCredentials] if there is no
// Authorization header, and [ErrBadCredentials] if what is there is of another scheme, empty, longer
// than [MaxBearer], or not the only one.
func Bearer(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", ErrNoCredentials
	}
	if len(headers) > 1 {
		return "", fmt.Errorf("%w: %d Authorization headers given, want one", ErrBadCredentials, len(headers))
	}
	scheme, token := parseAuthorization(headers[0])
	switch {
	case scheme != "bearer":
		return "", fmt.Errorf("%w: want the Bearer scheme", ErrBadCredentials)
	case token == "":
		return "", fmt.Errorf("%w: the bearer token is empty", ErrBadCredentials)
	case len(token) > MaxBearer:
		return "", fmt.Errorf("%w: the bearer token has %d characters, %d allowed", ErrBadCredentials, len(token), MaxBearer)
	}
	return token, nil
}

// parseAuthorization splits an Authorization header. Schemes have no case (RFC 9110, section 11.1): it is a lower one.
func parseAuthorization(header string) (scheme, credentials string) {
	scheme, credentials, _ = strings.Cut(header, " ")
	return strings.ToLower(scheme), strings.TrimSpace(credentials)
}

// credential returns the credential of a request: scheme and credentials of its Authorization header, in one spelling, or
// else its client certificate. It is empty without either, and for a header that no route accepts.
func credential(r *http.Request) string {
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

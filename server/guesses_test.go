package server_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
)

// sends requests the token list with the headers, and returns the status.
func sends(t testing.TB, handler http.Handler, remote string, headers http.Header) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", tokenPath, nil)
	r.RemoteAddr = remote
	r.Header = headers
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Code
}

func authorized(values ...string) http.Header { return http.Header{"Authorization": values} }

// guessing returns the handler of a site that accepts any bearer token of the form NAME-ANYTHING.
func guessing(t *testing.T) http.Handler {
	s := newSite(t)
	s.Logger, s.Limits.ClientRate = nil, server.Rate{QPS: 1e6}
	s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
		bearer, err := auth.Bearer(r)
		name, _, known := strings.Cut(bearer, "-")
		if err == nil && !known {
			err = auth.ErrBadCredentials
		}
		return auth.User{Name: name}, err
	}
	return s.Handler()
}

// Catches a user that evicts others from the credential cache with many credentials, or many forms of one.
func TestOneUserEvictsNoOtherFromCredentialCache(t *testing.T) {
	const here, others = "192.0.2.1:1", 20
	for what, header := range map[string]func(i int) string{
		"blanks": func(i int) string {
			return "Bearer" + strings.Repeat(" ", 1+i%300) + "ada-1" + strings.Repeat(" ", i/300)
		},
		"cases":       func(i int) string { return casesOf("bearer", i) + strings.Repeat(" ", 1+i>>6) + "ada-1" },
		"credentials": func(i int) string { return fmt.Sprintf("Bearer ada-%d", i) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock stands still
				handler := guessing(t)
				for i := range others {
					if code := sends(t, handler, here, authorized(fmt.Sprintf("Bearer user%d-1", i))); code != 403 {
						t.Fatalf("%d, want the user known", code)
					}
				}
				for i := range 12_000 {
					if code := sends(t, handler, here, authorized(header(i))); code != 403 {
						t.Fatalf("%q: %d", header(i), code)
					}
				}
				for range httplimit.FailureBurst {
					if code := sends(t, handler, here, authorized("Bearer guess")); code != 401 {
						t.Fatal(code)
					}
				}
				for i := range others {
					if code := sends(t, handler, here, authorized(fmt.Sprintf("Bearer user%d-1", i))); code != 403 {
						t.Errorf("user%d: got %d, want 403: the credential is no longer cached", i, code)
					}
				}
				if code := sends(t, handler, here, authorized("bearer  ada-"+map[bool]string{true: "11999", false: "1"}[what == "credentials"])); code != 403 {
					t.Errorf("ada: %d", code)
				}
			})
		})
	}
}

// casesOf returns s with the i-th letter in upper case if the i-th bit is set.
func casesOf(s string, bits int) string {
	b := []byte(s)
	for i := range b {
		if bits>>i&1 == 1 {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}

// Catches a cached credential that is exempt from the failure limit at other addresses, too.
func TestCachedCredentialCountsOnlyForItsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := guessing(t)
		const known = "192.0.2.1:1"
		if code := sends(t, handler, known, authorized("Bearer ada-1")); code != 403 {
			t.Fatal(code)
		}
		for remote, want := range map[string]int{known: 403, "192.0.2.2:1": 429, "[2001:db8::1]:1": 429} {
			for range httplimit.FailureBurst {
				if code := sends(t, handler, remote, authorized("Bearer guess")); code != 401 {
					t.Fatal(code)
				}
			}
			if code := sends(t, handler, remote, authorized("Bearer ada-1")); code != want {
				t.Errorf("%s: %d, want %d", remote, code, want)
			}
		}
	})
}

// One machine may have all addresses of a /64. Catches a limit that counts them as different clients, or that counts
// the next /64 as the same one.
func TestOneNetworkOfIPv6IsOneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := guessing(t)
		for i := range httplimit.FailureBurst {
			if code := sends(t, handler, fmt.Sprintf("[2001:db8::%x:0:0:1]:1", i), authorized("Bearer guess")); code != 401 {
				t.Fatal(code)
			}
		}
		connected := httplimit.Connections(100, httplimit.Rate(atFirst(3)), prometheus.NewRegistry())
		for i := range 4 {
			c := &addressed{remote: fmt.Sprintf("[2001:db8::%x:0:0:1]:1", 0x8000+i)}
			if connected(c, http.StateNew); c.closed != (i == 3) {
				t.Errorf("connection %d of a network: closed is %v", i, c.closed)
			}
		}
		for remote, same := range map[string]bool{"[2001:db8::ffff:0:0:1]:1": true, "[2001:db8:0:1::1]:1": false} {
			if code := sends(t, handler, remote, authorized("Bearer guess")); (code == 429) != same {
				t.Errorf("guess from %s: got %d, want 429: %t", remote, code, same)
			}
			c := &addressed{remote: remote}
			if connected(c, http.StateNew); c.closed != same {
				t.Errorf("connection from %s: got closed %t, want %t", remote, c.closed, same)
			}
		}
	})
}

// addressed is a connection with that remote address.
type addressed struct {
	net.Conn
	remote string
	closed bool
}

func (c *addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.remote))
}

func (c *addressed) Close() error {
	c.closed = true
	return nil
}

// Catches a malformed Authorization header that does not count as a failed authentication.
func TestMalformedCredentialsCountAsFailures(t *testing.T) {
	for _, header := range []http.Header{
		authorized("Basic YTpi"), authorized("Bearer"), authorized("Bearer "), authorized(""), authorized("ada-1"), authorized("Bearer\tada-1"),
		authorized("Bearer ada-1", "Bearer ada-1"), authorized("Bearer " + strings.Repeat("x", auth.MaxBearer+1)),
	} {
		synctest.Test(t, func(t *testing.T) {
			handler := guessing(t)
			const here = "192.0.2.1:1"
			sends(t, handler, here, authorized("Bearer ada-1"))
			for i := range 2 * httplimit.FailureBurst {
				want := 401
				if i >= httplimit.FailureBurst {
					want = 429
				}
				if code := sends(t, handler, here, header); code != want {
					t.Fatalf("%.60q, the %d.: %d, want %d", header, i, code, want)
				}
			}
			if code := sends(t, handler, here, authorized("Bearer ada-1")); code != 403 {
				t.Errorf("cached credential: got %d, want 403", code)
			}
		})
	}
}

// A custom Authenticate may read credentials from any header. Catches guesses there that avoid the failure limit by
// a valid credential of another kind, or by an own valid one now and then.
func TestLimitsGuessesInCustomHeaders(t *testing.T) {
	for what, beside := range map[string]func(testing.TB, *site) []http.Header{
		"alone":                 func(testing.TB, *site) []http.Header { return []http.Header{{}} },
		"beside another header": func(testing.TB, *site) []http.Header { return []http.Header{authorized("Bearer something-else")} },
		"beside a bootstrap token": func(t testing.TB, s *site) []http.Header {
			return []http.Header{authorized("Bearer " + s.token(t, nil))}
		},
		"beside an expired token": func(t testing.TB, s *site) []http.Header {
			return []http.Header{authorized("Bearer " + s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }))}
		},
		"alternating with a valid one": func(testing.TB, *site) []http.Header {
			own := authorized("Bearer something-else")
			own.Set("X-Rack-Key", "own")
			return []http.Header{own, authorized("Bearer something-else")}
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := certifying(t)
				s.Logger, s.Limits.ClientRate = nil, server.Rate{QPS: 1e6}
				looked := 0
				s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
					switch key := r.Header.Get("X-Rack-Key"); key {
					case "":
						return auth.User{}, auth.ErrNoCredentials
					case "own":
						return auth.User{Name: "ada"}, nil
					default:
						looked++
						return auth.User{}, fmt.Errorf("%w: not known", auth.ErrBadCredentials)
					}
				}
				handler, headers := s.Handler(), beside(t, s)
				for _, path := range []string{tokenPath, certificatePath} {
					for i := range 1000 {
						r := httptest.NewRequestWithContext(t.Context(), map[string]string{tokenPath: "GET", certificatePath: "POST"}[path], path, nil)
						r.RemoteAddr, r.Header = "192.0.2.1:1", headers[i%len(headers)].Clone()
						if r.Header.Get("X-Rack-Key") == "" {
							r.Header.Set("X-Rack-Key", fmt.Sprintf("guess %d", i))
						}
						handler.ServeHTTP(httptest.NewRecorder(), r)
					}
				}
				if looked > httplimit.FailureBurst+1 { // a client that succeeded before gets one more
					t.Errorf("got %d guesses checked, want at most %d", looked, httplimit.FailureBurst+1)
				}
			})
		})
	}
}

// kubejoin cannot see a credential in a custom header. Catches a cached success that exempts every request without an
// Authorization header.
func TestCustomHeaderCredentialGetsNoExemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock stands still
		s := newSite(t)
		s.Logger, s.Limits.ClientRate = nil, server.Rate{QPS: 1e6}
		s.Callers.Authenticate = func(r *http.Request) (auth.User, error) {
			if r.Header.Get("X-Rack-Key") == "own" {
				return auth.User{Name: "ada"}, nil
			}
			return auth.User{}, auth.ErrBadCredentials
		}
		handler, own := s.Handler(), http.Header{"X-Rack-Key": {"own"}}
		if code := sends(t, handler, "192.0.2.1:1", own.Clone()); code != 403 {
			t.Fatalf("%d, want the user known", code)
		}
		for range httplimit.FailureBurst {
			if code := sends(t, handler, "192.0.2.1:1", authorized("Bearer guess")); code != 401 {
				t.Fatal(code)
			}
		}
		if code := sends(t, handler, "192.0.2.1:1", own.Clone()); code != 429 {
			t.Errorf("%d, want 429", code)
		}
	})
}

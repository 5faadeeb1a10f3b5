// Package httplimit limits the use of an HTTP server: by one client, by one user, and by all of them together. It
// does not depend on the server's API: the server classifies each request, and turns an [Exceeded] into a response.
//
// # Who is limited
//
// A client is an IP address, or the /64 network of an IPv6 address, because one machine may have all of that network. The
// package ignores headers such as X-Forwarded-For, because anyone can send them. A request that did not come over a network has
// no client, and is exempt from the limits per client. A user is the name that an authenticator returned. Each client of a user
// has separate limits, so that one holder of a credential does not block the others. A credential that may be outdated, such as
// an expired certificate, also has separate limits.
//
// # The limits
//
// [Limiter] has the limits of requests, in the order in which it checks them:
//
//	limit              key                       beyond it                why
//	client-rate        client                    429, nothing is read     a flood from one machine
//	overloaded         class                     503 at once              a flood from many machines stays in its class
//	client-in-flight   client in a class         429                      clients that send or read slowly
//	failed-auth…       client                    429, credential not      guesses of a credential
//	                                             checked
//	user-rate          user at a client          429, body not read       a runaway script, a leaked bootstrap token
//	user-in-flight     user in a class, without  429, body not read       the same, if there are no limits per client
//	                   a client
//	certificate-rate   the signer's              429                      counted here, decided by the signer
//
// No request waits in a queue, because a waiting request costs as much as one that is served.
//
// A rate is a token bucket. Buckets are in a table of fixed size, and keys share them by a secret hash. So many addresses need
// no more memory than few, and no client gets a fresh bucket by using many addresses. Probes of /healthz and /readyz have
// separate buckets, so that a flood does not get kubejoin restarted. Token reviews of kube-apiserver have no rate, because it
// sends them for all its clients. A caller is treated as kube-apiserver after its credential was accepted for a token review.
//
// A client, or a user without a client, never has more slots of a class in flight than are free. If n clients take all
// slots they can, each gets one part in n+1, and a newcomer finds one part free. A user with many clients is limited by
// the share of each client.
//
// After too many unaccepted credentials, the server no longer checks credentials of the client, not even correct ones.
// Otherwise, the client could continue to guess. Two kinds are exempt, so that an attacker cannot lock out machines
// behind the same address: credentials that were accepted from this client before (the latest 16 of each user), and
// existing bootstrap tokens in the server's cache.
//
// # Connections
//
// [Connections] limits the open connections, the open connections per client, and how fast a client opens them.
// [LimitHandshakes] and [LimitCertificates] limit what a connection sends before its first request. All of them apply before or
// during the TLS handshake, because the handshake costs more than most requests. The server sets the timeouts.
//
// docs/abuse.md names for each limit the attack, the remaining risk and the test.
package httplimit

// Package httplimit limits what one client and one user take of an HTTP server, and what all of them take of it together.
// It knows nothing of the server's API: the server says what a request is, and turns a [Refusal] into a response.
//
// # Who is limited
//
// A client is an IP address, or the /64 network of an IPv6 address, because one machine may have all of that network.
// Headers such as X-Forwarded-For do not count: anyone can send them. A request that came over no network has no client and
// is exempt from the limits of clients. A user is the name that an authenticator returned, from whatever address.
//
// # The limits
//
// [Limiter] has the limits of requests, in the order in which it checks them:
//
//	limit              key                       beyond it                why
//	client-rate        client                    429, nothing is read     a flood from one machine
//	overloaded         class                     503 at once              a flood from many machines leaves other classes their slots
//	client-in-flight   client in a class         429                      requests that are sent slowly or whose responses are not read
//	failed-auth…       client                    429, credential not      guesses of a credential
//	                                             looked at
//	user-rate          user                      429                      a script that runs wild, a bootstrap token in many hands
//	user-in-flight     user in a class           429                      the same as client-in-flight, from many addresses
//	certificate-rate   the signer's              429                      counted here, decided by the signer
//
// Nothing waits in a queue: a waiting request costs as much as one that is served.
//
// A rate is a token bucket. Buckets are in a table of fixed size, and keys share them by a secret hash. So many addresses
// cost no more memory than few, and nobody gets a fresh bucket by using many addresses. Probes of /healthz and /readyz have
// buckets of their own, so that a flood does not get kubejoin restarted. Token reviews of kube-apiserver have no rate, because
// it asks for all its clients; a caller counts as kube-apiserver once its credential was accepted there.
//
// In flight, a client or user has no more slots of a class than are free. Then n holders that take all they get end up with
// one part in n+1 each, and a newcomer finds one part free.
//
// After too many credentials that were not accepted, the credentials of the client are no longer looked at, correct ones
// included: otherwise guesses would go on. Two kinds are exempt, so that a guesser locks out no machine behind the same
// address: credentials that were accepted from this client before (the latest 16 of each user), and whatever the server
// knows without asking a store, which are existing bootstrap tokens.
//
// # Connections
//
// [Connections] limits how many are open, how many of those one client has, and how fast it opens them. [LimitHandshakes] and
// [LimitCertificates] limit what a connection sends before its first request. Both work before TLS or in its handshake:
// a handshake costs more than most requests. The server sets the times that a client may take.
//
// docs/security-model.md names the attack that each limit is for, what is left of it, and the test that shows it.
package httplimit

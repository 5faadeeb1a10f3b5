// Package admission decides which machine may have which node name, and holds bootstrap tokens to their limits.
//
// [Nodes] stands between approval and every client certificate of a node, whoever approved the request. A token with
// limits leaves a [tokens.Claim] for each name that it takes. The invariants that hold under concurrency are in
// docs/security-model.md.
package admission

// Package revocation decides which certificates are revoked. An [Entry] bars every certificate of a node except
// those that kubejoin has issued since, or it bars one certificate. A [Guard] answers for a [Store] of entries.
//
// Kubernetes has no revocation of its own. docs/revocation.md says where entries take effect.
package revocation

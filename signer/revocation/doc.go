// Package revocation decides which certificates are revoked. An [Entry] bars one certificate, or every
// certificate of a node except certificates that kubejoin has issued after the revocation. A [Guard] checks
// credentials against a [Store] of entries.
//
// Kubernetes has no revocation of its own. docs/revocation.md says where entries take effect.
package revocation

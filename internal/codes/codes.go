// Package codes maps the reasons of refusals and Events to values for programs: the HTTP status and the exit code of a refusal,
// and the type of an Event. Reasons of refusals are the names of problem types. server/openapi.yaml describes these types,
// except the types of the signer process. A test compares the two. Package codepage explains all codes to people.
package codes

import "net/http"

// refusals lists the reasons by status and exit code. Exit code 3 means a decision: a retry does not help until somebody
// changes something, or something missing is available.
var refusals = []struct {
	status, exit int
	reasons      []string
}{
	{http.StatusBadRequest, 1, []string{"invalid-query", "invalid-body", "invalid-field"}},
	{http.StatusUnauthorized, 3, []string{"unauthorized"}},
	{http.StatusForbidden, 3, []string{"forbidden", "revoked", "certificate-refused", "certificate-not-permitted", "machine-refused", "order-refused"}},
	{http.StatusNotFound, 1, []string{"not-found", "no-token", "no-claim", "no-machine", "no-claims", "no-turns", "no-revocations", "no-rotations",
		"not-revoked", "not-issued", "no-issuance-record", "no-cluster", "no-such-request", "no-cluster-info"}},
	{http.StatusMethodNotAllowed, 1, []string{"method-not-allowed"}},
	{http.StatusConflict, 1, []string{"token-exists", "token-spent", "token-invalid", "would-shorten", "token-not-expired",
		"token-replaced", "token-owns-upload", "turn-taken", "claim-replaced", "machine-exists", "name-in-use", "token-works", "no-rotation", "wrong-stage", "rotation-changed",
		"order-not-new"}},
	{http.StatusConflict, 3, []string{"not-ready"}},
	{http.StatusRequestEntityTooLarge, 1, []string{"body-too-large"}},
	{http.StatusRequestURITooLong, 1, []string{"query-too-long"}},
	{http.StatusUnsupportedMediaType, 1, []string{"unsupported-media-type"}},
	{http.StatusTooManyRequests, 1, []string{"too-many-requests"}},
	{http.StatusInternalServerError, 1, []string{"internal", "malformed-cluster-info"}},
	{http.StatusServiceUnavailable, 1, []string{"overloaded", "authentication-unavailable", "authorization-unavailable",
		"store-unavailable", "store-refuses", "tokens-unavailable", "token-not-stored", "certificates-not-uploaded",
		"turn-unavailable", "node-unavailable", "cluster-unavailable", "cluster-info-unavailable", "record-unavailable",
		"revocations-unavailable", "rotation-unavailable", "unavailable"}},
	{http.StatusServiceUnavailable, 3, []string{"certificate-waits"}},
	{http.StatusGatewayTimeout, 1, []string{"token-not-signed"}},
	{http.StatusInsufficientStorage, 1, []string{"cluster-info-full", "too-many-tokens", "too-many-machines", "too-many-revocations"}},
}

// Statuses maps each problem type to its HTTP status. Exits maps it to the exit code of a command that fails because of it.
var Statuses, Exits = func() (map[string]int, map[string]int) {
	statuses, exits := map[string]int{}, map[string]int{}
	for _, r := range refusals {
		for _, reason := range r.reasons {
			statuses[reason], exits[reason] = r.status, r.exit
		}
	}
	return statuses, exits
}()

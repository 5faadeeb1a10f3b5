// Package codes has the HTTP status of each reason of a refusal, and the type of each Event. Reasons of refusals are the names of
// problem types, which server/openapi.yaml describes but for those of the signer process: a test compares the two.
package codes

import "net/http"

// statuses are the problem types by HTTP status.
var statuses = map[int][]string{
	http.StatusBadRequest:   {"invalid-query", "invalid-body", "invalid-field"},
	http.StatusUnauthorized: {"unauthorized"},
	http.StatusForbidden:    {"forbidden", "revoked", "certificate-refused", "certificate-not-permitted", "order-refused"},
	http.StatusNotFound: {"not-found", "no-token", "no-claim", "no-claims", "no-turns", "no-revocations", "no-rotations",
		"not-revoked", "not-issued", "no-issuance-record", "no-cluster", "no-such-request", "no-cluster-info"},
	http.StatusMethodNotAllowed: {"method-not-allowed"},
	http.StatusConflict: {"token-exists", "token-spent", "token-invalid", "would-shorten", "token-not-expired",
		"token-replaced", "token-owns-upload", "turn-taken", "claim-replaced", "not-ready", "no-rotation",
		"wrong-stage", "rotation-changed", "order-not-new"},
	http.StatusRequestEntityTooLarge: {"body-too-large"},
	http.StatusRequestURITooLong:     {"query-too-long"},
	http.StatusUnsupportedMediaType:  {"unsupported-media-type"},
	http.StatusTooManyRequests:       {"too-many-requests"},
	http.StatusInternalServerError:   {"internal", "malformed-cluster-info"},
	http.StatusServiceUnavailable: {"overloaded", "authentication-unavailable", "authorization-unavailable",
		"store-unavailable", "store-refuses", "tokens-unavailable", "token-not-stored", "certificates-not-uploaded",
		"turn-unavailable", "node-unavailable", "cluster-unavailable", "cluster-info-unavailable",
		"record-unavailable", "revocations-unavailable", "rotation-unavailable", "certificate-waits", "unavailable"},
	http.StatusGatewayTimeout:      {"token-not-signed"},
	http.StatusInsufficientStorage: {"cluster-info-full", "too-many-tokens", "too-many-revocations"},
}

// Statuses has the HTTP status of each problem type.
var Statuses = func() map[string]int {
	all := map[string]int{}
	for status, names := range statuses {
		for _, name := range names {
			all[name] = status
		}
	}
	return all
}()

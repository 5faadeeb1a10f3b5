// Package openapicheck checks requests and responses of a server against its OpenAPI 3.1 description:
// status, content type, headers, and bodies by JSON Schema. Only tests use it.
//
// The maintained github.com/pb33f/libopenapi-validator does not replace it: its v0.13.8, the last for
// Go 1.25, accepts any text body, any value of an optional header, an undescribed body, and an empty body
// instead of JSON. It also rejects compressed bodies and every response outside of the operations, and
// takes four times the CPU time for a response.
package openapicheck

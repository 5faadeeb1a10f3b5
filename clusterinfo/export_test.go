package clusterinfo

import (
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// RetryAfter returns the pause that a response asks for.
var RetryAfter = retryAfter

// ReadAnswer reads the response of a discovery endpoint.
func ReadAnswer(body []byte, t tokens.Token) (string, error) { return readAnswer(body, t) }

// Rested makes the next computation begin immediately.
func (c *Computed) Rested() { c.rest = time.Time{} }

package clusterinfo

import (
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ReadAnswer reads what a discovery endpoint has answered.
func ReadAnswer(body []byte, t tokens.Token) (string, error) { return readAnswer(body, t) }

// Rested lets the next computation begin at once.
func (c *Computed) Rested() { c.rest = time.Time{} }

// Early is how many tokens are remembered that the list may not have.
func (c *Computed) Early() int { return len(c.early) }

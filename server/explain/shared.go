package explain

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// shared adds a warning that several machines may use the name, if certificates from several first requests with
// different keys are valid. It ignores certificates that a node renewed itself, because a renewal uses a new key.
func (v *view) shared() {
	keys := map[string]bool{}
	for _, r := range v.client {
		if r.User == tokens.NodeUserPrefix+v.Node || r.Certificate == nil || len(r.Certificate.Chain) == 0 {
			continue
		}
		if leaf := r.Certificate.Chain[0]; v.now.Before(leaf.NotAfter) {
			keys[string(leaf.RawSubjectPublicKeyInfo)] = true
		}
	}
	if n := len(keys); n > 1 {
		v.e.Sentence += fmt.Sprintf("; %d initial certificates with different keys are valid for this name: several machines may use it, or one machine joined several times", n)
	}
}

package explain

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
)

// shared says that two machines may hold the name: first certificates with different keys are valid.
// Certificates that a node renewed itself have other keys as well, and do not count.
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
		v.e.Sentence += fmt.Sprintf("; %d first certificates with different keys are valid for this name: several machines may hold it, unless one machine asked again", n)
	}
}

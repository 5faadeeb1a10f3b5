package explain

import "fmt"

// revoked adds that the node is revoked, and whether it has come back since.
func (v *view) revoked() {
	r := v.Revocation
	if r == nil {
		return
	}
	v.e.Sentence += "; its certificates were revoked " + ago(r.Since, v.now)
	if reason := clean(r.Reason); reason != "" {
		v.e.Sentence += ": " + reason
	}
	if r.Allowed > 0 {
		v.e.Sentence += fmt.Sprintf("; kubejoin has issued %d valid certificates to it since", r.Allowed)
		return
	}
	v.next(v.remedy(Revoked))
	v.next("", v.ofNode("kubejoin revoke undo"))
}

package explain

import (
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// properties adds what the Node will get from the token of the claim, until it has registered, and why it does not have it.
func (v *view) properties() {
	v.gets()
	if v.Joining {
		v.e.Sentence += "; no pods run on it without a toleration of its taint " + tokens.JoiningTaint
	}
	if v.Waits != "" {
		v.e.Sentence += "; for what its token asks for, it waits until " + v.Waits
	}
}

func (v *view) gets() {
	c := v.e.Evidence.Claim
	if c == nil || c.NodeUID != "" {
		return
	}
	var gets []string
	for _, given := range []struct {
		what string
		list []string
	}{{"labels", c.NodeLabels}, {"taints", c.NodeTaints}} {
		if len(given.list) > 0 {
			gets = append(gets, given.what+" "+safetext.Few(given.list))
		}
	}
	if len(gets) > 0 {
		v.e.Sentence += "; from token " + c.TokenID + ", its Node gets " + strings.Join(gets, " and ")
	}
	if c.NodeReadyAfter != "" {
		v.e.Sentence += "; pods run on it after its " + strings.ReplaceAll(c.NodeReadyAfter, "-", " ")
	}
}

package explain

import (
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/controlplane"
)

// waits reports whether the machine waits for its turn to join as a control plane, and explains that. Such a
// machine has not started kubeadm, so requests for its name are from earlier and explain nothing.
func (v *view) waits() bool {
	if v.Turn == nil || v.Object != nil {
		return false
	}
	i := slices.IndexFunc(v.Turn.Waiting, func(w api.WaitingEvidence) bool { return w.Node == v.Node })
	if i < 0 {
		return false
	}
	since := v.Turn.Waiting[i].Since
	v.e.Evidence.Turn = v.Turn
	if v.Turn.Learner != "" {
		v.say(WaitsForTurn, since, "has waited %s for its turn to join as a control plane; the etcd member %s is still a learner; if no machine joins with that address, remove the member", span(v.now.Sub(since)), clean(v.Turn.Learner))
		return true
	}
	if v.Turn.Holder == "" {
		v.say(WaitsForTurn, since, "has waited %s for its turn to join as a control plane, which is free now", span(v.now.Sub(since)))
		return true
	}
	v.say(WaitsForTurn, since, "has waited %s for its turn to join as a control plane; %s has been joining for %s", span(v.now.Sub(since)), clean(v.Turn.Holder), span(v.now.Sub(v.Turn.Since)))
	if silent := v.now.Sub(v.Turn.Renewed); silent > 2*controlplane.RenewEvery {
		v.e.Sentence += ", but has not renewed its turn for " + span(silent) + "; the turn ends after " + span(controlplane.TurnDuration)
	}
	return true
}

// turn adds the machines that wait until this machine has joined.
func (v *view) turn() {
	if v.Turn == nil || v.Turn.Holder != v.Node || v.now.Sub(v.Turn.Renewed) > time.Minute {
		return
	}
	v.e.Evidence.Turn = v.Turn
	v.e.Sentence += "; it has been joining as a control plane for " + span(v.now.Sub(v.Turn.Since))
	var names []string
	for _, w := range v.Turn.Waiting {
		names = append(names, clean(w.Node))
	}
	if len(names) > 0 {
		v.e.Sentence += "; machines that wait for it: " + strings.Join(names, ", ")
	}
}

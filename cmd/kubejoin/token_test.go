package main

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
)

// The limits of a rule are not on the Secret, so the command must name the rule.
func TestLimitsNameTheirRule(t *testing.T) {
	got := strings.Join(limits(api.Token{NodeNames: []string{"a-*"}, Rejoin: "deny", LimitedBy: map[string]string{"rejoin": "scaler", "maxNodes": "all"}, NodeTaints: []string{"b:NoSchedule"}}), ",")
	if want := "names=a-*,rejoin=deny,maxNodes by rule all,rejoin by rule scaler,taints=b:NoSchedule"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

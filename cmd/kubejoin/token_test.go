package main

import (
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/server/api"
)

// The limits of a rule are not on the Secret, so the command must name the rule. Also catches a limit that is not shown.
func TestLimitsNameTheirRule(t *testing.T) {
	if other := limits(api.Token{CertificateDuration: "1y"}); len(other) != 1 || other[0] != "certificates=1y" {
		t.Errorf("duration of another version: got %q, want it as it is", other)
	}
	got := strings.Join(limits(api.Token{NodeNames: []string{"a-*"}, Rejoin: "deny", LimitedBy: map[string]string{"rejoin": "scaler", "maxNodes": "all"}, NodeTaints: []string{"b:NoSchedule"}}), ",")
	if want := "names=a-*,rejoin=deny,maxNodes by rule all,rejoin by rule scaler,taints=b:NoSchedule"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

package approval_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
)

func TestServingScopeIsZero(t *testing.T) {
	for _, test := range []struct {
		scope approval.ServingScope
		want  bool
	}{
		{approval.ServingScope{}, true},
		{approval.ServingScope{ControlPlane: []string{"cp-*"}}, true},
		{approval.ServingScope{LeaveAlone: approval.DenialReasons()}, true},
		{approval.ServingScope{CIDRs: scope.CIDRs}, false},
		{approval.ServingScope{DNSSuffixes: scope.DNSSuffixes}, false},
	} {
		if test.scope.IsZero() != test.want {
			t.Errorf("IsZero of %+v = %t, want %t", test.scope, test.scope.IsZero(), test.want)
		}
	}
}

func TestKubeletServingNeedsValidScope(t *testing.T) {
	for what, test := range map[string]struct {
		scope approval.ServingScope
		want  string
	}{
		"zero range":      {approval.ServingScope{CIDRs: []netip.Prefix{{}}}, "invalid address range: want a CIDR"},
		"every address":   {approval.ServingScope{CIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, "it contains every address"},
		"every name":      {approval.ServingScope{DNSSuffixes: []string{"."}}, "every name"},
		"malformed names": {approval.ServingScope{ControlPlane: []string{"A*"}}, "pattern"},
		"other reason":    {approval.ServingScope{LeaveAlone: []string{approval.ReasonNameOutOfScope}}, "ServingNameOutOfScope"},
	} {
		if _, err := approval.NewKubeletServing(test.scope); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: NewKubeletServing = %v, want an error with %q", what, err, test.want)
		}
	}
}

func TestParseServingCIDRQuotesInput(t *testing.T) {
	if _, err := approval.ParseServingCIDR("10.0.0.0/33"); err == nil || !strings.Contains(err.Error(), `"10.0.0.0/33"`) {
		t.Errorf("got error %v, want the input in it", err)
	}
}

func TestMaySignWaitsWithoutFacts(t *testing.T) {
	request := kubeletRequest("jane", func(r *approval.Request) { r.SignerName = "example.com/etcd-peer" })
	if d, err := approval.Decide(t.Context(), []approval.Rule{approval.MaySign{}}, request, nil); d.Verdict != approval.Wait || err == nil {
		t.Errorf("Decide = %+v, %v, want to wait and an error", d, err)
	}
}

// reportsNothing finds no Node that reports an address. It returns an empty entry for each address.
type reportsNothing struct{ *world }

func (reportsNothing) Reporters(_ context.Context, _ string, addresses []string) (map[string][]string, error) {
	reporters := map[string][]string{}
	for _, address := range addresses {
		reporters[address] = nil
	}
	return reporters, nil
}

func TestServingApprovesAddressWithoutReporters(t *testing.T) {
	rules := []approval.Rule{must.Get(approval.NewKubeletServing(scope))}
	d, err := approval.Decide(t.Context(), rules, servingRequest("worker-1", "10.0.0.5"), reportsNothing{servingWorld()})
	if d.Verdict != approval.Approve || err != nil {
		t.Errorf("Decide = %+v, %v, want to approve", d, err)
	}
}

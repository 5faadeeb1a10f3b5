package admission

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestRestrictRestoresLimitsFromClaims(t *testing.T) {
	id := tokens.Generate()
	claim := func(node string, change func(*tokens.Claim)) tokens.Claim {
		c := tokens.Claim{Node: node, TokenID: id.ID(), TokenUID: "u", Keys: []string{"k"}}
		if change != nil {
			change(&c)
		}
		return c
	}
	names := func(list ...string) func(*tokens.Claim) {
		return func(c *tokens.Claim) { c.Limits.NodeNames = list }
	}
	most := func(n int) func(*tokens.Claim) { return func(c *tokens.Claim) { c.Limits.MaxNodes = n } }
	node := func(labels, taints, after string) func(*tokens.Claim) {
		return func(c *tokens.Claim) {
			c.Limits.Node = tokens.NodeProperties{Labels: labels, Taints: taints, ReadyAfter: after}
		}
	}
	properties := func(labels, taints, after string) tokens.Limits {
		var c tokens.Claim
		node(labels, taints, after)(&c)
		return c.Limits
	}
	replaces := func(c *tokens.Claim) { c.Limits.Replaces = tokens.NodeRef{Name: c.Node, UID: "old"} }
	ruled := tokens.Limits{Rules: []tokens.Rule{{Name: "scaler", Limits: tokens.Limits{MaxNodes: 1}}}}
	for name, test := range map[string]struct {
		limits tokens.Limits
		nodes  []string
		claims []tokens.Claim
		want   tokens.Limits
		counts []string
	}{
		"no claims":                     {limits: tokens.Limits{MaxNodes: 2}, want: tokens.Limits{MaxNodes: 2}},
		"nothing lost":                  {limits: tokens.Limits{MaxNodes: 2}, nodes: []string{"a"}, claims: []tokens.Claim{claim("a", most(2))}, want: tokens.Limits{MaxNodes: 2}, counts: []string{"a"}},
		"count":                         {limits: tokens.Limits{MaxNodes: 2}, claims: []tokens.Claim{claim("a", most(2))}, want: tokens.Limits{MaxNodes: 2}, counts: []string{"a"}},
		"limit and count":               {claims: []tokens.Claim{claim("a", most(2))}, want: tokens.Limits{MaxNodes: 2}, counts: []string{"a"}},
		"limit, the smaller of two":     {claims: []tokens.Claim{claim("a", most(3)), claim("b", most(2))}, want: tokens.Limits{MaxNodes: 2}, counts: []string{"a", "b"}},
		"a limit that was raised stays": {limits: tokens.Limits{MaxNodes: 5}, claims: []tokens.Claim{claim("a", most(1))}, want: tokens.Limits{MaxNodes: 5}, counts: []string{"a"}},
		"names":                         {claims: []tokens.Claim{claim("a", names("a", "b*"))}, want: tokens.Limits{NodeNames: []string{"a", "b*"}}},
		"names that were changed stay":  {limits: tokens.Limits{NodeNames: []string{"x"}}, claims: []tokens.Claim{claim("a", names("a"))}, want: tokens.Limits{NodeNames: []string{"x"}}},
		"another token's claim counts": {limits: tokens.Limits{MaxNodes: 1}, claims: []tokens.Claim{claim("a", func(c *tokens.Claim) { c.TokenUID = "before" })},
			want: tokens.Limits{MaxNodes: 1}, counts: []string{"a"}},
		"a limit of a rule is not restored": {claims: []tokens.Claim{claim("a", func(c *tokens.Claim) {
			c.Limits.Rules = []tokens.Rule{{Name: "scaler", Limits: tokens.Limits{CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny}}}
		})}},
		"count, for a rule":                         {limits: ruled, claims: []tokens.Claim{claim("a", nil), claim("b", nil)}, want: ruled, counts: []string{"a", "b"}},
		"duration":                                  {claims: []tokens.Claim{claim("a", func(c *tokens.Claim) { c.Limits.CertificateDuration = time.Hour })}, want: tokens.Limits{CertificateDuration: time.Hour}},
		"taints, without labels":                    {claims: []tokens.Claim{claim("a", nil), claim("b", node("a=b", "a:NoSchedule", "labels"))}, want: properties("", "a:NoSchedule", "labels")},
		"labels alone are not put back":             {claims: []tokens.Claim{claim("a", node("a=b", "", "labels"))}},
		"wait for a serving certificate":            {claims: []tokens.Claim{claim("a", node("a=b", "", "serving-certificate"))}, want: properties("", "", "serving-certificate")},
		"taints that were changed stay":             {limits: properties("a=c", "", ""), claims: []tokens.Claim{claim("a", node("a=b", "a:NoSchedule", ""))}, want: properties("a=c", "", "")},
		"taints for a control plane":                {limits: tokens.Limits{Role: tokens.RoleControlPlane}, claims: []tokens.Claim{claim("a", node("", "a:NoSchedule", "labels"))}, want: tokens.Limits{Role: tokens.RoleControlPlane, Node: tokens.NodeProperties{Taints: "a:NoSchedule"}}},
		"a Node to replace is one node of one name": {claims: []tokens.Claim{claim("a", replaces)}, want: tokens.Limits{MaxNodes: 1, NodeNames: []string{"a"}}, counts: []string{"a"}},
		"another Node to replace stays":             {limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "b", UID: "u"}}, claims: []tokens.Claim{claim("a", names("a"))}, want: tokens.Limits{Replaces: tokens.NodeRef{Name: "b", UID: "u"}}, counts: []string{"a"}},
		"a role is not put back":                    {claims: []tokens.Claim{claim("a", func(c *tokens.Claim) { c.Limits.Role = tokens.RoleControlPlane })}},
		"registered first":                          {limits: tokens.Limits{MaxNodes: 1}, claims: []tokens.Claim{claim("a", nil), claim("b", func(c *tokens.Claim) { c.NodeUID = "n" })}, want: tokens.Limits{MaxNodes: 1}, counts: []string{"b", "a"}},
		"all claims, if the count was lost":         {limits: tokens.Limits{MaxNodes: 1}, claims: []tokens.Claim{claim("a", nil), claim("b", nil)}, want: tokens.Limits{MaxNodes: 1}, counts: []string{"a", "b"}},
		"no more than the limit":                    {limits: tokens.Limits{MaxNodes: 2}, nodes: []string{"x"}, claims: []tokens.Claim{claim("a", nil), claim("b", nil)}, want: tokens.Limits{MaxNodes: 2}, counts: []string{"x", "a"}},
	} {
		r := tokens.Record{Token: id, UID: "u", Limits: test.limits, Nodes: slices.Clone(test.nodes)}
		changed := restrict(&r, test.claims)
		if !r.Limits.Equal(test.want) || !slices.Equal(r.Nodes, test.counts) {
			t.Errorf("%s: got %+v, counts %q; want %+v, %q", name, r.Limits, r.Nodes, test.want, test.counts)
		}
		if differs := !test.limits.Equal(r.Limits) || !slices.Equal(test.nodes, r.Nodes); changed != differs {
			t.Errorf("%s: got changed %t", name, changed)
		}
		if err := r.Check(); err != nil {
			t.Errorf("%s: the record cannot be stored: %v", name, err)
		}
	}
}

// Whatever the claims contain, they must not allow a name, a Node or a number of nodes that the record did not
// allow.
func TestRestrictNeverGrantsMore(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 1))
	pool := []string{"a", "b", "c"}
	limits := func() (l tokens.Limits) {
		for l.Problem = fmt.Errorf("none yet"); l.Check() != nil; {
			l = tokens.Limits{MaxNodes: random.IntN(3)}
			for _, name := range pool {
				if random.IntN(3) == 0 {
					l.NodeNames = append(l.NodeNames, name)
				}
			}
			if random.IntN(3) == 0 {
				l.Replaces = tokens.NodeRef{Name: pool[random.IntN(3)], UID: "u"}
			}
			if random.IntN(3) == 0 {
				l.Role = tokens.RoleControlPlane
			}
			if random.IntN(3) == 0 {
				l.Node = tokens.NodeProperties{Labels: []string{"", "a=b"}[random.IntN(2)], Taints: []string{"", "a:NoSchedule"}[random.IntN(2)], ReadyAfter: []string{"", tokens.ReadyAfterLabels, tokens.ReadyAfterServingCertificate}[random.IntN(3)]}
			}
			l.CertificateDuration = time.Duration(random.IntN(3)) * time.Hour
		}
		return l
	}
	for range 20_000 {
		before := tokens.Record{Token: tokens.Generate(), UID: "u", Limits: limits()}
		after := before
		var claims []tokens.Claim
		for _, node := range pool[:random.IntN(4)] {
			claims = append(claims, tokens.Claim{Node: node, TokenUID: []string{"u", "v"}[random.IntN(2)], Limits: limits(), Keys: []string{"k"}})
		}
		restrict(&after, claims)
		b, a := before.Limits, after.Limits
		if a.Replaces != b.Replaces || a.Role != b.Role || a.Node.Labels != b.Node.Labels || b.Node != (tokens.NodeProperties{}) && a.Node != b.Node ||
			b.NodeLimit() > 0 && a.NodeLimit() != b.NodeLimit() || b.CertificateDuration > 0 && a.CertificateDuration != b.CertificateDuration ||
			len(after.Nodes) > max(a.NodeLimit(), len(claims)) || after.Check() != nil {
			t.Fatalf("%+v becomes %+v, which counts %q, by %+v", b, a, after.Nodes, claims)
		}
		for _, name := range append(pool, "d") {
			if a.AllowsName(name) && !b.AllowsName(name) {
				t.Fatalf("%+v becomes %+v, which allows %s", b, a, name)
			}
		}
	}
}

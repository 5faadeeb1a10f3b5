package tokens_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestRulesOnlyTighten(t *testing.T) {
	type limits = tokens.Limits
	rule := func(name string, l limits) tokens.Rule { return tokens.Rule{Name: name, Limits: l} }
	for _, test := range []struct {
		name  string
		own   limits
		rules []tokens.Rule
		want  limits
		by    map[string]string
	}{
		{name: "no rules", own: limits{MaxNodes: 3}, want: limits{MaxNodes: 3}},
		{name: "unlimited", rules: []tokens.Rule{rule("a", limits{MaxNodes: 3, CertificateDuration: time.Hour, Rejoin: "deny"})},
			want: limits{MaxNodes: 3, CertificateDuration: time.Hour, Rejoin: "deny"}, by: map[string]string{"max-nodes": "a", "certificate-duration": "a", "rejoin": "a"}},
		{name: "looser", own: limits{MaxNodes: 1, CertificateDuration: time.Hour, Rejoin: "deny"}, rules: []tokens.Rule{rule("a", limits{MaxNodes: 10, CertificateDuration: 2 * time.Hour, Rejoin: "deny"})},
			want: limits{MaxNodes: 1, CertificateDuration: time.Hour, Rejoin: "deny"}},
		{name: "the strictest of each", own: limits{MaxNodes: 9, Rejoin: "allow"}, rules: []tokens.Rule{rule("a", limits{MaxNodes: 5, CertificateDuration: time.Hour}), rule("b", limits{MaxNodes: 7}), rule("c", limits{MaxNodes: 2, CertificateDuration: 3 * time.Hour, Rejoin: "deny"})},
			want: limits{MaxNodes: 2, CertificateDuration: time.Hour, Rejoin: "deny"}, by: map[string]string{"max-nodes": "c", "certificate-duration": "a", "rejoin": "c"}},
		{name: "names of two rules", rules: []tokens.Rule{rule("a", limits{NodeNames: []string{"a-*"}}), rule("b", limits{NodeNames: []string{"*-1"}})},
			want: limits{NodeNames: []string{"a-*"}}, by: map[string]string{"node-names": "a, b"}},
		{name: "worker", own: limits{Role: tokens.RoleControlPlane}, rules: []tokens.Rule{{Name: "a", Worker: true}}, by: map[string]string{"role": "a"}},
		{name: "worker of a worker", rules: []tokens.Rule{{Name: "a", Worker: true}}},
		{name: "replaces what a rule does not allow", own: limits{Replaces: tokens.NodeRef{Name: "x", UID: "u"}}, rules: []tokens.Rule{rule("a", limits{NodeNames: []string{"y"}})},
			want: limits{Replaces: tokens.NodeRef{Name: "x", UID: "u"}, NodeNames: []string{"y"}}, by: map[string]string{"node-names": "a"}},
		{name: "replaces", own: limits{Replaces: tokens.NodeRef{Name: "x", UID: "u"}}, rules: []tokens.Rule{rule("a", limits{MaxNodes: 5})}, want: limits{Replaces: tokens.NodeRef{Name: "x", UID: "u"}}},
	} {
		l := test.own
		l.Rules = test.rules
		if got := l.Strictest(); !got.Equal(test.want) {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
		if by := l.LimitedBy(); !maps.Equal(by, test.by) {
			t.Errorf("%s: limited by %v, want %v", test.name, by, test.by)
		}
		if err := l.Check(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if zero := test.want.IsZero() && test.own.IsZero(); l.IsZero() != zero {
			t.Errorf("%s: got zero %t, want %t", test.name, !zero, zero)
		}
		if len(test.rules) > 0 && l.Equal(test.own) {
			t.Errorf("%s: equals limits without rules", test.name)
		}
	}
	both := limits{NodeNames: []string{"a-*", "b-*"}, Rules: []tokens.Rule{rule("r", limits{NodeNames: []string{"*-1"}})}}
	for name, want := range map[string]string{"a-1": "[] ", "a-2": "[*-1] r", "c-1": "[a-* b-*] "} {
		if names, by := both.NamesInstead(name); fmt.Sprintf("%v %s", names, by) != want || both.AllowsName(name) != (names == nil) {
			t.Errorf("%s: got %v by %q, want %s", name, names, by, want)
		}
	}
	kept := limits{MaxNodes: 3, Rules: []tokens.Rule{rule("a", limits{MaxNodes: 1, NodeNames: []string{"x"}}), rule("b", limits{MaxNodes: 1, CertificateDuration: time.Hour})}}.Kept()
	if want := (limits{MaxNodes: 3, Rules: []tokens.Rule{rule("b", limits{CertificateDuration: time.Hour})}}); !kept.Equal(want) {
		t.Errorf("kept %+v, want %+v", kept, want)
	}
	bad := limits{Rules: []tokens.Rule{rule("r", limits{CertificateDuration: time.Second})}}
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "certificate-duration: rule r: 1s given") {
		t.Errorf("got %v, want the field and the rule", err)
	}
}

// The writer of a token chooses all that a rule matches.
func TestLimitRuleMatches(t *testing.T) {
	many := map[string]string{"app": "scaler"}
	for i := range 10_000 {
		many[fmt.Sprintf("example.com/l%d", i)] = "\x00\n"
	}
	groups := []string{"system:bootstrappers:a", "system:bootstrappers:b"}
	for name, test := range map[string]struct {
		rule        tokens.LimitRule
		description string
		groups      []string
		labels      map[string]string
		want        bool
	}{
		"empty":                        {want: true, description: "x"},
		"description":                  {rule: tokens.LimitRule{Description: "scaler *"}, description: "scaler 7", want: true},
		"another description":          {rule: tokens.LimitRule{Description: "scaler *"}, description: "scaler"},
		"control characters":           {rule: tokens.LimitRule{Description: "scaler*"}, description: "scaler\x00\n\x1b[2J\xff", want: true},
		"long description":             {rule: tokens.LimitRule{Description: "*a*a*a*b"}, description: strings.Repeat("a", 1<<20)},
		"no description":               {rule: tokens.LimitRule{Description: "?"}},
		"one group":                    {rule: tokens.LimitRule{Groups: groups[:1]}, groups: groups, want: true},
		"all groups":                   {rule: tokens.LimitRule{Groups: groups}, groups: groups[:1]},
		"label among many":             {rule: tokens.LimitRule{Labels: map[string]string{"app": "scaler"}}, labels: many, want: true},
		"another value":                {rule: tokens.LimitRule{Labels: map[string]string{"app": "scaler"}}, labels: map[string]string{"app": "x"}},
		"no label":                     {rule: tokens.LimitRule{Labels: map[string]string{"app": ""}}},
		"description, another label":   {rule: tokens.LimitRule{Description: "*", Labels: map[string]string{"app": "x"}}, labels: many},
		"description, group and label": {rule: tokens.LimitRule{Description: "d", Groups: groups, Labels: map[string]string{"app": "scaler"}}, description: "d", groups: groups, labels: many, want: true},
	} {
		if got := test.rule.Matches(tokens.Record{Description: test.description, Groups: test.groups}, test.labels); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}

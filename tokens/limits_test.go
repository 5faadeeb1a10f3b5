package tokens_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestMatchNodeName(t *testing.T) {
	for _, test := range []struct {
		pattern string
		yes, no []string
	}{
		{"worker-1", []string{"worker-1"}, []string{"worker-10", "xworker-1", "", "worker-"}},
		{"*", []string{"", "a", "a.b"}, nil},
		{"web-*", []string{"web-", "web-1", "web-1.example.com"}, []string{"web", "xweb-1", "we"}},
		{"*.example.com", []string{"a.example.com", "a.b.example.com"}, []string{"example.com", "a.example.com.evil"}},
		{"a*b*c", []string{"abc", "axbxc", "abbc", "abcbc"}, []string{"ab", "acb", "xabc", "abcx"}},
		{"ab*ba", []string{"abba", "abxba"}, []string{"aba", "ab"}},
		{"a*bb*c", []string{"abbc"}, []string{"abc", "ac"}},
		{"a**b", []string{"ab", "axb"}, []string{"a", "b"}},
		{"**", []string{"", "x"}, nil},
	} {
		for _, name := range test.yes {
			if !tokens.MatchNodeName(test.pattern, name) {
				t.Errorf("%q does not match %q", test.pattern, name)
			}
		}
		for _, name := range test.no {
			if tokens.MatchNodeName(test.pattern, name) {
				t.Errorf("%q matches %q", test.pattern, name)
			}
		}
	}
}

func TestCheckNodeName(t *testing.T) {
	for _, name := range []string{"a", "worker-1", "1", "a.b", "ip-10-0-0-1.eu-west-1.compute.internal", strings.Repeat("a", 253)} {
		if err := tokens.CheckNodeName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "A", "-a", "a-", "a..b", ".a", "a.", "a_b", "a b", "ä", "a.-b", "a/b", "*", strings.Repeat("a", 254)} {
		if tokens.CheckNodeName(name) == nil {
			t.Errorf("got CheckNodeName(%q) = nil, want an error", name)
		}
	}
}

func TestLimitsCheck(t *testing.T) {
	replaces := tokens.NodeRef{Name: "worker-1", UID: "8f2b"}
	for _, test := range []struct {
		name   string
		limits tokens.Limits
		want   string // part of the error; empty: no error
	}{
		{name: "none"},
		{name: "all", limits: tokens.Limits{MaxNodes: 1000, NodeNames: []string{"a", "b-*"}, CertificateDuration: 8 * time.Hour, Role: "control-plane"}},
		{name: "replaces", limits: tokens.Limits{Replaces: replaces, MaxNodes: 1, NodeNames: []string{"worker-*"}}},
		{name: "too many", limits: tokens.Limits{MaxNodes: 1001}, want: "max-nodes: 1001 given, want 1 to 1000"},
		{name: "negative", limits: tokens.Limits{MaxNodes: -1}, want: "max-nodes: -1"},
		{name: "upper case", limits: tokens.Limits{NodeNames: []string{"Worker"}}, want: `node-names: node name "Worker"`},
		{name: "pattern", limits: tokens.Limits{NodeNames: []string{"a/*"}}, want: `node-names: node name pattern "a/*"`},
		{name: "longest pattern", limits: tokens.Limits{NodeNames: []string{strings.Repeat("a", 252) + "*"}}},
		{name: "longer pattern", limits: tokens.Limits{NodeNames: []string{strings.Repeat("a", 253) + "*"}}, want: "node-names: node name pattern"},
		{name: "empty name", limits: tokens.Limits{NodeNames: []string{""}}, want: "node-names"},
		{name: "name that is reserved for Leases of kubejoin", limits: tokens.Limits{NodeNames: []string{"kubejoin-x"}}, want: "node-names: node name kubejoin-x, want another one"},
		{name: "replaces a name that is reserved for Leases of kubejoin", limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "kubejoin", UID: "8f2b"}}, want: "replaces-node: node name kubejoin, want another one"},
		{name: "twice", limits: tokens.Limits{NodeNames: []string{"a", "a"}}, want: `"a" is given twice`},
		{name: "many names", limits: tokens.Limits{NodeNames: []string{"a", strings.Repeat("a*", 100), strings.Repeat("b*", 40<<10)}}, want: "node-names"},
		{name: "too long together", limits: tokens.Limits{NodeNames: manyNames(tokens.MaxNodeNamesBytes)}, want: "allowed"},
		{name: "long names for many nodes", limits: tokens.Limits{MaxNodes: 1000, NodeNames: manyNames(60 << 10)}},
		{name: "patterns for many nodes", limits: tokens.Limits{MaxNodes: 1000, NodeNames: append(manyNames(2600), "*", strings.Repeat("a", 251)+"*")}},
		{name: "longer patterns for many nodes", limits: tokens.Limits{MaxNodes: 1000, NodeNames: append(manyNames(2600), "*", strings.Repeat("a", 252)+"*")}, want: "node-names: 3049 bytes given with labels and taints, 3048 allowed with patterns and max-nodes 1000"},
		{name: "longer patterns for fewer nodes", limits: tokens.Limits{MaxNodes: 999, NodeNames: append(manyNames(2600), "*", strings.Repeat("a", 252)+"*")}},
		{name: "short", limits: tokens.Limits{CertificateDuration: 9 * time.Minute}, want: "certificate-duration: 9m given"},
		{name: "fraction", limits: tokens.Limits{CertificateDuration: time.Hour + time.Millisecond}, want: "certificate-duration"},
		{name: "long", limits: tokens.Limits{CertificateDuration: 101 * 365 * 24 * time.Hour}, want: "certificate-duration"},
		{name: "rejoin", limits: tokens.Limits{Rejoin: "yes"}, want: `rejoin: "yes" given`},
		{name: "role", limits: tokens.Limits{Role: "master"}, want: `role: "master" given`},
		{name: "replaces without UID", limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1"}}, want: "replaces-node"},
		{name: "replaces no name", limits: tokens.Limits{Replaces: tokens.NodeRef{UID: "8f2b"}}, want: "replaces-node"},
		{name: "replaces with slash in UID", limits: tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "8f/2b"}}, want: "replaces-node"},
		{name: "replaces many", limits: tokens.Limits{Replaces: replaces, MaxNodes: 2}, want: "max-nodes: 2 given"},
		{name: "replaces another", limits: tokens.Limits{Replaces: replaces, NodeNames: []string{"worker-2"}}, want: "node-names"},
		{name: "labels", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=,node-role.kubernetes.io/db=,x.example/b=C_.d", ReadyAfter: "labels"}}},
		{name: "taints", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "a:NoExecute,a:NoSchedule,b=c:PreferNoSchedule", ReadyAfter: "serving-certificate"}}},
		{name: "labels for many nodes", limits: tokens.Limits{MaxNodes: 1000, Node: tokens.NodeProperties{Labels: labels(16, 252)}}, want: "with labels and taints"},
		{name: "most labels", limits: tokens.Limits{MaxNodes: 900, Node: tokens.NodeProperties{Labels: labels(16, 252), Taints: taints(16, 252)}}},
		{name: "17 labels", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: labels(17, 9)}}, want: "node-labels: 17 given, 16 allowed"},
		{name: "17 taints", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: taints(17, 9)}}, want: "node-taints: 17 given, 16 allowed"},
		{name: "unsorted labels", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "b=,a="}}, want: "want them sorted"},
		{name: "label without value", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a"}}, want: `node-labels: "a" given, want KEY=VALUE`},
		{name: "empty label", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=,"}}, want: "node-labels"},
		{name: "label value", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b c"}}, want: `node-labels: value "b c"`},
		{name: "long label value", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=" + strings.Repeat("b", 64)}}, want: "node-labels: value"},
		{name: "control character", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b\n"}}, want: "node-labels: value"},
		{name: "label prefix", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "A/b="}}, want: `node-labels: key "A/b"`},
		{name: "label name", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a/=", ReadyAfter: "labels"}}, want: `node-labels: key "a/"`},
		{name: "label twice", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=1,a=2"}}, want: "node-labels: a is given twice"},
		{name: "host name", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "kubernetes.io/hostname=a"}}, want: "want one that the kubelet does not set"},
		{name: "zone", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "topology.kubernetes.io/zone=a"}}, want: "want one that the cloud does not set"},
		{name: "own label", limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "kubejoin.io/a=b"}}, want: "want one that kubejoin does not set"},
		{name: "taint of joining", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "kubejoin.io/joining:NoSchedule"}}, want: "node-taints: key kubejoin.io/joining"},
		{name: "taint of a controller", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "node.kubernetes.io/unschedulable:NoSchedule"}}, want: "node-taints: key"},
		{name: "taint without effect", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "a=b"}}, want: "want KEY=VALUE:EFFECT"},
		{name: "taint effect", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "a:Never"}}, want: "want KEY=VALUE:EFFECT"},
		{name: "taint with empty value", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "a=:NoSchedule"}}, want: "want KEY=VALUE:EFFECT"},
		{name: "taint twice", limits: tokens.Limits{Node: tokens.NodeProperties{Taints: "a=b:NoSchedule,a=c:NoSchedule"}}, want: "node-taints: a:NoSchedule is given twice"},
		{name: "ready after", limits: tokens.Limits{Node: tokens.NodeProperties{ReadyAfter: "never"}}, want: `node-ready-after: "never" given`},
		{name: "ready after no labels", limits: tokens.Limits{Node: tokens.NodeProperties{ReadyAfter: "labels"}}, want: "want node-labels or node-taints"},
		{name: "ready control plane", limits: tokens.Limits{Role: "control-plane", Node: tokens.NodeProperties{ReadyAfter: "serving-certificate"}}, want: "the taint is for workers"},
		{name: "problem", limits: tokens.Limits{Problem: errors.New("of others")}, want: "of others"},
	} {
		err := test.limits.Check()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
		if test.name != "none" && test.limits.IsZero() {
			t.Errorf("%s: got IsZero, want not zero", test.name)
		}
	}
}

// labels returns n valid labels whose keys have a prefix of the given length.
func labels(n, length int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%0*d/%063d=%063d", length, i, i, i)
	}
	return strings.Join(all, ",")
}

// taints is like labels, for taints.
func taints(n, length int) string {
	return strings.Join(strings.Split(labels(n, length), ","), ":NoSchedule,") + ":NoSchedule"
}

// manyNames returns different valid node names with more than n bytes in total.
func manyNames(n int) []string {
	var names []string
	for size := 0; size <= n; size += 253 {
		names = append(names, fmt.Sprintf("%0253d", len(names)))
	}
	return names
}

// Check must not return thousands of errors for thousands of invalid names.
func TestLimitsNumberOfNodeNameErrors(t *testing.T) {
	for name, names := range map[string][]string{
		"repeated": slices.Repeat([]string{"worker-1"}, 5000),
		"no names": slices.Repeat([]string{"Worker"}, 5000),
	} {
		err := tokens.Limits{NodeNames: names}.Check()
		if err == nil || strings.Count(err.Error(), "\n") != 10 || !strings.Contains(err.Error(), "more are not checked") {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}

func TestReplacingTokenAllowsOneName(t *testing.T) {
	limits := tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "8f2b"}}
	for _, names := range [][]string{nil, {"worker-*"}} {
		limits.NodeNames = names
		if !limits.AllowsName("worker-1") || limits.AllowsName("worker-2") {
			t.Errorf("node names %q: worker-1 %t, worker-2 %t, want worker-1 only", names, limits.AllowsName("worker-1"), limits.AllowsName("worker-2"))
		}
	}
}

func TestDifferentLimitsAreNotEqual(t *testing.T) {
	zero := tokens.Limits{}
	for name, other := range map[string]tokens.Limits{
		"MaxNodes":            {MaxNodes: 1},
		"NodeNames":           {NodeNames: []string{"a"}},
		"CertificateDuration": {CertificateDuration: time.Hour},
		"Replaces":            {Replaces: tokens.NodeRef{Name: "worker-1", UID: "8f2b"}},
		"UID of Replaces":     {Replaces: tokens.NodeRef{UID: "8f2b"}},
		"Role":                {Role: tokens.RoleControlPlane},
		"Rejoin":              {Rejoin: tokens.RejoinDeny},
		"Problem":             {Problem: errors.New("of others")},
	} {
		if zero.Equal(other) || other.Equal(zero) || !other.Equal(other) {
			t.Errorf("%s: got equal, want different", name)
		}
	}
}

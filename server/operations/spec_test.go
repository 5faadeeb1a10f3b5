package operations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
)

var errNode = errors.New("etcd is on fire")

// node reads the Nodes of a cluster that has only worker-3.
func node(_ context.Context, name string) (tokens.NodeRef, error) {
	switch name {
	case "worker-3":
		return tokens.NodeRef{Name: name, UID: "uid-3"}, nil
	case "away":
		return tokens.NodeRef{}, errNode
	}
	return tokens.NodeRef{}, fmt.Errorf("node: %w", tokens.ErrNotFound)
}

// cluster has Nodes that kubejoin may patch.
var cluster = operations.Readers{Node: node, Owner: operations.GivenOwner, NodeProperties: func(context.Context, string) error { return nil }}

func TestCreateRequest(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 5e8, time.UTC)
	both := func(r mint.Creation) bool {
		return r.Record.Signing && r.Record.Authentication && slices.Equal(r.Record.Groups, []string{tokens.DefaultGroup})
	}
	expires := func(at time.Time, lifetime time.Duration) func(mint.Creation) bool {
		return func(r mint.Creation) bool { return both(r) && r.Record.Expires.Equal(at) && r.Lifetime == lifetime }
	}
	limited := func(want tokens.Limits) func(mint.Creation) bool {
		return func(r mint.Creation) bool { return both(r) && r.Record.Limits.Equal(want) }
	}
	waits := func(d time.Duration) func(mint.Creation) bool {
		return func(r mint.Creation) bool { return r.Wait == d }
	}
	own := tokens.Generate()
	type spec = api.TokenSpec
	for _, test := range []struct {
		name          string
		req           api.CreateToken
		usual         time.Duration
		want          func(mint.Creation) bool
		field, detail string
	}{
		// The expiration is rounded up to whole seconds, so that the token lives at least its TTL.
		{name: "defaults", want: expires(now.Add(tokens.DefaultTTL+5e8), tokens.DefaultTTL+5e8)},
		{name: "ttl", req: api.CreateToken{TokenSpec: spec{TTL: "1s"}}, want: expires(now.Add(15e8), 15e8)},
		{name: "never expires", req: api.CreateToken{TokenSpec: spec{TTL: "0"}}, want: expires(time.Time{}, 0)},
		{name: "a time", req: api.CreateToken{TokenSpec: spec{Expires: "2031-01-02T03:04:05+01:00"}}, want: expires(time.Date(2031, 1, 2, 2, 4, 5, 0, time.UTC), 0)},
		{name: "a time and a ttl", req: api.CreateToken{TokenSpec: spec{Expires: "2031-01-02T03:04:05Z", TTL: "1h"}}, field: "expires", detail: "cannot be combined with ttl"},
		{name: "malformed time", req: api.CreateToken{TokenSpec: spec{Expires: "tomorrow"}}, field: "expires", detail: `"tomorrow" is not a time such as 2030-01-03T03:04:05Z`},
		{name: "past", req: api.CreateToken{TokenSpec: spec{Expires: "2001-01-02T03:04:05Z"}}, field: "expires", detail: "in the future"},
		{name: "less than a second", req: api.CreateToken{TokenSpec: spec{Expires: "2030-01-02T03:04:06.9Z"}}, field: "expires", detail: "in the future"},
		{name: "far future", req: api.CreateToken{TokenSpec: spec{Expires: "2999-01-02T03:04:05Z"}}, field: "expires", detail: "in the future, at most 87600h from now"},
		{name: "malformed ttl", req: api.CreateToken{TokenSpec: spec{TTL: "long"}}, field: "ttl", detail: `"long" given; want a duration`},
		{name: "longest ttl", req: api.CreateToken{TokenSpec: spec{TTL: "36501d"}}, field: "ttl", detail: `"36501d" given; want at most 36500d`},
		{name: "negative ttl", req: api.CreateToken{TokenSpec: spec{TTL: "-1h"}}, field: "ttl", detail: "want 1s to 87600h, or 0 to never expire"},
		{name: "short ttl", req: api.CreateToken{TokenSpec: spec{TTL: "999ms"}}, field: "ttl", detail: "want 1s"},
		{name: "long ttl", req: api.CreateToken{TokenSpec: spec{TTL: "87601h"}}, field: "ttl", detail: "want 1s to 87600h"},

		{name: "for signing", req: api.CreateToken{TokenSpec: spec{Usages: []string{"signing"}}}, want: func(r mint.Creation) bool {
			return r.Record.Signing && !r.Record.Authentication && len(r.Record.Groups) == 0
		}},
		{name: "for authentication", req: api.CreateToken{TokenSpec: spec{Usages: []string{"authentication"}}}, want: func(r mint.Creation) bool {
			return !r.Record.Signing && r.Record.Authentication && len(r.Record.Groups) == 1
		}},
		{name: "unknown usage", req: api.CreateToken{TokenSpec: spec{Usages: []string{"signing", "sealing"}}}, field: "usages", detail: `"sealing" given, want signing or authentication`},
		{name: "own group", req: api.CreateToken{TokenSpec: spec{Groups: []string{"system:bootstrappers:a"}}}, want: func(r mint.Creation) bool {
			return slices.Equal(r.Record.Groups, []string{"system:bootstrappers:a"})
		}},
		{name: "no groups", req: api.CreateToken{TokenSpec: spec{Groups: []string{}}}, want: func(r mint.Creation) bool { return r.Record.Authentication && len(r.Record.Groups) == 0 }},
		{name: "admins", req: api.CreateToken{TokenSpec: spec{Groups: []string{"system:masters"}}}, field: "groups", detail: `"system:masters" does not match`},
		{name: "groups without authentication", req: api.CreateToken{TokenSpec: spec{Usages: []string{"signing"}, Groups: []string{"system:bootstrappers:a"}}}, field: "groups", detail: "need usage authentication"},

		{
			name: "limits", req: api.CreateToken{TokenSpec: spec{MaxNodes: 3, NodeNames: []string{"worker-*", "gw"}, CertificateDuration: "720h", Role: "control-plane", Rejoin: "deny"}},
			want: limited(tokens.Limits{MaxNodes: 3, NodeNames: []string{"worker-*", "gw"}, CertificateDuration: 720 * time.Hour, Role: "control-plane", Rejoin: "deny"}),
		},
		{name: "too many nodes", req: api.CreateToken{TokenSpec: spec{MaxNodes: 1001}}, field: "maxNodes", detail: "1001 given, want 1 to 1000"},
		{name: "invalid name", req: api.CreateToken{TokenSpec: spec{NodeNames: []string{"Worker"}}}, field: "nodeNames", detail: `node name "Worker"`},
		{name: "two invalid fields", req: api.CreateToken{TokenSpec: spec{MaxNodes: -1, Role: "king"}}, field: "maxNodes", detail: `role: "king" given`},
		{name: "malformed duration", req: api.CreateToken{TokenSpec: spec{CertificateDuration: "long"}}, field: "certificateDuration", detail: `"long" given`},
		{name: "zero duration", req: api.CreateToken{TokenSpec: spec{CertificateDuration: "0s"}}, field: "certificateDuration", detail: `"0s" given`},
		{name: "short duration", req: api.CreateToken{TokenSpec: spec{CertificateDuration: "1m"}}, field: "certificateDuration", detail: "1m given, want whole seconds from 10m"},

		{name: "replaces a Node", req: api.CreateToken{TokenSpec: spec{ReplaceNode: "worker-3"}}, want: limited(tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-3", UID: "uid-3"}})},
		{name: "replaces no Node", req: api.CreateToken{TokenSpec: spec{ReplaceNode: "worker-4"}}, field: "replaceNode", detail: "there is no Node worker-4"},
		{name: "replaces an invalid name", req: api.CreateToken{TokenSpec: spec{ReplaceNode: "Worker/3"}}, field: "replaceNode", detail: `node name "Worker/3"`},
		{name: "replaces a Node by three", req: api.CreateToken{TokenSpec: spec{ReplaceNode: "worker-3", MaxNodes: 3}}, field: "maxNodes", detail: "want at most 1 with replaces-node"},
		{name: "owner", req: api.CreateToken{TokenSpec: spec{Owner: "v1/Node/worker-3/uid-3"}}, want: func(r mint.Creation) bool {
			return both(r) && r.Record.Owner == tokens.Owner{APIVersion: "v1", Kind: "Node", Name: "worker-3", UID: "uid-3"}
		}},
		{name: "owner without UID", req: api.CreateToken{TokenSpec: spec{Owner: "v1/Node/worker-3"}}, field: "owner", detail: "UID is missing, want APIVERSION/KIND/NAME/UID"},
		{name: "malformed owner", req: api.CreateToken{TokenSpec: spec{Owner: "v1/node/worker-3/uid-3"}}, field: "owner", detail: `KIND "node" given`},

		{
			name: "node properties", req: api.CreateToken{TokenSpec: spec{NodeLabels: []string{"b.example/b=", "a=1"}, NodeTaints: []string{"c:NoSchedule", "a=b:NoExecute"}, NodeReadyAfter: "serving-certificate"}},
			want: limited(tokens.Limits{Node: tokens.NodeProperties{Labels: "a=1,b.example/b=", Taints: "a=b:NoExecute,c:NoSchedule", ReadyAfter: "serving-certificate"}}),
		},
		{name: "10000 labels", req: api.CreateToken{TokenSpec: spec{NodeLabels: slices.Repeat([]string{"a=b"}, 10_000)}}, field: "nodeLabels", detail: "10000 given, 16 allowed"},
		{name: "10000 labels in one", req: api.CreateToken{TokenSpec: spec{NodeLabels: []string{strings.Repeat("a=b,", 10_000)}}}, field: "nodeLabels", detail: "10001 given, 16 allowed"},
		{name: "17 taints", req: api.CreateToken{TokenSpec: spec{NodeTaints: slices.Repeat([]string{"a:NoSchedule"}, 17)}}, field: "nodeTaints", detail: "17 given, 16 allowed"},
		{name: "label twice", req: api.CreateToken{TokenSpec: spec{NodeLabels: []string{"a=b", "a=c"}}}, field: "nodeLabels", detail: "a is given twice"},
		{name: "label with a control character", req: api.CreateToken{TokenSpec: spec{NodeLabels: []string{"a=b\n"}}}, field: "nodeLabels", detail: `value "b\n"`},
		{name: "label of a cloud", req: api.CreateToken{TokenSpec: spec{NodeLabels: []string{"topology.kubernetes.io/zone=a"}}}, field: "nodeLabels", detail: "want one that the cloud does not set"},
		{name: "label of kubejoin", req: api.CreateToken{TokenSpec: spec{NodeTaints: []string{"kubejoin.io/joining:NoSchedule"}}}, field: "nodeTaints", detail: "want one that kubejoin does not set"},
		{name: "ready after nothing", req: api.CreateToken{TokenSpec: spec{NodeReadyAfter: "labels"}}, field: "nodeReadyAfter", detail: "want node-labels or node-taints with it"},

		{name: "usual wait", usual: time.Minute, want: waits(time.Minute)},
		{name: "long usual wait", usual: time.Hour, want: waits(api.MaxWait)},
		{name: "no wait", usual: time.Minute, req: api.CreateToken{Wait: "0"}, want: waits(0)},
		{name: "long wait", req: api.CreateToken{Wait: "6m"}, field: "wait", detail: `"6m" given; want a duration up to 5m`},
		{name: "negative wait", req: api.CreateToken{Wait: "-1s"}, field: "wait", detail: "want a duration"},
		{name: "malformed wait", req: api.CreateToken{Wait: "long"}, field: "wait", detail: "want a duration"},

		{name: "generated token", want: func(r mint.Creation) bool { return !r.Chosen && r.Record.Token.HasSecret() }},
		{name: "own token", req: api.CreateToken{Token: api.Secret(own.Reveal()), DryRun: true}, want: func(r mint.Creation) bool { return r.Chosen && r.DryRun && r.Record.Token == own }},
		{name: "malformed token", req: api.CreateToken{Token: "qwertz.hunter2"}, field: "token", detail: "malformed token of 14 characters"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := operations.Creation(t.Context(), test.req, now, test.usual, operations.Everything, cluster)
			if test.want != nil {
				if err != nil || !test.want(r) {
					t.Errorf("got %+v, %v", r, err)
				}
				return
			}
			var invalid api.InvalidFields
			if !errors.As(err, &invalid) || invalid[0].Field != test.field || !strings.Contains(err.Error(), test.detail) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %s: %s", err, test.field, test.detail)
			}
		})
	}
}

// Catches an error "want a or b" that suggests a value which the field refuses.
func TestFieldsTakeWhatTheirErrorsName(t *testing.T) {
	record := func(set func(*api.TokenSpec, string), value string) error {
		var spec api.TokenSpec
		set(&spec, value)
		_, err := operations.Record(t.Context(), spec, tokens.Generate(), time.Now(), operations.Everything, cluster)
		return err
	}
	for field, set := range map[string]func(*api.TokenSpec, string){
		"usages":              func(s *api.TokenSpec, value string) { s.Usages = []string{value} },
		"role":                func(s *api.TokenSpec, value string) { s.Role = value },
		"rejoin":              func(s *api.TokenSpec, value string) { s.Rejoin = value },
		"certificateDuration": func(s *api.TokenSpec, value string) { s.CertificateDuration = value },
		"nodeReadyAfter":      func(s *api.TokenSpec, value string) { s.NodeReadyAfter, s.NodeLabels = value, []string{"a=b"} },
	} {
		err := record(set, "?")
		if err == nil {
			t.Errorf("%s: accepts anything", field)
			continue
		}
		_, want, _ := strings.Cut(err.Error(), "want ")
		want, _, _ = strings.Cut(strings.TrimPrefix(want, "a duration from "), ";")
		for value := range strings.SplitSeq(strings.NewReplacer(" or ", ", ", " to ", ", ").Replace(want), ", ") {
			if err := record(set, value); err != nil {
				t.Errorf("%s: the error names %q: %v", field, value, err)
			}
		}
	}
}

func TestUnreadableNodeIsNoInvalidField(t *testing.T) {
	spec := api.TokenSpec{ReplaceNode: "away"}
	if _, err := operations.Record(t.Context(), spec, tokens.Generate(), time.Now(), operations.Everything, cluster); !errors.Is(err, errNode) {
		t.Errorf("unreadable Node: got %v, want %v", err, errNode)
	}
}

// A Node would never get properties that its kubejoin does not support, so the request must fail.
func TestRefusesWhatKubejoinLacks(t *testing.T) {
	for field, test := range map[string]struct {
		spec api.TokenSpec
		read operations.Readers
		want string
	}{
		"replaceNode":    {api.TokenSpec{ReplaceNode: "away"}, operations.Readers{}, "runs without a cluster"},
		"owner":          {api.TokenSpec{Owner: "v1/Node/worker-3/u"}, operations.Readers{Node: node}, "only tokens in Secrets"},
		"nodeLabels":     {api.TokenSpec{NodeLabels: []string{"a=b"}, NodeTaints: []string{"a:NoSchedule"}}, operations.Readers{Node: node}, "so there are no Nodes"},
		"nodeTaints":     {api.TokenSpec{NodeTaints: []string{"a:NoSchedule"}}, operations.Readers{Node: node}, "so there are no Nodes"},
		"nodeReadyAfter": {api.TokenSpec{NodeReadyAfter: "serving-certificate"}, operations.Readers{Node: node}, "so there are no Nodes"},
	} {
		permitted := 0
		_, err := operations.Record(t.Context(), test.spec, tokens.Generate(), time.Now(), func(*tokens.Record, time.Time) error { permitted++; return nil }, test.read)
		if f := (api.InvalidFields)(nil); !errors.As(err, &f) || f[0].Field != field || !strings.Contains(err.Error(), test.want) || permitted > 0 {
			t.Errorf("%s: got %v after %d access reviews, want %s", field, err, permitted, test.want)
		}
	}
}

// Catches a token whose Nodes never get its labels, because kubejoin may not patch them. A user without the permission for a label
// must not learn that.
func TestRefusesPropertiesWithoutRight(t *testing.T) {
	read := cluster
	read.NodeProperties = func(_ context.Context, field string) error { return operations.NodesNotPatched(field) }
	for field, spec := range map[string]api.TokenSpec{
		"":               {},
		"nodeLabels":     {NodeLabels: []string{"a=b"}},
		"nodeTaints":     {NodeTaints: []string{"a:NoSchedule"}},
		"nodeReadyAfter": {NodeReadyAfter: "serving-certificate"},
	} {
		permitted := false
		_, err := operations.Record(t.Context(), spec, tokens.Generate(), time.Now(), func(*tokens.Record, time.Time) error { permitted = true; return nil }, read)
		refused := field != ""
		if f := (api.InvalidFields)(nil); !permitted || refused != (err != nil) || refused && (!errors.As(err, &f) || f[0].Field != field || !strings.Contains(err.Error(), "apply deploy/node-properties.yaml")) {
			t.Errorf("%q: got %v after the access reviews: %t, want an error that names the file", field, err, permitted)
		}
	}
}

func TestControlPlane(t *testing.T) {
	for name, test := range map[string]struct {
		req   api.PrintJoinCommand
		want  api.TokenSpec
		field string
	}{
		"defaults":       {want: api.TokenSpec{TTL: "2h0m0s", MaxNodes: 1, Role: "control-plane"}},
		"own limits":     {req: api.PrintJoinCommand{TokenSpec: api.TokenSpec{TTL: "1h", MaxNodes: 3, Role: "king"}}, want: api.TokenSpec{TTL: "1h", MaxNodes: 3, Role: "king"}},
		"own expiration": {req: api.PrintJoinCommand{TokenSpec: api.TokenSpec{Expires: "x"}}, want: api.TokenSpec{Expires: "x", MaxNodes: 1, Role: "control-plane"}},
		"replaces":       {req: api.PrintJoinCommand{TokenSpec: api.TokenSpec{ReplaceNode: "cp-1"}}, want: api.TokenSpec{ReplaceNode: "cp-1", TTL: "2h0m0s", Role: "control-plane"}},
		"own groups":     {req: api.PrintJoinCommand{TokenSpec: api.TokenSpec{Groups: []string{"system:bootstrappers:a"}}}, field: "groups"},
		"no groups":      {req: api.PrintJoinCommand{TokenSpec: api.TokenSpec{Groups: []string{}}}, field: "groups"},
		"kubeconfig":     {req: api.PrintJoinCommand{Format: api.FormatKubeconfig}, field: "format"},
	} {
		err := operations.ControlPlane(&test.req)
		var invalid api.InvalidFields
		if test.field != "" {
			if !errors.As(err, &invalid) || invalid[0].Field != test.field {
				t.Errorf("%s: got %v, want field %s", name, err, test.field)
			}
		} else if got := test.req.TokenSpec; err != nil || fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

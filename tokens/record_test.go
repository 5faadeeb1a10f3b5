package tokens_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"k8s.io/cluster-bootstrap/token/api"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestExpired(t *testing.T) {
	for _, test := range []struct {
		expires time.Time
		want    bool
	}{
		{time.Time{}, false},
		{noon.Add(time.Nanosecond), false},
		{noon, true}, // as in kube-controller-manager: no time remains
		{noon.Add(-time.Nanosecond), true},
		{time.Unix(0, 0), true},
	} {
		r := tokens.Record{Token: parse(t, id+"."+secret), Expires: test.expires, Signing: true}
		if got := r.Expired(noon); got != test.want {
			t.Errorf("Expired at %v with expiration %v = %t", noon, test.expires, got)
		}
		if got := r.Signs(noon); got == test.want {
			t.Errorf("Signs at %v with expiration %v = %t", noon, test.expires, got)
		}
	}
}

func TestSigns(t *testing.T) {
	onlyID := must.Value(tokens.OnlyID(id))(t)
	token := parse(t, id+"."+secret)
	for name, test := range map[string]struct {
		r    tokens.Record
		want bool
	}{
		"zero":           {tokens.Record{}, false},
		"signing":        {tokens.Record{Token: token, Signing: true}, true},
		"authentication": {tokens.Record{Token: token, Authentication: true}, false},
		"no secret":      {tokens.Record{Token: onlyID, Signing: true}, false},
		"no token":       {tokens.Record{Signing: true}, false},
		// Like kube-controller-manager, which ignores the groups.
		"problem": {tokens.Record{Token: token, Signing: true, Problem: errors.New("bad group")}, true},
	} {
		if got := test.r.Signs(noon); got != test.want {
			t.Errorf("%s: Signs = %t, want %t", name, got, test.want)
		}
	}
}

func TestSpent(t *testing.T) {
	for _, test := range []struct {
		limits tokens.Limits
		nodes  int
		want   bool
	}{
		{tokens.Limits{}, 0, false},
		{tokens.Limits{}, 5, false},
		{tokens.Limits{MaxNodes: 2}, 1, false},
		{tokens.Limits{MaxNodes: 2}, 2, true},
		{tokens.Limits{MaxNodes: 2}, 3, true},
		{tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "8f2b"}}, 0, false},
		{tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "8f2b"}}, 1, true},
	} {
		if r := (tokens.Record{Limits: test.limits, Nodes: make([]string, test.nodes)}); r.Spent() != test.want {
			t.Errorf("%d nodes joined with %+v: Spent = %t, want %t", test.nodes, test.limits, r.Spent(), test.want)
		}
	}
}

// Catches a token that cannot be deleted because of its description. The creator of a token chooses the description.
func TestOwnsUpload(t *testing.T) {
	for _, test := range []struct {
		r    tokens.Record
		want bool
	}{
		{tokens.Record{Description: tokens.UploadDescription}, true},
		{tokens.Record{Description: "ci"}, false},
		{tokens.Record{Description: tokens.UploadDescription, Signing: true}, false},
		{tokens.Record{Description: tokens.UploadDescription, Authentication: true}, false},
	} {
		if test.r.OwnsUpload() != test.want {
			t.Errorf("%+v: got OwnsUpload = %t, want %t", test.r, !test.want, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	onlyID := must.Value(tokens.OnlyID(id))(t)
	short := must.Value(tokens.ForSigning(id, "x"))(t)
	token := parse(t, id+"."+secret)
	full := tokens.Record{Token: token, Signing: true, Authentication: true, Groups: []string{tokens.DefaultGroup}, Expires: noon, Description: "ok"}
	for _, test := range []struct {
		name   string
		change func(*tokens.Record)
		want   string
	}{
		{"full", func(*tokens.Record) {}, ""},
		{"token only", func(r *tokens.Record) { *r = tokens.Record{Token: token} }, ""},
		{"store's fields", func(r *tokens.Record) { r.UID, r.Version, r.Created = "u", "v", noon }, ""},
		{"no token", func(r *tokens.Record) { r.Token = tokens.Token{} }, "token: none given"},
		{"no secret", func(r *tokens.Record) { r.Token = onlyID }, "token: none given"},
		{"malformed secret", func(r *tokens.Record) { r.Token = short }, "token: malformed secret of token " + id},
		{"problem", func(r *tokens.Record) { r.Problem = errors.New("known") }, "known"},
		{"groups alone", func(r *tokens.Record) { r.Authentication = false }, "groups: system:bootstrappers:kubeadm:default-node-token given, but groups need usage authentication"},
		{"masters", func(r *tokens.Record) { r.Groups = []string{"system:masters"} }, `groups: "system:masters" does not match ` + api.BootstrapGroupPattern},
		{"empty group", func(r *tokens.Record) { r.Groups = []string{""} }, `groups: "" does not match`},
		{"prefix only", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:"} }, "does not match"},
		{"group with space", func(r *tokens.Record) { r.Groups = []string{" system:bootstrappers:a"} }, "does not match"},
		{"group with newline", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a\n"} }, "does not match"},
		{"group with comma", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a,system:bootstrappers:b"} }, "does not match"},
		{"group ends in colon", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a:"} }, "does not match"},
		{"longest group", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:" + strings.Repeat("a", 256)} }, ""},
		{"longer group", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:" + strings.Repeat("a", 257)} }, "does not match"},
		{"group twice", func(r *tokens.Record) { r.Groups = []string{"system:bootstrappers:a", "system:bootstrappers:a"} }, `groups: "system:bootstrappers:a" is given twice`},
		{"longest description", func(r *tokens.Record) { r.Description = strings.Repeat("x", 1024) }, ""},
		{"longer description", func(r *tokens.Record) { r.Description = strings.Repeat("x", 1025) }, "description: 1025 bytes given, 1024 allowed"},
		{"unicode", func(r *tokens.Record) { r.Description = "Größe 日本語 🚀" }, ""},
		{"not UTF-8", func(r *tokens.Record) { r.Description = "\xff" }, "description: want one line"},
		{"two lines", func(r *tokens.Record) { r.Description = "a\nb" }, "description: want one line"},
		{"escape", func(r *tokens.Record) { r.Description = "\x1b[31mred" }, "description: want one line"},
		{"next line", func(r *tokens.Record) { r.Description = "a\u0085b" }, "description: want one line"},
		{"limits", func(r *tokens.Record) { r.Limits.MaxNodes = -1 }, "max-nodes: -1 given"},
		{"nodes", func(r *tokens.Record) { r.Nodes = []string{"a", "b"} }, ""},
		{"node name", func(r *tokens.Record) { r.Nodes = []string{"A"} }, `node name "A"`},
		{"left and lost", func(r *tokens.Record) {
			r.Nodes, r.Marks = []string{"a", "b", "c"}, map[string]string{"b": "-"}
		}, ""},
		{"node twice", func(r *tokens.Record) { r.Nodes = []string{"a", "b", "a"} }, `"a"`},
		{"creator", func(r *tokens.Record) { r.Creator = strings.Repeat("x", 64) }, ""},
		{"longer creator", func(r *tokens.Record) { r.Creator = strings.Repeat("x", 65) }, "creator: 65 bytes given, 64 allowed"},
		{"never", func(r *tokens.Record) { r.Expires = time.Time{} }, ""},
		{"last second", func(r *tokens.Record) { r.Expires = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }, ""},
		{"year 10000", func(r *tokens.Record) { r.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "expiration: year 10000 given, want 1970 to 9999"},
		{"year 10000 in UTC", func(r *tokens.Record) {
			r.Expires = time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600))
		}, "expiration: year 10000 given, want 1970 to 9999"},
		{"year 1", func(r *tokens.Record) { r.Expires = time.Time{}.Add(1) }, "expiration: year 1 given, want 1970 to 9999"},
	} {
		r := full
		test.change(&r)
		err := r.Check()
		switch {
		case test.want == "":
			if err != nil {
				t.Errorf("%s: Check = %v", test.name, err)
			}
		case err == nil || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: Check = %v, want %q", test.name, err, test.want)
		case strings.Contains(err.Error(), secret):
			t.Errorf("%s: Check = %v, which contains the secret", test.name, err)
		}
	}
}

func TestNewRecordsHaveLowerLimits(t *testing.T) {
	many := func(n int, format string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return all
	}
	for name, test := range map[string]struct {
		change func(*tokens.Record)
		want   string
	}{
		"most groups":     {func(r *tokens.Record) { r.Groups = many(tokens.MaxNewGroups, "system:bootstrappers:g%d") }, ""},
		"more groups":     {func(r *tokens.Record) { r.Groups = many(tokens.MaxNewGroups+1, "system:bootstrappers:g%d") }, "groups: "},
		"most node names": {func(r *tokens.Record) { r.Limits.NodeNames = many(tokens.MaxNewNodeNames, "n%d") }, ""},
		"more node names": {func(r *tokens.Record) { r.Limits.NodeNames = many(tokens.MaxNewNodeNames+1, "n%d") }, "node-names: 257 names given, 256 allowed"},
		"more bytes": {func(r *tokens.Record) {
			r.Limits.NodeNames = many(tokens.MaxNewNodeNamesBytes/200+1, strings.Repeat("x", 60)+"."+strings.Repeat("x", 60)+"."+strings.Repeat("x", 60)+".%018d")
		}, "bytes given, 8192 allowed"},
	} {
		r := tokens.Record{Token: parse(t, id+"."+secret), Authentication: true}
		test.change(&r)
		if err := r.Check(); err != nil {
			t.Errorf("%s: got Check = %v, want nil for a record that was stored before", name, err)
		}
		if err := r.CheckNew(); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: CheckNew = %v, want %q", name, err, test.want)
		}
	}
}

func TestNodesBeyond(t *testing.T) {
	for _, test := range []struct{ nodes, other, want string }{
		{"", "", ""}, {"a b", "a b", ""}, {"a b c d", "a b", "c d"}, {"a b", "a b c d", ""}, {"a b", "", "a b"}, {"", "a", ""},
		{"a b c", "a c", "b"}, {"a c", "a b c", ""}, {"c a b", "b a", "c"}, {"a x b y", "a b z", "x y"},
	} {
		r, other := tokens.Record{Nodes: strings.Fields(test.nodes)}, tokens.Record{Nodes: strings.Fields(test.other)}
		got := r.NodesBeyond(other)
		if strings.Join(got, " ") != test.want {
			t.Errorf("names of %q beyond %q: got %q, want %q", test.nodes, test.other, got, test.want)
		}
		// Catches a result that shares memory with the record.
		for i := range got {
			got[i] = "changed"
		}
		if strings.Join(r.Nodes, " ") != test.nodes {
			t.Errorf("the record now has nodes %q, want %q", r.Nodes, test.nodes)
		}
	}
}

func TestCheckJoinsAllErrors(t *testing.T) {
	known := errors.New("known")
	err := tokens.Record{Problem: known, Groups: []string{"x"}, Description: "\n", Expires: time.Unix(-1, 0)}.Check()
	if !errors.Is(err, known) {
		t.Errorf("Check = %v, want the problem wrapped", err)
	}
	for _, part := range []string{"token:", "known", "groups:", "description:", "expiration:"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("Check = %v, want %q in it too", err, part)
		}
	}
}

func ExampleRecord_Check() {
	fmt.Println(tokens.Record{
		Token:          tokens.Generate(),
		Authentication: true,
		Groups:         []string{"system:masters"},
	}.Check())
	// Output: groups: "system:masters" does not match \Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z
}

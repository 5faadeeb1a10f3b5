package explain_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// kube-apiserver accepts any request name. Catches a suggested command with a name that the shell would interpret,
// and control characters that a requester can send to a terminal.
func TestHostileNamesReachNoCommandAndNoTerminal(t *testing.T) {
	const (
		byUID  = `kubectl get csr -o jsonpath='{.items[?(@.metadata.uid=="uid-1")]}'`
		pasted = "8w4usg." + secret
	)
	ca, other := newCA(t, "kubernetes\x1b"), newCA(t, "stranger\n\x1b]0;x\a")
	signed := info(t, ca)
	leaf := leafOf(t, other, now.Add(time.Hour))
	for _, hostile := range []string{
		"x >&2;id>pwned;\x1b[31m", "two\nkubectl delete ns default", "$(id)", "`id`", "a b", "a'b", `a"b`, "-f", "A", "a_b", "\u202egnp", pasted, strings.Repeat("x", 10_000),
	} {
		named := func(r *api.RequestEvidence) { r.Name = hostile }
		strange := hostile + pasted + "\x1b"
		by := func(change ...func(*api.RequestEvidence)) []api.RequestEvidence {
			return []api.RequestEvidence{request(strange, append(change, named)...)}
		}
		for what, f := range map[string]explain.Facts{
			"pending":                    {Requests: by()},
			"pending for long":           {Requests: by(made(time.Hour, ""), func(r *api.RequestEvidence) { r.UID = "uid-1" })},
			"not permitted":              {Requests: by(permitted(false), func(r *api.RequestEvidence) { r.Groups = []string{"system:bootstrappers:" + strange} })},
			"denied":                     {Requests: by(denied(strange, strange))},
			"denied without a word":      {Requests: by(denied(strange, ""))},
			"failed":                     {Requests: by(failed("X", strange))},
			"not signed":                 {Requests: by(approved)},
			"of another CA":              {Requests: by(issued(strange, leaf)), ClusterInfo: signed},
			"by another":                 {Requests: by(issued(strange, leaf))},
			"led by":                     {Requests: by(), Leader: &api.LeaderEvidence{Namespace: "n", Lease: "l", Holder: strange, Renewed: now, Duration: 15 * time.Second}},
			"unread":                     {Requests: by(), Unread: []api.UnreadFact{{Fact: explain.FactTokens, Reason: strange}}},
			"Node not ready":             {Object: node("False", strange)},
			"serving pending":            {Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, named, func(r *api.RequestEvidence) { r.Signer = servingSigner })}},
			"serving refused":            {Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, named, denied("X", strange), func(r *api.RequestEvidence) { r.Signer = servingSigner })}},
			"serving approved":           {Object: node("True", ""), Requests: []api.RequestEvidence{request(itself, named, approved, func(r *api.RequestEvidence) { r.Signer = servingSigner })}},
			"Node with a strange status": {Object: &api.NodeEvidence{Created: before(time.Hour), Ready: strange}},
			"of a Node that is there":    {Object: &api.NodeEvidence{Created: before(time.Hour), Ready: "False", Reason: strange, Message: strange}, Requests: by()},
		} {
			f.Node = name
			given := must.Value(json.Marshal(f))(t)
			e := explain.Explain(f, now)
			for _, command := range e.Next {
				if command != byUID && command != "kubectl describe node worker-7" && !strings.HasPrefix(command, "kubejoin ") && !strings.HasPrefix(command, "journalctl ") {
					t.Errorf("%s of %.30q: next %q", what, hostile, command)
				}
			}
			if strings.Contains(e.Sentence, "kubectl certificate approve") || strings.Contains(e.Sentence, "kubectl describe csr") || strings.Contains(e.Sentence, "its request "+hostile) {
				t.Errorf("%s of %.30q: %s", what, hostile, e.Sentence)
			}
			evidence := must.Value(json.Marshal(e))(t)
			var all any
			must.OK(t, json.Unmarshal(evidence, &all))
			each(all, func(text string) {
				if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.Contains(text, secret[:8]) || len(text) > 3000 {
					t.Errorf("%s of %.30q: %d bytes: %.1000q", what, hostile, len(text), text)
				}
			})
			if text := strings.TrimSuffix(e.Text(), "\n"); strings.ContainsFunc(strings.ReplaceAll(text, "\n  ", ""), unicode.IsControl) {
				t.Errorf("%s of %.30q: %.1000q", what, hostile, text)
			}
			if after, _ := json.Marshal(f); !slices.Equal(given, after) {
				t.Errorf("%s of %.30q: the facts have changed", what, hostile)
			}
		}
		said := &signer.Explanation{Decision: approval.Decision{Message: strange, Evidence: []string{strange}}, Steps: []approval.Decision{{Message: strange, Evidence: []string{strange}}}}
		verdict := explain.OfRequest(approval.Request{Name: strange, User: strange, SignerName: strange, CSR: &x509.CertificateRequest{Subject: pkix.Name{CommonName: strange}}}, api.RequestPending, nil, said)
		for line := range strings.Lines(verdict.Text()) {
			if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), unicode.IsControl) || strings.Contains(line, secret[:8]) || len(line) > 4000 {
				t.Errorf("verdict on %.30q: %d bytes: %.1000q", hostile, len(line), line)
			}
		}
		if n := strings.Count(verdict.Text(), "\n"); n != 5 {
			t.Errorf("verdict on %.30q: %d lines: %.1000s", hostile, n, verdict.Text())
		}
	}
}

// A token is a valid DNS name, so a person can paste it as a node name. Catches a command that repeats its secret.
func TestCommandsOmitNodeNamedLikeToken(t *testing.T) {
	const pasted = "8w4usg.0123456789abcdef"
	ca := newCA(t, "kubernetes")
	for what, r := range map[string]api.RequestEvidence{
		"expired":     request("system:bootstrap:8w4usg", issued("kubejoin", leafOf(t, ca, before(time.Hour)))),
		"not expired": request("system:bootstrap:8w4usg", issued("kubejoin", leafOf(t, ca, now.Add(time.Hour)))),
		"denied":      request("system:bootstrap:8w4usg", denied("TokenSpent", "")),
	} {
		e := explain.Explain(explain.Facts{Node: pasted, Requests: []api.RequestEvidence{r}}, now)
		if text, err := json.Marshal(e); err != nil || strings.Contains(string(text), pasted) || strings.Contains(string(text), "--node-name 8w4usg") {
			t.Errorf("%s: %s, %v", what, text, err)
		}
	}
}

// each calls f for each string value in a decoded JSON document.
func each(value any, f func(string)) {
	switch v := value.(type) {
	case string:
		f(v)
	case []any:
		for _, item := range v {
			each(item, f)
		}
	case map[string]any:
		for _, item := range v {
			each(item, f)
		}
	}
}

package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// kubejoin must create an Event at the first late renewal, then once an hour, and again at the next late renewal
// after all were done. While renewals are late, readiness must have a notice.
func TestReportsLateRenewalsOnceAnHour(t *testing.T) {
	var events []string
	late := &lateRenewals{log: slog.New(slog.DiscardHandler), events: func(_ *corev1.ObjectReference, e codes.Event, message string) {
		events = append(events, e.Type()+" "+e.Reason()+" "+message)
	}}
	start := time.Now()
	one := csr.WaitingRenewal{Node: "worker-1", Signer: "kubernetes.io/kubelet-serving", Request: "csr-1", Since: start.Add(-2 * time.Hour)}
	other := csr.WaitingRenewal{Node: "worker-2", Signer: one.Signer, Request: "csr-2", Since: start.Add(-time.Hour)}
	for _, step := range []struct {
		after   time.Duration
		waiting []csr.WaitingRenewal
		events  int
		text    string
	}{
		{0, nil, 0, ""},
		{time.Minute, []csr.WaitingRenewal{one}, 1, "node worker-1 has waited for a certificate of signer kubernetes.io/kubelet-serving for 2h1m0s; a node"},
		{2 * time.Minute, []csr.WaitingRenewal{one, other}, 1, "for 2h2m0s, and 1 more; a node drops out of the cluster when its certificate expires: kubectl describe csr csr-1"},
		{60 * time.Minute, []csr.WaitingRenewal{one, other}, 1, "worker-1"},
		{61 * time.Minute, []csr.WaitingRenewal{other}, 2, "worker-2"},
		{62 * time.Minute, nil, 2, ""},
		{63 * time.Minute, []csr.WaitingRenewal{one}, 3, "worker-1"},
	} {
		now := start.Add(step.after)
		late.report(step.waiting, now)
		text := late.text(now)
		if len(events) != step.events || !strings.Contains(text, step.text) || (text == "") != (step.text == "") {
			t.Errorf("after %s: events %q, readiness %q; want %d and %q", step.after, events, text, step.events, step.text)
		}
		if len(events) > 0 && !strings.HasPrefix(events[len(events)-1], "Warning RenewalsWait node worker-") {
			t.Errorf("event %q", events[len(events)-1])
		}
	}
}

// A node chooses the names of its CSRs. A hostile name must not get into a command that an operator pastes.
func TestLateRenewalsKeepHostileNamesOutOfCommands(t *testing.T) {
	log := &bytes.Buffer{}
	now := time.Now()
	for _, hostile := range []string{"x >&2;id>pwned;\x1b[31m", "two\nlines", "$(id)", "-f", "8w4usg.qwertzuiopasdfgh"} {
		said := ""
		log.Reset()
		late := &lateRenewals{log: slog.New(slog.NewJSONHandler(log, nil)), events: func(_ *corev1.ObjectReference, _ codes.Event, message string) { said = message }}
		late.report([]csr.WaitingRenewal{{Node: "worker-1" + hostile, Signer: "kubernetes.io/kubelet-serving", Request: hostile, UID: "0c0ffee0-1", Since: now.Add(-2 * time.Hour)}}, now)
		for _, text := range []string{said, late.text(now)} {
			if !strings.HasSuffix(text, `certificate expires: kubectl get csr -o jsonpath='{.items[?(@.metadata.uid=="0c0ffee0-1")]}'`) ||
				strings.ContainsFunc(text, unicode.IsControl) || strings.Contains(text, "qwertz") {
				t.Errorf("%q is late: %q", hostile, text)
			}
		}
		if text := log.String(); !strings.Contains(text, "renewals are late") || strings.Contains(text, `\u001b`) || strings.Contains(text, "qwertz") {
			t.Errorf("%q is logged: %s", hostile, text)
		}
	}
}

// If the token's certificate duration is shorter than the signer's lifetime, lifetime must return it.
func TestLifetimeOfRenewals(t *testing.T) {
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "tokens.db")))(t)
	defer func() { _ = store.Close() }() // only this test uses the store
	for node, d := range map[string]time.Duration{"short": time.Hour, "long": 48 * time.Hour, "as-it-is": 0} {
		must.Value(storetest.CreateClaim(t.Context(), store.Claims(), tokens.Claim{Node: node, TokenID: "abcdef", Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: d}}))(t)
	}
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).Truncate(time.Second), CertificateDuration: 2 * time.Hour}
	must.Value(storetest.CreateClaim(t.Context(), store.Claims(), tokens.Claim{Node: "released", Past: past}))(t)
	const day = 24 * time.Hour
	of := renewedFor{&signer.Authority{
		Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("no CA") }, day))),
		Nodes:   &admission.Nodes{Claims: store.Claims()},
	}}
	for _, test := range []struct {
		node, signer string
		want         time.Duration
		found        bool
	}{
		{"short", certificates.KubeAPIServerClientKubeletSignerName, time.Hour, true},
		{"short", certificates.KubeletServingSignerName, day, true}, // the token does not limit serving certificates
		{"long", certificates.KubeAPIServerClientKubeletSignerName, day, true},
		{"released", certificates.KubeAPIServerClientKubeletSignerName, 2 * time.Hour, true}, // the released claim keeps the duration
		{"as-it-is", certificates.KubeAPIServerClientKubeletSignerName, day, true},
		{"no-claim", certificates.KubeAPIServerClientKubeletSignerName, day, true},
		{"no-claim", "example.com/other", signer.DefaultDuration, false},
	} {
		got, found := of.lifetime(t.Context(), csr.WaitingRenewal{Node: test.node, Signer: test.signer})
		if got != test.want || found != test.found {
			t.Errorf("%s of %s: %s %v, want %s %v", test.signer, test.node, got, found, test.want, test.found)
		}
	}
	of.Nodes = nil
	if got, _ := of.lifetime(t.Context(), csr.WaitingRenewal{Node: "short", Signer: certificates.KubeAPIServerClientKubeletSignerName}); got != day {
		t.Errorf("without admission: %s", got)
	}
}

package csr_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rawLines is a slog.Handler that does not quote values.
type rawLines struct {
	to    *logs.Buffer
	attrs []slog.Attr
}

func (rawLines) Enabled(context.Context, slog.Level) bool { return true }
func (h rawLines) WithGroup(string) slog.Handler          { return h }
func (h rawLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return rawLines{h.to, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

func (h rawLines) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	add := func(a slog.Attr) bool { line += "|" + a.Key + "=" + a.Value.String(); return true }
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	_, err := h.to.Write([]byte(line + "\n"))
	return err
}

// Logs, conditions and Events quote text of requesters. They must contain no secrets, no control characters, and
// only a few hundred characters of such text.
func TestCleansRequesterTextInLogsConditionsAndEvents(t *testing.T) {
	const (
		secret = "qwertzuiopasdfgh"
		token  = "8w4usg." + secret
		escape = "\x1b[31m"
	)
	w := newWorld(t)
	log := &logs.Buffer{}
	w.run(csr.Controller{
		Client: w.restrict, Authority: w.authority(signer.Fixed(w.ca)), Approve: true, Sign: true, Logger: slog.New(rawLines{to: log}),
	}.Run)
	key := csrtest.NewKey()
	ask := func(user, name, signerName, cn string) *certificates.CertificateSigningRequest {
		der := must.Value(x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}}, key))(t)
		object := must.Value(w.as(user, "system:bootstrappers", bootstrapGroup, "system:masters").CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificates.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificates.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signerName,
				Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
			},
		}, metav1.CreateOptions{}))(t)
		return object
	}
	long := strings.Repeat("x", 290) + token + strings.Repeat("y", 40_000)
	asked := []*certificates.CertificateSigningRequest{
		ask("_"+token, "x >&2;id>pwned;"+escape, kubelet, "system:node:"+token),
		ask("machine "+token, "two\nlines", kubelet, "system:node:\t"+token+"\n"+escape),
		ask(long[:5000], "long", kubelet, "system:node:"+long),
		ask("X"+token+"1", token, user, "system:node:"+token+"1"),
	}
	for _, object := range asked {
		if object.Spec.SignerName == user {
			w.approve(object.Name)
		}
		wait.Until(w, "end of "+object.Name, func() bool {
			object := must.Value(w.admin.CertificatesV1().CertificateSigningRequests().Get(t.Context(), object.Name, metav1.GetOptions{}))(t)
			for _, c := range object.Status.Conditions {
				check(t, "a condition", c.Reason+" "+c.Message, secret)
			}
			return len(object.Status.Certificate) > 0 || condition(object, certificates.CertificateDenied) != nil || condition(object, certificates.CertificateFailed) != nil
		})
	}
	wait.Until(w, "log", func() bool { return strings.Count(log.String(), "|csr=") >= len(asked) })
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	for _, line := range lines {
		check(t, "the log", line, secret)
	}
	events := must.Value(w.admin.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range events.Items {
		if e.Source.Component == csr.FieldManager {
			check(t, "an Event", e.Reason+" "+e.Message, secret)
		}
	}
	if len(lines) < len(asked) || !strings.Contains(log.String(), "8w4usg.<redacted>") {
		t.Errorf("got %d log lines: %s", len(lines), log)
	}
}

// check fails the test if a text with foreign parts has a secret, a control character or too many bytes.
func check(t *testing.T, where, text, secret string) {
	t.Helper()
	if strings.Contains(text, secret[:8]) || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 4<<10 {
		t.Errorf("%s: got %d bytes: %.1500q", where, len(text), text)
	}
}

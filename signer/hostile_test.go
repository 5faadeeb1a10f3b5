package signer_test

import (
	"encoding/asn1"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/hostile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// hostileAuthority has the Kubernetes signers and a custom signer whose check allows everything.
func hostileAuthority(t testing.TB) *signer.Authority {
	ca := newCA(t)
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour))
	usages := append(slices.Clone(servingUsages), certificates.UsageClientAuth)
	signers[hostile.CustomSigner] = must.Get(signer.NewSigner(hostile.CustomSigner, signer.Fixed(ca), signer.ProfileConfig{Usages: usages}, anyRequest))
	return &signer.Authority{Signers: signer.FixedSigners(signers), Nodes: &admission.Nodes{}}
}

// maxAllocated is the number of bytes that one refusal may allocate.
const maxAllocated = 10 << 20

// The signer refuses each request of the corpus with a message of its own and little work, even if somebody
// approved it.
func TestRefusesHostileCorpus(t *testing.T) {
	authority := hostileAuthority(t)
	for _, h := range hostile.Corpus() {
		t.Run(h.Name, func(t *testing.T) {
			r := approval.Request{SignerName: h.Signer, User: "ada", Usages: h.Usages, Expiration: h.Duration}
			var answer []byte
			var err error
			ask := func() {
				if r.CSR, err = pkcs10.Parse(h.PEM); err == nil {
					answer, err = authority.Sign(t.Context(), r)
				}
			}
			fuzzing.RunWithinLimit(t, ask)
			var refused *approval.Error
			if !errors.As(err, &refused) || refused.Verdict != approval.Deny || refused.Reason == "" || answer != nil {
				t.Fatalf("error is %v, want a refusal", err)
			}
			if !strings.Contains(refused.Message, h.Want) {
				t.Errorf("refused: %s\nwant %q", refused.Message, h.Want)
			}
			if len(refused.Message) > 1024 {
				t.Errorf("got a refusal of %d bytes, want at most 1024", len(refused.Message))
			}
			if took := allocated(ask); took > maxAllocated {
				t.Errorf("allocated %d bytes, want at most %d", took, maxAllocated)
			}
			if r.CSR == nil {
				return
			}
			// Automatic approval does not issue a certificate either.
			if answer, err = authority.Issue(t.Context(), r); answer != nil {
				t.Errorf("Issue: got a certificate (%v), want none", err)
			}
		})
	}
}

// Counterpart of the hostile corpus: valid requests that resemble it are issued.
func TestIssuesUnusualButValidRequests(t *testing.T) {
	authority := hostileAuthority(t)
	cn, o := crafted.CommonName, crafted.Organization
	var names []asn1.RawValue
	for i := range pkcs10.MaxNames {
		names = append(names, crafted.DNSName(fmt.Sprintf("worker-%d", i)))
	}
	for name, subject := range map[string][]byte{
		"plain":                 crafted.Subject(crafted.UTF8(cn, "jane")),
		"one multi-valued name": crafted.MultiValued([]crafted.Attribute{crafted.UTF8(cn, "jane"), crafted.UTF8(o, "dev")}),
		"other alphabets":       crafted.Subject(crafted.UTF8(cn, "Łukasz Ψ Жук 王"), crafted.UTF8(o, "Müller & Søn")),
		"BMPString":             crafted.Subject(crafted.Text(cn, crafted.TagBMPString, "jane")),
		"reserved in its place": crafted.Subject(crafted.UTF8(cn, "system:kube-Scheduler"), crafted.UTF8(o, "system:nodeS-to-be")),
		"spaces":                crafted.Subject(crafted.UTF8(cn, " jane doe ")),
		"the empty one":         nil,
	} {
		t.Run(name, func(t *testing.T) {
			csr := must.Value(pkcs10.Parse(crafted.PEM(must.Get(crafted.Request(csrtest.Ed25519(), subject, crafted.SAN(names...))))))(t)
			for _, signerName := range []string{certificates.KubeAPIServerClientSignerName, hostile.CustomSigner} {
				r := approval.Request{SignerName: signerName, User: "ada", Usages: clientUsages, CSR: csr}
				if _, err := authority.Sign(t.Context(), r); err != nil {
					t.Errorf("%s: %v", signerName, err)
				}
			}
		})
	}
}

// allocated returns the bytes that act allocates: the lowest of three runs.
func allocated(act func()) uint64 {
	least := ^uint64(0)
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		act()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

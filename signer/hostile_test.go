package signer_test

import (
	"context"
	"encoding/asn1"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/crafted"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/hostile"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// hostileAuthority has the Kubernetes signers and a custom signer whose check allows everything.
func hostileAuthority(t testing.TB) *signer.Authority {
	ca := newCA(t)
	signers := must(signer.KubernetesSigners(signer.Fixed(ca), 24*time.Hour))
	usages := append(slices.Clone(servingUsages), certificates.UsageClientAuth)
	signers[hostile.CustomSigner] = must(signer.NewSigner(hostile.CustomSigner, signer.Fixed(ca), signer.ProfileConfig{Usages: usages}, anyRequest))
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

// reportsEverything has facts in which each Node reports all names and addresses of its request.
type reportsEverything struct{ approval.Facts }

func (reportsEverything) Node(_ context.Context, r approval.Request, name string) (approval.Node, error) {
	node := approval.Node{Name: name, Addresses: slices.Clone(r.CSR.DNSNames)}
	for _, address := range r.CSR.IPAddresses {
		node.Addresses = append(node.Addresses, address.String())
	}
	return node, nil
}

func (reportsEverything) Reporters(_ context.Context, _ string, addresses []string) (map[string][]string, error) {
	if !slices.Contains(addresses, "10.0.0.6") {
		return nil, nil
	}
	return map[string][]string{"10.0.0.6": {"worker-2"}}, nil
}

func (reportsEverything) ClusterAddresses(context.Context) (approval.ClusterAddresses, error) {
	return approval.ClusterAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, APIServer: []string{"10.0.0.1", "api.example.com"}}, nil
}

// A node requests a serving certificate for names that its Node reports and that are in scope. The rules must deny
// each forbidden name with its own reason and little work.
func TestDeniesHostileServingRequests(t *testing.T) {
	authority := hostileAuthority(t)
	const serving = certificates.KubeletServingSignerName
	signers := authority.Signers()
	s := signers[serving]
	s.Rules = []approval.Rule{must(approval.NewKubeletServing(approval.ServingScope{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DNSSuffixes: []string{"example.com"},
	}))}
	signers[serving], authority.Facts = s, reportsEverything{}
	address := func(text string) asn1.RawValue { return crafted.IPName(netip.MustParseAddr(text).AsSlice()) }
	for _, test := range []struct {
		name   string
		names  []asn1.RawValue
		reason string // empty: issued
		want   string // part of the message
	}{
		{name: "good", names: []asn1.RawValue{address("10.0.0.5"), crafted.DNSName("worker-1.example.com")}},
		{"wildcard", []asn1.RawValue{crafted.DNSName("*.example.com")}, approval.ReasonNameForbidden, "*.example.com"},
		{"API server", []asn1.RawValue{address("10.0.0.1")}, approval.ReasonNameReserved, "10.0.0.1"},
		{"API server by name", []asn1.RawValue{crafted.DNSName("API.example.com")}, approval.ReasonNameReserved, "api.example.com"},
		{"API server as IPv6", []asn1.RawValue{address("::ffff:10.0.0.1")}, approval.ReasonNameForbidden, "IPv4-mapped"},
		{"Service", []asn1.RawValue{address("10.96.0.1")}, approval.ReasonNameReserved, "10.96.0.1"},
		{"name of Services", []asn1.RawValue{crafted.DNSName("kubernetes.default.svc")}, approval.ReasonNameForbidden, "kubernetes.default.svc"},
		{"another node", []asn1.RawValue{address("10.0.0.6")}, approval.ReasonNameOfOther, "worker-2"},
		{"look-alike", []asn1.RawValue{crafted.DNSName("xn--wrker-1-90a.example.com")}, approval.ReasonNameOutOfScope, "xn--"},
		{"NUL", []asn1.RawValue{crafted.DNSName("worker-1\x00.example.com")}, approval.ReasonNameForbidden, "want printable ASCII"},
		{"loopback", []asn1.RawValue{address("127.0.0.1")}, approval.ReasonNameForbidden, "loopback"},
		{"out of scope", []asn1.RawValue{crafted.DNSName("worker-1.example.org")}, approval.ReasonNameOutOfScope, "worker-1.example.org"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data := crafted.PEM(must(crafted.Request(csrtest.Ed25519(), crafted.Subject(
				crafted.UTF8(crafted.Organization, "system:nodes"), crafted.UTF8(crafted.CommonName, "system:node:worker-1")), crafted.SAN(test.names...))))
			csr, err := pkcs10.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			r := approval.Request{SignerName: serving, User: "system:node:worker-1", Groups: []string{"system:nodes"}, Usages: servingUsages, CSR: csr}
			var answer []byte
			ask := func() { answer, err = authority.Issue(t.Context(), r) }
			fuzzing.RunWithinLimit(t, ask)
			d, failure := said(err)
			if failure != nil {
				t.Fatal(failure)
			}
			if test.reason == "" {
				if answer == nil {
					t.Errorf("decision is %+v, want a certificate", d)
				}
				return
			}
			want := approval.Deny
			if test.reason == approval.ReasonNameOutOfScope || test.reason == approval.ReasonNameOfOther {
				want = approval.None
			}
			if d.Verdict != want || d.Reason != test.reason || !strings.Contains(d.Message, test.want) || answer != nil {
				t.Errorf("got decision %+v, want %s with reason %s and %q in the message", d, want, test.reason, test.want)
			}
			if took := allocated(ask); took > maxAllocated {
				t.Errorf("allocated %d bytes, want at most %d", took, maxAllocated)
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
			csr, err := pkcs10.Parse(crafted.PEM(must(crafted.Request(csrtest.Ed25519(), subject, crafted.SAN(names...)))))
			if err != nil {
				t.Fatal(err)
			}
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

package approval_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// FuzzKubelet decides requests with any subject, name and usage for a requester with all permissions. The rules may
// only approve client certificates of kubelets.
func FuzzKubelet(f *testing.F) {
	const kubelet = certificates.KubeAPIServerClientKubeletSignerName
	f.Add(kubelet, bootstrap, node, "system:nodes", "digital signature,client auth", uint8(0))
	f.Add(kubelet, node, node, "system:nodes", "client auth,digital signature,key encipherment", uint8(0))
	f.Add(kubelet, node, "system:node:", "system:nodes", "digital signature,client auth", uint8(0))
	f.Add(kubelet, node, node, "system:nodes,system:masters", "digital signature,client auth,client auth", uint8(1))
	f.Add("kubernetes.io/kubelet-serving", "", "", "", "", uint8(255))
	f.Fuzz(func(t *testing.T, signerName, user, cn, organizations, usages string, names uint8) {
		r := approval.Request{SignerName: signerName, User: user, CSR: &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: cn, Organization: strings.Split(organizations, ",")},
		}}
		for u := range strings.SplitSeq(usages, ",") {
			r.Usages = append(r.Usages, certificates.KeyUsage(u))
		}
		for bit, add := range []func(){
			func() { r.CSR.DNSNames = []string{cn} },
			func() { r.CSR.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} },
			func() { r.CSR.EmailAddresses = []string{cn} },
			func() { r.CSR.URIs = []*url.URL{{Host: "x"}} },
		} {
			if names&(1<<bit) != 0 {
				add()
			}
		}
		if names&16 != 0 {
			r.CSR = nil
		}
		has := func(u certificates.KeyUsage) bool { return slices.Contains(r.Usages, u) }
		others := slices.ContainsFunc(r.Usages, func(u certificates.KeyUsage) bool {
			return u != certificates.UsageDigitalSignature && u != certificates.UsageClientAuth && u != certificates.UsageKeyEncipherment
		})
		want := signerName == kubelet && names&31 == 0 && organizations == "system:nodes" &&
			strings.HasPrefix(cn, "system:node:") && cn != "system:node:" &&
			has(certificates.UsageDigitalSignature) && has(certificates.UsageClientAuth) && !others
		fuzzing.RunWithinLimit(t, func() {
			d, err := approval.Decide(context.Background(), approval.Kubelet(), r, &facts{allowed: map[string]bool{"selfnodeclient": true, "nodeclient": true}})
			if err != nil || d.Reason == "" || d.Message == "" {
				t.Errorf("got %+v, %v, want a reason and a message", d, err)
			}
			if (d.Verdict == approval.Approve) != want || d.Verdict != approval.Approve && d.Verdict != approval.None {
				t.Errorf("usages %s, common name %q, user %q: got %+v", usages, cn, user, d)
			}
			if want && (d.Rule == "selfnodeclient") != (user == cn) {
				t.Errorf("user %q, common name %q: got rule %s", user, cn, d.Rule)
			}
		})
	})
}

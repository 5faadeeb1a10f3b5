package approval_test

import (
	"context"
	"encoding/hex"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// FuzzKubeletServing requests any names and addresses, some of which the Node reports. The checks below do not
// share code with the rule: each approved name must be in scope, reported and not forbidden.
func FuzzKubeletServing(f *testing.F) {
	f.Add("worker-1", "worker-1,worker-1.example.com", "0a000005,20010db8000000000000000000000005", "10.0.0.5,2001:db8::5,WORKER-1,worker-1.example.com")
	f.Add("worker-1", "*.example.com", "7f000001", "127.0.0.1,*.example.com")
	f.Add("worker-1", "", "00000000000000000000ffff0a000005", "10.0.0.5,::ffff:10.0.0.5")
	f.Add("worker-1", "\u212aube.example.com,api.example.com", "0a000001", "kube.example.com,10.0.0.1")
	f.Add("worker-1", "x.kube-system.svc.example.com", "0a600001", "10.96.0.1")
	f.Add("control-1", "api.example.com", "0a000001", "")
	f.Add("worker-1", "worker-1.,worker-1.example.com.,api.example.com.", "", "worker-1,worker-1.example.com")
	f.Add("12345", "12345", "0a000009", "010.0.0.9,12345")
	f.Add("worker-1", strings.Repeat("a.example.com,", 200), "", "a.example.com")
	f.Add("worker-1", strings.Repeat("a.", 30000), strings.Repeat("0a000005,", 90), strings.Repeat("1:", 30000))
	host := regexp.MustCompile(`\A[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\z`)
	zeros := regexp.MustCompile(`(^|[.:])0+([0-9])`)
	f.Fuzz(func(t *testing.T, node, names, addresses, reports string) {
		r := servingRequest(node)
		for name := range strings.SplitSeq(names, ",") {
			if name != "" {
				r.CSR.DNSNames = append(r.CSR.DNSNames, name)
			}
		}
		for text := range strings.SplitSeq(addresses, ",") {
			if b, err := hex.DecodeString(text); err == nil && len(b) > 0 {
				r.CSR.IPAddresses = append(r.CSR.IPAddresses, net.IP(b))
			}
		}
		w := servingWorld()
		w.nodes[node] = strings.Split(reports, ",")
		rule := must.Get(approval.NewKubeletServing(scope))
		fuzzing.RunWithinLimit(t, func() {
			d, err := approval.Decide(context.Background(), []approval.Rule{rule}, r, w)
			if err != nil || d.Reason == "" || d.Message == "" {
				t.Errorf("got %+v, %v, want a reason and a message", d, err)
			}
			if len(d.Message) > 2000 {
				t.Errorf("got a message of %d bytes, want at most 2000", len(d.Message))
			}
			if d.Verdict != approval.Approve {
				return
			}
			if n := len(r.CSR.DNSNames) + len(r.CSR.IPAddresses); n == 0 || n > 500 {
				t.Errorf("approved %d names, want 1 to 500", n)
			}
			reported := func(equal func(string) bool) bool { return slices.ContainsFunc(w.nodes[node], equal) }
			for _, ip := range r.CSR.IPAddresses {
				in4 := len(ip) == 4 && ip[0] == 10 && !(ip[1] >= 96 && ip[1] < 112)
				in6 := len(ip) == 16 && strings.HasPrefix(hex.EncodeToString(ip), "20010db8") && !strings.HasPrefix(hex.EncodeToString(ip), "20010db8000000010000000000")
				if !in4 && !in6 {
					t.Errorf("approved %x, which is out of scope or reserved", []byte(ip))
				}
				a, _ := netip.AddrFromSlice(ip)
				if !reported(func(s string) bool {
					b, err := netip.ParseAddr(zeros.ReplaceAllString(strings.TrimSuffix(s, "."), "$1$2"))
					return err == nil && a == b.Unmap()
				}) {
					t.Errorf("approved %s, which the node does not report", a)
				}
				if s := a.String(); s == "10.0.0.1" || s == "10.0.0.6" || s == "2001:db8::1" || s == "10.0.0.5" && node != "worker-1" {
					t.Errorf("approved %s, which belongs to another host", a)
				}
			}
			for _, name := range r.CSR.DNSNames {
				name = strings.TrimSuffix(name, ".")
				lower := strings.ToLower(name)
				if !host.MatchString(name) || len(name) > 253 {
					t.Errorf("approved %q, which is not a host name", name)
				}
				if lower != node && !strings.HasSuffix(lower, ".example.com") && !strings.HasSuffix(lower, ".xn--bcher-kva.example") {
					t.Errorf("approved %q, which is out of scope", name)
				}
				for _, part := range []string{".svc.", ".localhost.", ".kubernetes.default.", ".cluster.local."} {
					if strings.Contains("."+lower+".", part) && !strings.HasPrefix(lower, "svc.") {
						t.Errorf("approved %q, which contains %s", name, part)
					}
				}
				if lower == "kubernetes" || strings.HasPrefix(lower, "kubernetes.") || lower == "api.example.com" || lower == "worker-2.example.com" {
					t.Errorf("approved %q, which belongs to another host", name)
				}
				if !reported(func(s string) bool { return strings.EqualFold(strings.TrimSuffix(s, "."), name) }) {
					t.Errorf("approved %q, which the node does not report", name)
				}
			}
		})
	})
}

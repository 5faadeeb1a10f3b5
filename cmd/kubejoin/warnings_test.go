package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTokenNoticeOfCA(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	limited := func(d time.Duration) (r tokens.Record) { r.Limits.CertificateDuration = d; return r }
	for _, test := range []struct {
		name           string
		left, lifetime time.Duration
		made           tokens.Record
		want           string
	}{
		{"years to come", 5 * year, year, tokens.Record{}, ""},
		{"before the certificates", 100 * day, year, tokens.Record{}, "certificates that are to last for 8760h0m0s"},
		{"before those that are usual", 100 * day, 0, tokens.Record{}, "certificates that are to last for 8760h0m0s"},
		{"after shorter ones", 100 * day, year, limited(30 * day), ""},
		{"before shorter ones", 100 * day, year, limited(200 * day), "certificates that are to last for 4800h0m0s"},
		{"the token's are longer than the signer's", 100 * day, day, limited(200 * day), ""},
		{"soon", 29 * day, day, tokens.Record{}, "within 30 days, and nothing can be signed then"},
		{"soon and before", 29 * day, year, tokens.Record{}, "within 30 days: replace it"},
		{"over", -day, day, tokens.Record{}, "nobody gets a certificate until it is replaced"},
	} {
		if got := tokenNoticeOfCA(now.Add(test.left), test.lifetime, test.made, now); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// What a service warns of, by what the token is.
func TestTokenWarnings(t *testing.T) {
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 48*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(serveOptions{}, slog.New(slog.DiscardHandler), nil)
	s.warnOfLimits("and nobody does")
	s.warnOfCA(&signer.Authority{Signers: signer.FixedSigners(signer.KubernetesSigners(signer.Fixed(ca), time.Hour*24))}, nothing)
	nobodyLeads := errors.New("nobody leads")
	s.warnOfLeader("kubejoin-system/kubejoin", func(context.Context) error { return nobodyLeads })
	s.warnBy(func(context.Context) error { return server.Notice("somebody else signs") })
	for _, test := range []struct {
		name string
		made tokens.Record
		led  bool
		want []string // the first words of each
	}{
		{"unlimited", tokens.Record{Signing: true, Authentication: true}, false, []string{"the CA expires at", "no kubejoin is known to lead (Lease kubejoin-system/kubejoin)"}},
		{"for signing alone", tokens.Record{Signing: true}, false, []string{"no kubejoin"}},
		{"limited", tokens.Record{Authentication: true, Limits: tokens.Limits{MaxNodes: 1}}, false, []string{"the limits of this token", "the CA expires at", "no kubejoin", "somebody else signs"}},
		{"led", tokens.Record{Authentication: true}, true, []string{"the CA expires at"}},
	} {
		if test.led {
			nobodyLeads = nil
		}
		got := s.api.Warnings(t.Context(), test.made)
		ok := len(got) == len(test.want)
		for i := range test.want {
			ok = ok && strings.HasPrefix(got[i], test.want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Who asks for a shorter lifetime than the signer gives is told of the one that certificates will have.
func TestWarningOfDuration(t *testing.T) {
	const hour = time.Hour
	for _, test := range []struct {
		name    string
		profile signer.Profile
		asked   time.Duration
		want    string
	}{
		{"below the least", signer.Profile{Min: 2 * hour, Default: 24 * hour}, hour, "last for 2h0m0s and not for 1h0m0s"},
		{"the least", signer.Profile{Min: 2 * hour, Default: 24 * hour}, 2 * hour, ""},
		{"none", signer.Profile{Min: 2 * hour, Default: 24 * hour}, 0, ""},
		{"no least", signer.Profile{Default: 24 * hour}, 10 * time.Minute, ""},
		{"a least that is more than the most", signer.Profile{Min: 3 * hour, Default: 2 * hour}, hour, "last for 3h0m0s and not for 1h0m0s"},
		{"more than the most, which is said of the flag", signer.Profile{Min: hour, Default: 2 * hour}, 9 * hour, ""},
	} {
		s := newService(serveOptions{}, slog.New(slog.DiscardHandler), nil)
		s.warnOfDuration(&signer.Authority{Signers: signer.FixedSigners(map[string]signer.Signer{certificates.KubeAPIServerClientKubeletSignerName: {Profile: test.profile}})})
		made := tokens.Record{Authentication: true, Limits: tokens.Limits{CertificateDuration: test.asked}}
		got := strings.Join(s.api.Warnings(t.Context(), made), "")
		if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		// It is what the signer does.
		now := time.Now()
		notBefore, notAfter, err := test.profile.Validity(now.Add(1000*hour), test.asked, now)
		if lasts := notAfter.Sub(notBefore) - 5*time.Minute; err != nil || test.want != "" && !strings.Contains(test.want, "for "+lasts.String()+" ") {
			t.Errorf("%s: lasts for %s, %v", test.name, lasts, err)
		}
		made.Authentication = false
		if got := s.api.Warnings(t.Context(), made); len(got) > 0 {
			t.Errorf("%s, for signing alone: %q", test.name, got)
		}
	}
}

// With a kubeconfig alone, who makes a token is told of a cluster-info that is nearly full, and of
// CAs that end.
func TestWarningsOfCluster(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	kube := onKube{t, c.Kubeconfig()}
	if r := kube.run("token", "create", "--wait", "0").ok(); r.stderr != "" {
		t.Errorf("a cluster with nothing amiss: %s", r.stderr)
	}
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig(c.Server(), ca.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	maps := c.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	info, err := maps.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info.Data[clusterinfo.KubeconfigKey] = string(kubeconfig)
	info.BinaryData = map[string][]byte{"filling": make([]byte, clusterinfo.MaxData*85/100)}
	if _, err := maps.Update(t.Context(), info, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := kube.run("token", "create", "--wait", "0").ok()
	r.warned("kubejoin: warning: cluster-info is 85 % full").warned("kubejoin: warning: no CA in cluster-info lasts longer than to")
	if r := kube.run("token", "create", "--usages", "authentication", "--wait", "0").ok(); strings.Contains(r.stderr, "full") {
		t.Errorf("a token that needs no signature: %s", r.stderr)
	}

	// So is who asks a kubejoin that leaves the signing to others, of whose CA it knows no more.
	dir := t.TempDir()
	own, bearer := filepath.Join(dir, "signers.yaml"), filepath.Join(dir, "bearer")
	for file, content := range map[string]string{
		bearer: "sixteen-or-more-characters",
		own:    "apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners:\n- name: example.com/etcd\n  usages: [server auth]\n  subject: {commonNames: [etcd]}\n",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, flags := range map[string][]string{
		"csr-signer off": {"--controllers", "*,-csr-signer"},
		"shadow":         {"--shadow"},
		"not in a file":  {"--signer-config", own},
	} {
		t.Run(name, func(t *testing.T) {
			url := serveCluster(t, c, "sixteen-or-more-characters,ada,1,kubejoin:admins\n", flags...)
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), []string{"token", "create", "--max-nodes", "1", "--wait", "0", "--url", url, "--ca-file", c.CAFile(), "--bearer-file", bearer}, &stdout, &stderr)
			if err != nil || strings.Count(stderr.String(), "kubejoin: warning: no CA in cluster-info lasts longer than to") != 1 ||
				strings.Count(stderr.String(), "kubejoin: warning: the limits of this token hold only where kubejoin signs") != 1 {
				t.Errorf("%v, and the warnings are %q", err, stderr.String())
			}
		})
	}
}

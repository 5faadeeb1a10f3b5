package tokenwarning

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

func TestNoticeOfCA(t *testing.T) {
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
		{"before the certificates", 100 * day, year, tokens.Record{}, "certificates expire then instead of lasting 8760h; run: kubejoin ca prepare"},
		{"before certificates of default lifetime", 100 * day, 0, tokens.Record{}, "certificates expire then instead of lasting 8760h"},
		{"after shorter ones", 100 * day, year, limited(30 * day), ""},
		{"before shorter ones", 100 * day, year, limited(200 * day), "certificates expire then instead of lasting 4800h"},
		{"the token's are longer than the signer's", 100 * day, day, limited(200 * day), ""},
		{"soon", 29 * day, day, tokens.Record{}, "within 30 days, and cannot sign after that"},
		{"soon and before", 29 * day, year, tokens.Record{}, "; that is within 30 days; run: kubejoin ca prepare"},
		{"expired", -day, day, tokens.Record{}, "kubejoin issues no certificates until you replace it"},
	} {
		if got := noticeOfCA(now.Add(test.left), test.lifetime, test.made, now); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestWarningsDependOnTheToken(t *testing.T) {
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 48*time.Hour))(t)
	nobodyLeads := errors.New("nobody leads")
	warnings := []Warning{
		Limits("and nobody does"),
		CA(&signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), time.Hour*24)))}, None),
		Leader("kubejoin-system/kubejoin", func(context.Context) error { return nobodyLeads }),
		Check(func(context.Context) error { return api.Notice("somebody else signs") }),
	}
	for _, test := range []struct {
		name string
		made tokens.Record
		led  bool
		want []string // prefixes
	}{
		{"unlimited", tokens.Record{Signing: true, Authentication: true}, false, []string{"the CA expires at", "no kubejoin replica leads (Lease kubejoin-system/kubejoin)"}},
		{"for signing alone", tokens.Record{Signing: true}, false, []string{"no kubejoin"}},
		{"limited", tokens.Record{Authentication: true, Limits: tokens.Limits{MaxNodes: 1}}, false, []string{"the limits of this token", "the CA expires at", "no kubejoin", "somebody else signs"}},
		{"led", tokens.Record{Authentication: true}, true, []string{"the CA expires at"}},
	} {
		if test.led {
			nobodyLeads = nil
		}
		got := All(t.Context(), test.made, warnings...)
		ok := len(got) == len(test.want)
		for i := range test.want {
			ok = ok && strings.HasPrefix(got[i], test.want[i])
		}
		if !ok {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestWarnsIfSignerRaisesLifetime(t *testing.T) {
	const hour = time.Hour
	for _, test := range []struct {
		name    string
		profile signer.ProfileConfig
		asked   time.Duration
		want    string
	}{
		{"below the minimum", signer.ProfileConfig{Min: 2 * hour, Default: 24 * hour}, hour, "last for 2h instead of 1h"},
		{"the minimum", signer.ProfileConfig{Min: 2 * hour, Default: 24 * hour}, 2 * hour, ""},
		{"none", signer.ProfileConfig{Min: 2 * hour, Default: 24 * hour}, 0, ""},
		{"no minimum", signer.ProfileConfig{Default: 24 * hour}, 10 * time.Minute, ""},
		{"above the maximum, which the flag reports", signer.ProfileConfig{Min: hour, Default: 2 * hour}, 9 * hour, ""},
	} {
		const name = certificates.KubeAPIServerClientKubeletSignerName
		test.profile.Usages = signer.KubernetesUsages(name)
		nodes := must.Get(signer.NewSigner(name, func() (*signer.CA, error) { return nil, errors.New("no CA") }, test.profile, nil))
		warning := Duration(&signer.Authority{Signers: signer.FixedSigners(map[string]signer.Signer{name: nodes})})
		made := tokens.Record{Authentication: true, Limits: tokens.Limits{CertificateDuration: test.asked}}
		got := warning(t.Context(), made)
		if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
		// The signer must issue with the same lifetime.
		now := time.Now()
		notBefore, notAfter, err := must.Get(signer.NewProfile(test.profile)).Validity(now.Add(1000*hour), test.asked, now)
		if lasts := notAfter.Sub(notBefore) - 5*time.Minute; err != nil || test.want != "" && !strings.Contains(test.want, "for "+safetext.Duration(lasts)+" ") {
			t.Errorf("%s: lasts for %s, %v", test.name, lasts, err)
		}
		made.Authentication = false
		if got := warning(t.Context(), made); got != "" {
			t.Errorf("%s, for signing alone: %q", test.name, got)
		}
	}
}

func TestOnlyTokensOfControlPlanesWarnOfKubeletClient(t *testing.T) {
	warning := KubeletClient(apitest.Reviews(t, func() any { return map[string]any{"allowed": false} }))
	for role, want := range map[string]bool{"": false, tokens.RoleControlPlane: true} {
		if got := warning(t.Context(), tokens.Record{Limits: tokens.Limits{Role: role}}); strings.Contains(got, "kubectl create clusterrolebinding kubeadm:apiserver-kubelet-client") != want {
			t.Errorf("role %q: got %q, want a warning: %t", role, got, want)
		}
	}
}

func TestTrusted(t *testing.T) {
	newCA := func() *signer.CA {
		return must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	}
	ca, other := newCA(), newCA() // two CAs with the same name
	for _, test := range []struct {
		name string
		cas  []*x509.Certificate
		want bool
	}{
		{"the same", ca.Bundle(), true},
		{"in a rotation", append(other.Bundle(), ca.Bundle()...), true},
		{"another", other.Bundle(), false},
		{"none", nil, false},
	} {
		if got := Trusted(ca, test.cas); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

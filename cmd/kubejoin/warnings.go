package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// A tokenWarning is what whoever makes a token should know, or empty.
type tokenWarning func(ctx context.Context, made tokens.Record) string

// warnOf has whoever makes a token told of something, in the order of the calls.
func (s *service) warnOf(say tokenWarning) { s.warnings = append(s.warnings, say) }

// tokenWarnings is a [server.Server.Warnings].
func (s *service) tokenWarnings(ctx context.Context, made tokens.Record) []string {
	return warningsOf(ctx, made, s.warnings)
}

func warningsOf(ctx context.Context, made tokens.Record, all []tokenWarning) []string {
	var list []string
	for _, say := range all {
		if text := say(ctx, made); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// warnOfLimits tells those who limit a token why nobody may be held to it.
func (s *service) warnOfLimits(why string) { s.warnOf(limitsWarning(why)) }

func limitsWarning(why string) tokenWarning {
	return func(_ context.Context, made tokens.Record) string {
		if made.Limits.IsZero() {
			return ""
		}
		return "the limits of this token hold only where kubejoin signs certificates, " + why
	}
}

// warnOfOtherSigner tells the same while --signer-config leaves nodes' certificates to others.
func (s *service) warnOfOtherSigner(authority *signer.Authority) {
	warning := limitsWarning("and --signer-config leaves " + certificates.KubeAPIServerClientKubeletSignerName + " to others")
	s.warnOf(func(ctx context.Context, made tokens.Record) string {
		if _, found := authority.Signer(certificates.KubeAPIServerClientKubeletSignerName); found {
			return ""
		}
		return warning(ctx, made)
	})
}

// nothing is a tokenWarning where there is nothing to say.
func nothing(context.Context, tokens.Record) string { return "" }

// warnOfCA tells of a CA that ends before certificates that are issued on the token would, or soon.
// otherwise is asked where --signer-config leaves those certificates to others.
func (s *service) warnOfCA(authority *signer.Authority, otherwise tokenWarning) {
	s.warnOf(func(ctx context.Context, made tokens.Record) string {
		nodes, found := authority.Signer(certificates.KubeAPIServerClientKubeletSignerName)
		if !found {
			return otherwise(ctx, made)
		}
		if !made.Authentication {
			return ""
		}
		ca, err := nodes.CA()
		if err != nil {
			return "" // readiness says so
		}
		return tokenNoticeOfCA(ca.Certificate().NotAfter, nodes.Profile.Default, made, time.Now())
	})
}

// tokenNoticeOfCA is noticeOfCA for what one token is for: certificates of lifetime, or of less.
func tokenNoticeOfCA(end time.Time, lifetime time.Duration, made tokens.Record, now time.Time) string {
	if lifetime == 0 {
		lifetime = signer.DefaultDuration
	}
	if d := made.Limits.CertificateDuration; d > 0 && d < lifetime {
		lifetime = d
	}
	if state, _ := stateOfCA(end, lifetime, now); state == caExpired {
		return fmt.Sprintf("the CA expired at %s, and nobody gets a certificate until it is replaced", end.UTC().Format(time.RFC3339))
	}
	return noticeOfCA(end, lifetime, now)
}

// warnOfDuration tells of a lifetime of certificates that their signer raises, which is longer than
// whoever made the token wants to trust a machine.
func (s *service) warnOfDuration(authority *signer.Authority) {
	s.warnOf(func(_ context.Context, made tokens.Record) string {
		const name = certificates.KubeAPIServerClientKubeletSignerName
		nodes, _ := authority.Signer(name)
		p, d := nodes.Profile, made.Limits.CertificateDuration
		// Without Min it is the least that a token can ask for.
		if !made.Authentication || d == 0 || d >= p.Min || d > cmp.Or(p.Max, p.Default, signer.DefaultDuration) {
			return ""
		}
		return fmt.Sprintf("certificates that are issued on this token last for %s and not for %s: duration.min of signer %s in --signer-config is more", p.Min, d, name)
	})
}

// warnOfSize tells of a ConfigMap that fills up, where joins depend on it.
func (s *service) warnOfSize(info *configmap.ConfigMap) {
	if s.options.advertise != "" {
		return
	}
	s.warnOf(sizeWarning(info))
}

func sizeWarning(info *configmap.ConfigMap) tokenWarning {
	return func(_ context.Context, made tokens.Record) string {
		fill := info.Fill()
		if !made.Signing || !fill.High() {
			return ""
		}
		return fill.String() + "; " + noRoomAdvice
	}
}

// caWarning tells of the CAs that machines are to trust, where no more is known of the CA that
// signs, as it is another's: in a rotation one of them may be near its end.
func caWarning(info *configmap.ConfigMap) tokenWarning {
	return func(ctx context.Context, _ tokens.Record) string {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		kubeconfig, err := info.Config(ctx)
		if err != nil {
			return ""
		}
		_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
		if err != nil {
			return ""
		}
		end := slices.MaxFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		switch soon, _ := expiresSoon(end, time.Now()); {
		case soon:
			return fmt.Sprintf("no CA in cluster-info lasts longer than to %s, within 30 days: replace it", end.UTC().Format(time.RFC3339))
		case !time.Now().Before(end):
			return fmt.Sprintf("the CA in cluster-info expired at %s: no machine can join", end.UTC().Format(time.RFC3339))
		}
		return ""
	}
}

// warnOfTrust tells of a kubejoin that join commands name and that machines will not trust.
func (s *service) warnOfTrust(info *configmap.ConfigMap) {
	if s.options.advertise == "" || s.options.tlsCert != "" || s.ca == nil {
		return
	}
	s.warnOf(func(ctx context.Context, made tokens.Record) string {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		kubeconfig, err := info.Config(ctx)
		if err != nil || !made.Signing {
			return ""
		}
		if _, cas, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil || trusted(s.ca.Get(), cas) {
			return ""
		}
		return untrustedServing
	})
}

// untrustedServing is said where discovery at kubejoin cannot work.
const untrustedServing = "the CA that signs kubejoin's serving certificate is none of those in cluster-info: discovery at kubejoin fails"

// warnOfLeader warns unless a replica is known to run the controllers. ready is that of the election.
func (s *service) warnOfLeader(lease string, ready func(context.Context) error) {
	s.warnOf(func(ctx context.Context, _ tokens.Record) string {
		if ready(ctx) == nil {
			return ""
		}
		return fmt.Sprintf("no kubejoin is known to lead (Lease %s), and its controllers rest until one does: neither signatures nor certificates come from it", lease)
	})
}

// warnBy has those who limit a token told what a check has noticed.
func (s *service) warnBy(ready func(context.Context) error) {
	s.warnOf(func(ctx context.Context, made tokens.Record) string {
		var notice server.Notice
		if made.Limits.IsZero() || !errors.As(ready(ctx), &notice) {
			return ""
		}
		return string(notice)
	})
}

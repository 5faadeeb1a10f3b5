// Package tokenwarning makes the warnings for callers that create a token: why machines may not join with
// it, or not as its limits say. 'kubejoin serve' and the commands over a kubeconfig share them.
package tokenwarning

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
	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// A Warning returns what the creator of a token should know, or an empty text.
type Warning func(ctx context.Context, made tokens.Record) string

// All returns the warnings about a token, without empty ones.
func All(ctx context.Context, made tokens.Record, warnings ...Warning) []string {
	var list []string
	for _, warning := range warnings {
		if text := warning(ctx, made); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// None never warns.
func None(context.Context, tokens.Record) string { return "" }

// Limits warns that nothing enforces the limits of a token, and why.
func Limits(why string) Warning {
	return func(_ context.Context, made tokens.Record) string {
		if made.Limits.IsZero() {
			return ""
		}
		return "the limits of this token hold only where kubejoin signs certificates, " + why
	}
}

// OtherSigner is Limits while --signer-config leaves the certificates of nodes to another signer.
func OtherSigner(authority *signer.Authority) Warning {
	warning := Limits("and --signer-config leaves " + certificates.KubeAPIServerClientKubeletSignerName + " to others")
	return func(ctx context.Context, made tokens.Record) string {
		if _, found := authority.Signer(certificates.KubeAPIServerClientKubeletSignerName); found {
			return ""
		}
		return warning(ctx, made)
	}
}

// CA warns of a CA that expires soon, or before certificates that are issued on the token are to expire.
// While --signer-config leaves those certificates to another signer, otherwise replaces it.
func CA(authority *signer.Authority, otherwise Warning) Warning {
	return func(ctx context.Context, made tokens.Record) string {
		nodes, found := authority.Signer(certificates.KubeAPIServerClientKubeletSignerName)
		if !found {
			return otherwise(ctx, made)
		}
		if !made.Authentication {
			return ""
		}
		ca, err := nodes.CA()
		if err != nil {
			return "" // readiness reports it
		}
		return noticeOfCA(ca.Certificate().NotAfter, nodes.Profile.Default, made, time.Now())
	}
}

// noticeOfCA is [caexpiry.Notice] for certificates on one token: they last for lifetime, or for less.
func noticeOfCA(end time.Time, lifetime time.Duration, made tokens.Record, now time.Time) string {
	lifetime = cmp.Or(lifetime, signer.DefaultDuration)
	if d := made.Limits.CertificateDuration; d > 0 && d < lifetime {
		lifetime = d
	}
	if caexpiry.Expired(end, lifetime, now) {
		return fmt.Sprintf("the CA expired at %s, and nobody gets a certificate until it is replaced", end.UTC().Format(time.RFC3339))
	}
	return caexpiry.Notice(end, lifetime, now)
}

// Duration warns that the signer raises the lifetime of certificates above that of the token.
func Duration(authority *signer.Authority) Warning {
	return func(_ context.Context, made tokens.Record) string {
		const name = certificates.KubeAPIServerClientKubeletSignerName
		nodes, _ := authority.Signer(name)
		p, d := nodes.Profile, made.Limits.CertificateDuration
		// A zero Min is the least that a token can ask for.
		if !made.Authentication || d == 0 || d >= p.Min || d > cmp.Or(p.Max, p.Default, signer.DefaultDuration) {
			return ""
		}
		return fmt.Sprintf("certificates that are issued on this token last for %s and not for %s: duration.min of signer %s in --signer-config is more", p.Min, d, name)
	}
}

// SizeAdvice is what to do about a full cluster-info that machines read at the API server.
const SizeAdvice = "when it is full no more tokens can be made: delete tokens or let some expire, or start kubejoin with --advertise, whose cluster-info has no limit"

// Size warns of a ConfigMap cluster-info that fills up.
func Size(info *configmap.ConfigMap) Warning {
	return func(_ context.Context, made tokens.Record) string {
		fill := info.Fill()
		if !made.Signing || !fill.High() {
			return ""
		}
		return fill.String() + "; " + SizeAdvice
	}
}

// readTimeout bounds a read of cluster-info.
const readTimeout = time.Second

// ClusterInfoCAs warns that every CA in cluster-info expires soon or has expired. It is for a CA that
// another signer has: in a rotation, an older one may well be near its end.
func ClusterInfoCAs(info *configmap.ConfigMap) Warning {
	return func(ctx context.Context, _ tokens.Record) string {
		cas := casIn(ctx, info)
		if len(cas) == 0 {
			return ""
		}
		end := slices.MaxFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		switch now := time.Now(); {
		case caexpiry.Soon(end, now):
			return fmt.Sprintf("no CA in cluster-info lasts longer than to %s, within 30 days: replace it", end.UTC().Format(time.RFC3339))
		case !now.Before(end):
			return fmt.Sprintf("the CA in cluster-info expired at %s: no machine can join", end.UTC().Format(time.RFC3339))
		}
		return ""
	}
}

// casIn returns the CAs in cluster-info, or none if it cannot be read.
func casIn(ctx context.Context, info *configmap.ConfigMap) []*x509.Certificate {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	kubeconfig, err := info.Config(ctx)
	if err != nil {
		return nil
	}
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil
	}
	return cas
}

// Untrusted is the warning that machines do not trust the serving certificate of kubejoin.
const Untrusted = "the CA that signs kubejoin's serving certificate is none of those in cluster-info: discovery at kubejoin fails"

// Trust warns if join commands name kubejoin and cluster-info does not have the CA of its serving
// certificate.
func Trust(info *configmap.ConfigMap, ca func() *signer.CA) Warning {
	return func(ctx context.Context, made tokens.Record) string {
		if !made.Signing {
			return ""
		}
		if cas := casIn(ctx, info); len(cas) == 0 || Trusted(ca(), cas) {
			return ""
		}
		return Untrusted
	}
}

// Trusted reports whether clients that trust cas trust what ca signs.
func Trusted(ca *signer.CA, cas []*x509.Certificate) bool {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range cas {
		roots.AddCert(c)
	}
	for _, c := range ca.Bundle() {
		intermediates.AddCert(c)
	}
	_, err := ca.Certificate().Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// Leader warns unless a replica is known to run the controllers. ready is that of the election.
func Leader(lease string, ready func(context.Context) error) Warning {
	return func(ctx context.Context, _ tokens.Record) string {
		if ready(ctx) == nil {
			return ""
		}
		return fmt.Sprintf("no kubejoin is known to lead (Lease %s), and its controllers rest until one does: neither signatures nor certificates come from it", lease)
	}
}

// Check repeats the notice of a readiness check to callers that create a limited token.
func Check(ready func(context.Context) error) Warning {
	return func(ctx context.Context, made tokens.Record) string {
		var notice server.Notice
		if made.Limits.IsZero() || !errors.As(ready(ctx), &notice) {
			return ""
		}
		return string(notice)
	}
}

// Package tokenwarning returns warnings for callers that create a token: why machines may be unable to join with it,
// or why its limits may not be enforced. 'kubejoin serve' and the commands that use a kubeconfig share them.
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
	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

// A Warning returns a message for the caller that created a token, or the empty string.
type Warning func(ctx context.Context, made tokens.Record) string

// All returns the non-empty warnings about a token.
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

// Limits warns if a token has limits, because other signers do not enforce them. The message ends with why.
func Limits(why string) Warning {
	return func(_ context.Context, made tokens.Record) string {
		if made.Limits.IsZero() {
			return ""
		}
		return "the limits of this token apply only to certificates that kubejoin signs, " + why
	}
}

// OtherSigner warns like Limits if --signer-config leaves node client certificates to another signer.
func OtherSigner(authority *signer.Authority) Warning {
	warning := Limits("and --signer-config leaves " + certificates.KubeAPIServerClientKubeletSignerName + " to another signer")
	return func(ctx context.Context, made tokens.Record) string {
		if _, found := authority.Signer(certificates.KubeAPIServerClientKubeletSignerName); found {
			return ""
		}
		return warning(ctx, made)
	}
}

// CA warns if the CA expires soon, or before the normal end of certificates issued on the token. If --signer-config
// leaves those certificates to another signer, the warning otherwise replaces CA.
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
			return "" // the readiness check reports this error
		}
		return noticeOfCA(ca.Certificate().NotAfter, nodes.Profile().Default, made, time.Now())
	}
}

// noticeOfCA returns [caexpiry.Notice] for certificates issued on one token. They last for lifetime, or for the
// token's certificate duration if that is shorter.
func noticeOfCA(end time.Time, lifetime time.Duration, made tokens.Record, now time.Time) string {
	lifetime = cmp.Or(lifetime, signer.DefaultDuration)
	if d := made.Limits.Strictest().CertificateDuration; d > 0 && d < lifetime {
		lifetime = d
	}
	if caexpiry.Expired(end, lifetime, now) {
		return fmt.Sprintf("the CA expired at %s, and kubejoin issues no certificates until you replace it", end.UTC().Format(time.RFC3339))
	}
	return caexpiry.Notice(end, lifetime, now, caexpiry.Prepare(rotation.Cluster))
}

// Duration warns if the signer's minimum lifetime exceeds the token's certificate duration.
func Duration(authority *signer.Authority) Warning {
	return func(_ context.Context, made tokens.Record) string {
		const name = certificates.KubeAPIServerClientKubeletSignerName
		nodes, _ := authority.Signer(name)
		p, d := nodes.Profile(), made.Limits.Strictest().CertificateDuration
		if !made.Authentication || d == 0 || d >= p.Min || d > p.Max {
			return ""
		}
		return fmt.Sprintf("certificates of nodes that join with this token last for %s instead of %s: duration.min of signer %s in --signer-config is longer", safetext.Duration(p.Min), safetext.Duration(d), name)
	}
}

// SizeAdvice is the advice for a full cluster-info that machines read from the API server.
const SizeAdvice = "when it is full, no more tokens can be created: delete tokens that no machine joins with, or start kubejoin with --advertise HOST:PORT, whose cluster-info has no size limit"

// Size warns if the ConfigMap cluster-info is nearly full.
func Size(info *configmap.ConfigMap) Warning {
	return func(_ context.Context, made tokens.Record) string {
		fill := info.Fill()
		if !made.Signing || !fill.High() {
			return ""
		}
		return fill.String() + "; " + SizeAdvice
	}
}

// readTimeout limits a read of cluster-info.
const readTimeout = time.Second

// ClusterInfoCAs warns if every CA in cluster-info expires soon or has expired. It is for clusters where another signer has the
// CA key. One expiring CA is normal: during a rotation, cluster-info contains the old CA and the new CA.
func ClusterInfoCAs(info *configmap.ConfigMap) Warning {
	return func(ctx context.Context, _ tokens.Record) string {
		cas := casIn(ctx, info)
		if len(cas) == 0 {
			return ""
		}
		end := slices.MaxFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		now := time.Now()
		switch days, _ := caexpiry.Within(end, now); {
		case days > 0:
			return fmt.Sprintf("the last CA in cluster-info expires at %s, within %d days; %s", end.UTC().Format(time.RFC3339), days, caexpiry.Prepare(rotation.Cluster))
		case !now.Before(end):
			return fmt.Sprintf("the CA in cluster-info expired at %s: no machine can join", end.UTC().Format(time.RFC3339))
		}
		return ""
	}
}

// casIn returns the CAs in cluster-info, or none if cluster-info cannot be read.
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

// Untrusted is the warning that machines do not trust kubejoin's serving certificate.
const Untrusted = "cluster-info lacks the CA of kubejoin's serving certificate: discovery at kubejoin fails"

// Trust warns if cluster-info lacks the CA of kubejoin's serving certificate. It is for join commands that name
// kubejoin.
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

// Trusted reports whether clients that trust cas trust certificates that ca signs.
func Trusted(ca *signer.CA, cas []*x509.Certificate) bool {
	_, err := ca.Certificate().Verify(x509.VerifyOptions{Roots: pemfile.PoolOf(cas), Intermediates: pemfile.PoolOf(ca.Bundle()), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// Leader warns unless some replica is known to run the controllers. ready is the Ready method of the election.
func Leader(lease string, ready func(context.Context) error) Warning {
	return func(ctx context.Context, _ tokens.Record) string {
		if ready(ctx) == nil {
			return ""
		}
		return fmt.Sprintf("no kubejoin replica leads (Lease %s): until one does, kubejoin signs neither cluster-info nor certificates", lease)
	}
}

// Check repeats the notice of a readiness check as a warning for limited tokens.
func Check(ready func(context.Context) error) Warning {
	return func(ctx context.Context, made tokens.Record) string {
		var notice api.Notice
		if made.Limits.IsZero() || !errors.As(ready(ctx), &notice) {
			return ""
		}
		return string(notice)
	}
}

// KubeletClient warns if control planes that join with the token break kubectl logs and exec.
func KubeletClient(client kubernetes.Interface) Warning {
	return func(ctx context.Context, made tokens.Record) string {
		if made.Limits.Strictest().Role != tokens.RoleControlPlane {
			return ""
		}
		return accessreview.KubeletClient(ctx, client)
	}
}

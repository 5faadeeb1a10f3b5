package signer_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// The limit applies only to kubelets, which renew by themselves: the certificate of a person or of
// kube-scheduler would expire.
func TestMaxLifetimeShortensCertificatesOfKubelets(t *testing.T) {
	const kubelet, serving, client = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName
	ca, now := newCA(t), time.Now().Truncate(time.Second)
	for name, test := range map[string]struct {
		signer       string
		normal, asks time.Duration
		most, want   time.Duration
	}{
		"client certificate":             {kubelet, 7 * time.Hour, 0, 90 * time.Minute, 90 * time.Minute},
		"serving certificate":            {serving, 7 * time.Hour, 0, 90 * time.Minute, 90 * time.Minute},
		"no limit":                       {kubelet, 7 * time.Hour, 0, 0, 7 * time.Hour},
		"limit above the profile's":      {kubelet, time.Hour, 0, 90 * time.Minute, time.Hour},
		"request for less":               {kubelet, 7 * time.Hour, 30 * time.Minute, 90 * time.Minute, 30 * time.Minute},
		"request for more":               {kubelet, 7 * time.Hour, 6 * time.Hour, 90 * time.Minute, 90 * time.Minute},
		"shorter than the profile's":     {kubelet, 7 * time.Hour, 0, time.Minute, signer.DefaultMin},
		"another client of kube-api":     {client, 7 * time.Hour, 0, 90 * time.Minute, 7 * time.Hour},
		"request above the profile's":    {kubelet, time.Hour, 5 * time.Hour, 90 * time.Minute, time.Hour},
		"request above it without limit": {kubelet, time.Hour, 5 * time.Hour, 0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			a := &signer.Authority{
				Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), test.normal))),
				MaxLifetime: func(by *x509.Certificate, node string) time.Duration {
					if !by.Equal(ca.Certificate()) {
						t.Errorf("asked for CA %s", by.Subject)
					}
					asked = node
					return test.most
				},
				Now: func() time.Time { return now },
			}
			r := kubernetesRequest(t, test.signer, csrtest.NewKey())
			r.Expiration = test.asks
			cert := decode(t, must.Value(a.Sign(t.Context(), r))(t))[0]
			if got := cert.NotAfter.Sub(now); got != test.want {
				t.Errorf("lifetime %s, want %s", got, test.want)
			}
			if want := map[bool]string{true: "worker-1"}[test.signer != client]; asked != want {
				t.Errorf("asked for node %q, want %q", asked, want)
			}
			if e := a.Explain(t.Context(), r); !e.NotAfter.Equal(cert.NotAfter) {
				t.Errorf("explained as ending %s, ends %s", e.NotAfter, cert.NotAfter)
			}
			if got, found := a.NodeLifetime(test.signer, "worker-1"); test.asks == 0 && test.most != time.Minute && got != test.want || !found {
				t.Errorf("NodeLifetime = %s, %t, want %s", got, found, test.want)
			}
		})
	}
}

package joinformat_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
)

// In each stage of a CA rotation, each live join command must find the cluster, whether it was printed in this stage or
// in an earlier one. This includes join commands that know only the old CA. kubejoin serves with the certificate that
// it issues itself.
func TestJoinCommandsOfAllStagesWorkDuringRotation(t *testing.T) {
	oldCA := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	newCA := must.Value(signer.GenerateCA("kubernetes-2", time.Now(), 240*time.Hour))(t)
	old, fresh := oldCA.Certificate(), newCA.Certificate()
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old}, []*x509.Certificate{fresh}, must.Value(oldCA.CrossSign(fresh))(t), time.Now()))(t)
	onlyOld, both, onlyNew := []*x509.Certificate{old}, []*x509.Certificate{old, fresh}, []*x509.Certificate{fresh}
	for _, test := range []struct {
		stage   rotation.Stage
		printed map[string][]*x509.Certificate // the CAs that join commands pin
		chain   int                            // certificates that kubejoin serves
	}{
		{rotation.Prepare, map[string][]*x509.Certificate{"before": onlyOld}, 1},
		{rotation.Trust, map[string][]*x509.Certificate{"before": onlyOld, "in trust": both}, 1},
		{rotation.Switch, map[string][]*x509.Certificate{"before": onlyOld, "in trust": both}, 2},
		{rotation.Finish, map[string][]*x509.Certificate{"in trust": both, "in finish": onlyNew}, 1},
	} {
		t.Run(string(test.stage), func(t *testing.T) {
			t.Parallel()
			r := r
			r.Stage = test.stage
			ca := oldCA
			if r.SignsNew() {
				ca = newCA
			}
			source := &servingcert.Source{
				CA: func() *signer.CA { return ca }, Names: []string{"127.0.0.1"},
				Cross: func() *x509.Certificate { return r.CrossCert() },
			}
			must.Value(source.Step(t.Context()))(t)
			if served := must.Value(source.GetCertificate(nil))(t); len(served.Certificate) != test.chain {
				t.Errorf("kubejoin serves %d certificates, want %d", len(served.Certificate), test.chain)
			}
			token := mustToken(t, "abcdef."+secret)
			kubeconfig := must.Value(clusterinfo.Kubeconfig(apiServer, r.Trusted()))(t)
			body := must.Value(clusterinfo.MarshalConfigMap(map[string]string{
				clusterinfo.KubeconfigKey: string(kubeconfig), clusterinfo.SignatureKey(token.ID()): must.Value(clusterinfo.Sign(kubeconfig, token))(t),
			}))(t)
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
			s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return &tls.Config{GetCertificate: source.GetCertificate}, nil // replaces the certificate of httptest
			}}
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			t.Cleanup(s.Close)
			for when, cas := range test.printed {
				j := joinformat.Join{Token: token, Server: apiServer, Endpoint: s.Listener.Addr().String(), CAs: cas}
				for _, format := range joinformat.Formats() {
					finds(t, j, when, format, s.URL)
				}
			}
		})
	}
}

// finds fails the test unless a machine finds the cluster with the join command in a format.
func finds(t *testing.T, j joinformat.Join, when, format, url string) {
	t.Helper()
	var err error
	switch format {
	case "text", "json", "yaml": // for kubeadm, which also trusts the CAs that have no pin
		_, err = clusterinfo.Discovery{Endpoint: j.Endpoint, Token: j.Token, Pins: clusterinfo.Pins(j.CAs), Retry: time.Millisecond}.Run(t.Context())
	case "kubeconfig": // a discovery file or a bootstrap kubeconfig, which has the CAs
		config := must.Value(clientcmd.Load(must.Value(j.Write(format))(t)))(t)
		pool := x509.NewCertPool()
		for _, c := range config.Clusters {
			pool.AppendCertsFromPEM(c.CertificateAuthorityData)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
		var answer *http.Response
		if answer, err = client.Get(url); err == nil {
			_ = answer.Body.Close()
		}
	case "script", "cloud-config", "ignition": // the documents have the script, see TestDocumentsContainScript
		if format != "script" {
			return
		}
		m := newMachine(t, j)
		if output, code := m.run(t, "--no-kubeadm"); code != 0 {
			t.Errorf("script printed %s: exit code %d:\n%s", when, code, output)
			return
		}
		// The kubelet trusts the CAs that the script pins, and the API server presents the same chain as kubejoin.
		if got := must.Value(clusterinfo.ParseCAs([]byte(m.read(t, "ca.crt"))))(t); !slices.ContainsFunc(j.CAs, got[0].Equal) {
			t.Errorf("script printed %s: the kubelet trusts %s", when, got[0].Subject)
		}
	default:
		t.Errorf("format %s is not tested", format)
	}
	if err != nil {
		t.Errorf("%s printed %s: %v", format, when, err)
	}
}

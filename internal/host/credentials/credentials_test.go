package credentials_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func newCA(t testing.TB) *signer.CA {
	t.Helper()
	made := certtest.Issue(t, &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
	}, nil)
	return must.Value(signer.NewCA([]*x509.Certificate{made.Leaf}, made.PrivateKey.(crypto.Signer)))(t)
}

// SignLocally must apply the signers' rules like a kubejoin server, and the key must belong to the certificate.
func TestLocalIssuesByTheRulesOfSigners(t *testing.T) {
	sign := credentials.SignLocally(must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), 24*time.Hour)))
	node := must.Value(credentials.Node("worker-1"))(t)
	made := must.Value(node.Issue(t.Context(), sign, 48*time.Hour))(t)
	if _, err := tls.X509KeyPair(made.Chain, made.Key); err != nil {
		t.Error(err)
	}
	if left := time.Until(made.Certificate.NotAfter); left > 24*time.Hour {
		t.Errorf("the certificate lasts %s, want at most the maximum of the signer", left)
	}
	for _, test := range []struct{ user, group, want string }{
		{"root", "system:masters", "system:masters"},
		{"jane", "system:mаsters", "looks like"}, // Cyrillic
	} {
		id := must.Value(credentials.User(test.user, []string{test.group}))(t)
		var refused *approval.Error
		if _, err := id.Issue(t.Context(), sign, 0); !errors.As(err, &refused) || refused.Verdict != approval.Deny || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s in %s: got %v, want a refusal with %q", test.user, test.group, err, test.want)
		}
	}
	if _, err := credentials.Node("a/b"); err == nil {
		t.Error("a/b: got no error, want one for a name that no node can have")
	}
}

// The key must not leave this process. Issue must refuse a certificate for another key.
func TestKeyDoesNotLeave(t *testing.T) {
	local := credentials.SignLocally(must.Get(signer.KubernetesSigners(signer.Fixed(newCA(t)), 0)))
	var first []byte
	id := must.Value(credentials.User("jane", nil))(t)
	sign := func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		if strings.Contains(string(r.CSR), "PRIVATE") {
			t.Error("the request has a private key")
		}
		if first != nil {
			return first, nil
		}
		var err error
		first, err = local(ctx, r)
		return first, err
	}
	must.Value(id.Issue(t.Context(), sign, 0))(t)
	if _, err := id.Issue(t.Context(), sign, 0); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("got %v, want an error about another key", err)
	}
}

// SignByCSRObject must approve its object. If no certificate is issued, it must delete the object, because the key is
// discarded.
func TestOverCSRApprovesAndCleansUp(t *testing.T) {
	for _, test := range []struct {
		what    string
		react   func(*testing.T, *fake.Clientset)
		want    string
		objects int
		notices int
	}{
		{"signed", func(t *testing.T, c *fake.Clientset) { signsApproved(t, newCA(t))(c) }, "", 1, 0},
		{"may not approve", func(_ *testing.T, c *fake.Clientset) {
			c.PrependReactor("update", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(certificates.Resource("certificatesigningrequests"), "x", nil)
			})
		}, "no certificate in time", 0, 1},
		{"failed", func(_ *testing.T, c *fake.Clientset) {
			c.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
				csr := a.(clienttesting.CreateAction).GetObject().(*certificates.CertificateSigningRequest)
				csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateFailed, Status: "True", Reason: "Because", Message: "it is so"}}
				return false, nil, nil
			})
		}, "failed: it is so (Because)", 0, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				test.react(t, client)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				notices := 0
				id, err := credentials.User("jane", []string{"dev"})
				if err != nil {
					t.Fatal(err)
				}
				_, err = id.Issue(ctx, credentials.SignByCSRObject(client, func(string) { notices++ }), time.Hour)
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				list := must.Value(client.Tracker().List(certificates.SchemeGroupVersion.WithResource("certificatesigningrequests"), certificates.SchemeGroupVersion.WithKind("CertificateSigningRequest"), ""))(t)
				if got := len(list.(*certificates.CertificateSigningRequestList).Items); got != test.objects || notices != test.notices {
					t.Errorf("got %d objects and %d notices, want %d and %d", got, notices, test.objects, test.notices)
				}
			})
		})
	}
}

// signsApproved makes a fake client sign approved requests, like a signer of the cluster.
func signsApproved(t *testing.T, ca *signer.CA) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		c.PrependReactor("update", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
			csr := a.(clienttesting.UpdateAction).GetObject().(*certificates.CertificateSigningRequest)
			if a.GetSubresource() != "approval" || csr.Status.Conditions[0].Type != certificates.CertificateApproved {
				t.Errorf("got an update of %q with %+v", a.GetSubresource(), csr.Status)
			}
			if *csr.Spec.ExpirationSeconds != 3600 || !slices.Contains(csr.Spec.Usages, certificates.UsageClientAuth) {
				t.Errorf("got %+v", csr.Spec)
			}
			chain, err := credentials.SignLocally(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 0)))(t.Context(), credentials.SigningRequest{Signer: csr.Spec.SignerName, CSR: csr.Spec.Request, Usages: csr.Spec.Usages})
			if err != nil {
				t.Error(err)
			}
			csr.Status.Certificate = chain
			return false, nil, nil
		})
	}
}

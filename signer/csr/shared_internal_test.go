package csr

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

func TestReportsSharedNodeName(t *testing.T) {
	const kubelet = certificates.KubeAPIServerClientKubeletSignerName
	ours, theirs := csrtest.NewKey(), csrtest.NewKey()
	node := func(change func(*x509.Certificate)) *x509.Certificate {
		c := nodeTemplate()
		if change != nil {
			change(c)
		}
		return c
	}
	request := func(name, user, signerName string, template *x509.Certificate, key crypto.Signer) *certificates.CertificateSigningRequest {
		der := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
		return &certificates.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       certificates.CertificateSigningRequestSpec{Username: user, SignerName: signerName, Request: []byte("x")},
			Status:     certificates.CertificateSigningRequestStatus{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})},
		}
	}
	first := request("csr-1", "system:bootstrap:abcdef", kubelet, node(nil), ours)
	for name, test := range map[string]struct {
		known []*certificates.CertificateSigningRequest
		now   *certificates.CertificateSigningRequest
		want  bool
	}{
		"another key": {[]*certificates.CertificateSigningRequest{first}, request("csr-2", "system:bootstrap:zzzzzz", kubelet, node(nil), theirs), true},
		"of another signer": {[]*certificates.CertificateSigningRequest{first},
			request("csr-2", "jane", certificates.KubeAPIServerClientSignerName, node(nil), theirs), true},
		"without extended usages": {[]*certificates.CertificateSigningRequest{first},
			request("csr-2", "jane", kubelet, node(func(c *x509.Certificate) { c.ExtKeyUsage = nil }), theirs), true},
		"another key of the same user": {[]*certificates.CertificateSigningRequest{first}, request("csr-2", "system:bootstrap:abcdef", kubelet, node(nil), theirs), true},
		"the same key":                 {[]*certificates.CertificateSigningRequest{first}, request("csr-2", "system:bootstrap:zzzzzz", kubelet, node(nil), ours), false},
		"the same request":             {nil, first, false},
		"a renewal":                    {[]*certificates.CertificateSigningRequest{first}, request("csr-2", "system:node:worker-1", kubelet, node(nil), theirs), false},
		"another name": {[]*certificates.CertificateSigningRequest{first},
			request("csr-2", "jane", kubelet, node(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:worker-2" }), theirs), false},
		"a serving certificate": {[]*certificates.CertificateSigningRequest{first},
			request("csr-2", "jane", kubelet, node(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), theirs), false},
		"no node's": {[]*certificates.CertificateSigningRequest{first},
			request("csr-2", "jane", kubelet, node(func(c *x509.Certificate) { c.Subject.Organization = nil }), theirs), false},
		"no Node's name": {[]*certificates.CertificateSigningRequest{
			request("csr-1", "jane", kubelet, node(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:$(id)" }), ours),
		}, request("csr-2", "jane", kubelet, node(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:$(id)" }), theirs), false},
		"expired": {[]*certificates.CertificateSigningRequest{
			request("csr-1", "jane", kubelet, node(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), ours),
		}, request("csr-2", "jane", kubelet, node(nil), theirs), false},
		"of a signer that is not configured": {[]*certificates.CertificateSigningRequest{request("csr-1", "jane", "example.com/other", node(nil), ours)},
			request("csr-2", "jane", kubelet, node(nil), theirs), false},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			var log bytes.Buffer
			h := &handler{
				Controller: Controller{Sign: true, Authority: &signer.Authority{Signers: signer.FixedSigners(map[string]signer.Signer{
					kubelet: {}, certificates.KubeAPIServerClientSignerName: {},
				})}},
				recorder: events, counts: newInstruments(nil), log: slog.New(slog.NewTextHandler(&log, nil)),
				byNode: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeIndex),
			}
			for _, o := range append(test.known, test.now) {
				object, err := strip(o.DeepCopy())
				if err == nil {
					err = h.byNode.Add(object)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			h.noticeShared(test.now)
			n := testutil.ToFloat64(h.counts.shared.WithLabelValues(test.now.Spec.SignerName))
			if !test.want {
				if len(events.Events) > 0 || n > 0 || log.Len() > 0 {
					t.Errorf("got %d Events, a count of %v and the log %q, want none", len(events.Events), n, log.String())
				}
				return
			}
			if len(events.Events) != 1 || n != 1 || !strings.Contains(log.String(), "node=worker-1") {
				t.Fatalf("got %d Events, a count of %v and the log %q, want one of each", len(events.Events), n, log.String())
			}
			e := <-events.Events
			for _, part := range []string{"Warning SharedNodeName", "node worker-1", `request "csr-1" of user "system:bootstrap:abcdef"`, "kubejoin explain worker-1"} {
				if !strings.Contains(e, part) {
					t.Errorf("got Event %q, want %q in it", e, part)
				}
			}
		})
	}
}

// Even if a token without limits got many certificates for one name, the controller compares only a few of them.
func TestComparesFewCertificatesOfOneName(t *testing.T) {
	key := csrtest.NewKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		NotAfter: time.Now().Add(time.Hour),
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	looked := 0
	h := &handler{
		Controller: Controller{Sign: true, Authority: &signer.Authority{Signers: func() map[string]signer.Signer {
			looked++
			return map[string]signer.Signer{"example.com/x": {}}
		}}},
		byNode: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeIndex), log: slog.New(slog.DiscardHandler),
	}
	o := &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{SignerName: "example.com/x"}}
	o.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for i := range 3 * maxShared {
		other := o.DeepCopy()
		other.Name, other.UID = fmt.Sprint("csr-", i), types.UID(fmt.Sprint(i))
		must.OK(t, h.byNode.Add(other))
	}
	if h.noticeShared(o); looked == 0 || looked > maxShared {
		t.Errorf("got %d compared certificates, want 1 to %d", looked, maxShared)
	}
}

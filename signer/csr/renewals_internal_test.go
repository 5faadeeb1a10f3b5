package csr

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	client  = certificates.KubeAPIServerClientKubeletSignerName
	serving = certificates.KubeletServingSignerName
)

var renewalStart = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)

// requestFor returns a CSR in PEM with a common name.
func requestFor(t *testing.T, commonName string) []byte {
	t.Helper()
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName, Organization: []string{"system:nodes"}}}, csrtest.NewKey()))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// nodeRequest returns a request of user for the certificate of node, created the given minutes after renewalStart,
// as the cache has it.
func nodeRequest(t *testing.T, minute int, signerName, user, node, state string) *certificates.CertificateSigningRequest {
	t.Helper()
	r := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, minute), CreationTimestamp: metav1.NewTime(renewalStart.Add(time.Duration(minute) * time.Minute))},
		Spec: certificates.CertificateSigningRequestSpec{
			SignerName: signerName, Username: user, Request: requestFor(t, tokens.NodeUserPrefix+node),
		},
	}
	set := func(kind certificates.RequestConditionType) {
		r.Status.Conditions = append(r.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	switch state {
	case "approved":
		set(certificates.CertificateApproved)
	case "issued":
		set(certificates.CertificateApproved)
		r.Status.Certificate = []byte("x")
	case "denied":
		set(certificates.CertificateDenied)
	case "failed":
		set(certificates.CertificateApproved)
		set(certificates.CertificateFailed)
	}
	must.Value(strip(r))(t)
	return r
}

func TestWaitingRenewalsFindsOldestPerNodeAndSigner(t *testing.T) {
	own := func(minute int, node, state string) *certificates.CertificateSigningRequest {
		return nodeRequest(t, minute, client, tokens.NodeUserPrefix+node, node, state)
	}
	type requests = []*certificates.CertificateSigningRequest
	for name, test := range map[string]struct {
		requests requests
		want     string // names of the requests, oldest first
	}{
		"none":                      {nil, ""},
		"one":                       {requests{own(1, "a", "")}, "a-1"},
		"approved, and not signed":  {requests{own(1, "a", "approved")}, "a-1"},
		"issued":                    {requests{own(1, "a", "issued")}, ""},
		"denied":                    {requests{own(1, "a", "denied")}, ""},
		"failed":                    {requests{own(1, "a", "failed")}, ""},
		"several requests":          {requests{own(3, "a", ""), own(1, "a", ""), own(2, "a", "denied")}, "a-1"},
		"a later one was issued":    {requests{own(1, "a", ""), own(2, "a", "issued")}, ""},
		"in the same second":        {requests{own(1, "a", ""), own(1, "a", "issued")}, ""},
		"an earlier one was issued": {requests{own(2, "a", ""), own(1, "a", "issued"), own(3, "a", "")}, "a-2"},
		"one of several was issued": {requests{own(1, "a", ""), own(2, "a", "issued"), own(3, "a", ""), own(4, "a", "")}, "a-3"},
		"two nodes, oldest first":   {requests{own(2, "a", ""), own(1, "b", "")}, "b-1 a-2"},
		"another node's was issued": {requests{own(1, "a", ""), own(2, "b", "issued")}, "a-1"},
		"both kinds":                {requests{own(1, "a", ""), nodeRequest(t, 2, serving, tokens.NodeUserPrefix+"a", "a", "")}, "a-1 a-2"},
		"the other kind was issued": {requests{own(1, "a", ""), nodeRequest(t, 2, serving, tokens.NodeUserPrefix+"a", "a", "issued")}, "a-1"},
		"a first certificate":       {requests{nodeRequest(t, 1, client, "system:bootstrap:qwertz", "a", "")}, ""},
		"another node's name":       {requests{nodeRequest(t, 1, client, tokens.NodeUserPrefix+"a", "b", "")}, ""},
		"its own after another's":   {requests{nodeRequest(t, 1, client, tokens.NodeUserPrefix+"a", "b", ""), own(2, "a", "")}, "a-2"},
		"another signer":            {requests{nodeRequest(t, 1, certificates.KubeAPIServerClientSignerName, tokens.NodeUserPrefix+"a", "a", "")}, ""},
		"not a request":             {requests{{Spec: certificates.CertificateSigningRequestSpec{SignerName: client, Username: tokens.NodeUserPrefix + "a", Request: []byte("x")}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, w := range waitingRenewals(test.requests, map[renewal]time.Time{}) {
				names = append(names, w.Request)
				if want := strings.Split(w.Request, "-")[0]; w.Node != want || w.Signer == "" || w.Since.Before(renewalStart) {
					t.Errorf("got %+v", w)
				}
			}
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestRenewalPatienceDependsOnLifetime(t *testing.T) {
	for lifetime, want := range map[time.Duration]time.Duration{
		3 * time.Minute: 30 * time.Second, 10 * time.Minute: 30 * time.Second, time.Hour: 3 * time.Minute, 10 * time.Hour: 30 * time.Minute, 20 * time.Hour: time.Hour, 365 * 24 * time.Hour: time.Hour,
	} {
		if got := RenewalPatience(lifetime); got != want {
			t.Errorf("lifetime %s: got %s, want %s", lifetime, got, want)
		}
	}
}

// Each check reports the late renewals, depending on the lifetime of the certificates. Renewals of deleted Nodes
// are not reported.
func TestReportsLateRenewalsAtEachCheck(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &certificates.CertificateSigningRequest{}, 0, nil)
	store := informer.GetStore()
	put := func(r *certificates.CertificateSigningRequest) {
		must.OK(t, store.Add(r))
	}
	var reported []string
	var nodesErr error
	r := Renewals{
		Informer: informer,
		Lifetime: func(_ context.Context, w WaitingRenewal) (time.Duration, bool) {
			if w.Node == "short" {
				return time.Hour, w.Signer == client // late after 3 min
			}
			return 10 * time.Hour, w.Signer == client // late after 30 min
		},
		Nodes: func(context.Context) (map[string]string, error) {
			return map[string]string{"a": "", "b": "", "short": ""}, nodesErr
		},
		Late: func(late []WaitingRenewal) {
			reported = nil
			for _, w := range late {
				reported = append(reported, w.Request)
			}
		},
	}
	got := map[renewal]time.Time{}
	look := func(minute int, oldest time.Duration, late string) {
		t.Helper()
		age := r.check(t.Context(), got, renewalStart.Add(time.Duration(minute)*time.Minute))
		if age != oldest || strings.Join(reported, " ") != late {
			t.Errorf("after %d minutes: got oldest %s and late %v, want %s and %q", minute, age, reported, oldest, late)
		}
	}
	look(0, 0, "")
	put(nodeRequest(t, 0, client, tokens.NodeUserPrefix+"a", "a", ""))
	put(nodeRequest(t, 0, serving, tokens.NodeUserPrefix+"b", "b", ""))            // for a signer that kubejoin does not serve
	put(nodeRequest(t, 0, client, tokens.NodeUserPrefix+"deleted", "deleted", "")) // from a Node that does not exist
	look(30, 30*time.Minute, "")
	soon := nodeRequest(t, 25, client, tokens.NodeUserPrefix+"short", "short", "")
	put(soon)
	look(28, 28*time.Minute, "")
	look(29, 29*time.Minute, "short-25")
	must.OK(t, store.Delete(soon))
	put(nodeRequest(t, 5, client, tokens.NodeUserPrefix+"b", "b", ""))
	look(31, 31*time.Minute, "a-0")
	look(40, 40*time.Minute, "a-0 b-5")
	nodesErr = errors.New("not read yet")
	look(40, 40*time.Minute, "a-0 deleted-0 b-5")
	nodesErr = nil

	// A later request is issued, and is deleted before the waiting one.
	later := nodeRequest(t, 41, client, tokens.NodeUserPrefix+"a", "a", "issued")
	put(later)
	look(42, 37*time.Minute, "b-5")
	must.OK(t, store.Delete(later))
	look(200, 195*time.Minute, "b-5")
	put(nodeRequest(t, 205, client, tokens.NodeUserPrefix+"a", "a", ""))
	look(240, 235*time.Minute, "b-5 a-205")
	// After both requests were deleted, the controller forgets them.
	look(41+49*60, time.Duration(41+49*60)*time.Minute, "a-0 b-5")
	if len(got) > 0 {
		t.Errorf("got %v still in memory, want nothing", got)
	}
}

package test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/outage"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// machine is a client as a joining machine is one, by a bootstrap token of kubeadm's group that
// is there, signs nothing and never expires.
func machine(t *testing.T, c *cluster.Cluster) kubernetes.Interface {
	t.Helper()
	if err := storeToken(t.Context(), c.Client(), "abc123", nil); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return asToken(t, c, "abc123")
}

// storeToken stores a token that signs nothing and never expires.
func storeToken(ctx context.Context, client kubernetes.Interface, id string, annotations map[string]string) error {
	_, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Annotations: annotations}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": tokens.Generate().RevealSecret(), "usage-bootstrap-authentication": "true",
			"auth-extra-groups": tokens.DefaultGroup,
		},
	}, metav1.CreateOptions{})
	return err
}

// asToken is a client with the identity that kube-apiserver gives to a bootstrap token.
func asToken(t *testing.T, c *cluster.Cluster, id string) kubernetes.Interface {
	t.Helper()
	config := c.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:bootstrap:" + id, Groups: []string{
		"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated",
	}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// request makes a CSR object of this name for a node, until the API server has it.
func request(ctx context.Context, client kubernetes.Interface, name, signerName, node string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	use := certificates.UsageClientAuth
	if signerName == certificates.KubeletServingSignerName {
		use = certificates.UsageServerAuth
		template.DNSNames = []string{node}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return err
	}
	object := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signerName, Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, use},
		},
	}
	for {
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, object, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) { // of a try whose answer was lost
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// decide approves or denies as a person does.
func decide(ctx context.Context, client kubernetes.Interface, name string, kind certificates.RequestConditionType) error {
	requests := client.CertificatesV1().CertificateSigningRequests()
	for {
		object, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object.Status.Conditions = append(object.Status.Conditions, certificates.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "by hand",
		})
		if _, err = requests.UpdateApproval(ctx, name, object, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// A ledger sees the versions of all CSR objects of a cluster, and checks what must never be.
type ledger struct {
	roots *x509.CertPool

	mu      sync.Mutex
	entries map[string]*entry // by name
	wrong   []string
}

// An entry is what became of one request.
type entry struct {
	user, node  string // who asks, and for which
	certificate []byte
	issued      time.Time // when that was seen
	conditions  map[certificates.RequestConditionType]int
	gone        bool
}

// keepLedger begins one, which ends with the test and tells then what was wrong.
func keepLedger(t *testing.T, c *cluster.Cluster) *ledger {
	t.Helper()
	l := &ledger{entries: map[string]*entry{}, roots: c.CAPool()}
	informer := cache.NewSharedIndexInformer(outage.Follow(c.Client().CertificatesV1().CertificateSigningRequests(), "", nil),
		&certificates.CertificateSigningRequest{}, 0, nil)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.see(o.(*certificates.CertificateSigningRequest)) },
		UpdateFunc: func(_, o any) { l.see(o.(*certificates.CertificateSigningRequest)) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			l.remove(o.(*certificates.CertificateSigningRequest).Name)
		},
	}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)
	t.Cleanup(func() { l.check(t) })
	return l
}

func (l *ledger) remove(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[name]; e != nil {
		e.gone = true
	}
}

func (l *ledger) see(o *certificates.CertificateSigningRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fail := func(format string, args ...any) {
		l.wrong = append(l.wrong, o.Name+" version "+o.ResourceVersion+": "+fmt.Sprintf(format, args...))
	}
	e := l.entries[o.Name]
	if e == nil {
		e = &entry{}
		l.entries[o.Name] = e
	}
	e.user = o.Spec.Username
	if block, _ := pem.Decode(o.Spec.Request); block != nil {
		if r, err := x509.ParseCertificateRequest(block.Bytes); err == nil {
			e.node = strings.TrimPrefix(r.Subject.CommonName, "system:node:")
		}
	}
	conditions := map[certificates.RequestConditionType]int{}
	for _, c := range o.Status.Conditions {
		if conditions[c.Type]++; conditions[c.Type] > 1 {
			fail("condition %s more than once", c.Type)
		}
	}
	e.conditions = conditions
	certificate := o.Status.Certificate
	switch {
	case e.certificate != nil:
		if !bytes.Equal(e.certificate, certificate) {
			fail("its certificate was replaced")
		}
	case len(certificate) > 0:
		e.certificate, e.issued = certificate, time.Now()
		if err := l.verify(o); err != nil {
			fail("%v", err)
		}
	}
	if len(certificate) > 0 && (conditions[certificates.CertificateApproved] == 0 || conditions[certificates.CertificateDenied]+conditions[certificates.CertificateFailed] > 0) {
		fail("issued with conditions %v", conditions)
	}
}

// verify holds the certificate against the request.
func (l *ledger) verify(o *certificates.CertificateSigningRequest) error {
	answer, rest := pem.Decode(o.Status.Certificate)
	asked, _ := pem.Decode(o.Spec.Request)
	if answer == nil || asked == nil || len(rest) > 0 {
		return fmt.Errorf("certificate or request is not one PEM block")
	}
	certificate, err := x509.ParseCertificate(answer.Bytes)
	if err != nil {
		return err
	}
	r, err := x509.ParseCertificateRequest(asked.Bytes)
	if err != nil {
		return err
	}
	if key, ok := r.PublicKey.(*ecdsa.PublicKey); !ok || !key.Equal(certificate.PublicKey) || certificate.Subject.String() != r.Subject.String() {
		return fmt.Errorf("certificate of %s is not for the key and subject asked for", certificate.Subject)
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: l.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// check fails the test for what must never have been.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.wrong {
		t.Error(w)
	}
	l.wrong = nil
}

// entry is what has become of a request so far; nil is that it was not seen.
func (l *ledger) entry(name string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[name]; e != nil {
		copied := *e
		return &copied
	}
	return nil
}

// issued waits until all requests of these names are issued, and returns when the last one was.
func (l *ledger) issued(t *testing.T, names []string) time.Time {
	t.Helper()
	var last time.Time
	wait(t, "certificates", func() error {
		last = time.Time{}
		missing := 0
		for _, name := range names {
			if e := l.entry(name); e == nil || e.certificate == nil {
				missing++
			} else if e.issued.After(last) {
				last = e.issued
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d are not issued", missing, len(names))
		}
		return nil
	})
	return last
}

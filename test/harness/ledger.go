package harness

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/cache"
)

// A Ledger watches all CSR objects of a cluster, and checks that each version keeps the rules for CSR objects.
type Ledger struct {
	roots *x509.CertPool

	mu      sync.Mutex
	entries map[string]*Entry // by name
	wrong   []string
}

// An Entry is the state of one CSR object.
type Entry struct {
	User, Node  string // requester, and the node name in the request
	Certificate []byte
	issued      time.Time // time when the ledger saw the certificate
	Conditions  map[certificates.RequestConditionType]int
	Gone        bool
}

// NewLedger watches until the test ends, and then fails the test for each violation.
func NewLedger(t *testing.T, c *cluster.Cluster) *Ledger {
	t.Helper()
	l := &Ledger{entries: map[string]*Entry{}, roots: c.CAPool()}
	informer := cache.NewSharedIndexInformer(outage.Follow(c.Client(), c.Client().CertificatesV1().CertificateSigningRequests(), "", nil),
		&certificates.CertificateSigningRequest{}, 0, nil)
	must.Value(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.see(o.(*certificates.CertificateSigningRequest)) },
		UpdateFunc: func(_, o any) { l.see(o.(*certificates.CertificateSigningRequest)) },
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}
			l.remove(o.(*certificates.CertificateSigningRequest).Name)
		},
	}))(t)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced)
	t.Cleanup(func() { l.Check(t) })
	return l
}

func (l *Ledger) remove(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[name]; e != nil {
		e.Gone = true
	}
}

func (l *Ledger) see(o *certificates.CertificateSigningRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fail := func(format string, args ...any) {
		l.wrong = append(l.wrong, o.Name+" version "+o.ResourceVersion+": "+fmt.Sprintf(format, args...))
	}
	e := l.entries[o.Name]
	if e == nil {
		e = &Entry{}
		l.entries[o.Name] = e
	}
	e.User = o.Spec.Username
	if block, _ := pem.Decode(o.Spec.Request); block != nil {
		if r, err := x509.ParseCertificateRequest(block.Bytes); err == nil {
			e.Node = strings.TrimPrefix(r.Subject.CommonName, "system:node:")
		}
	}
	conditions := map[certificates.RequestConditionType]int{}
	for _, c := range o.Status.Conditions {
		if conditions[c.Type]++; conditions[c.Type] > 1 {
			fail("condition %s more than once", c.Type)
		}
	}
	e.Conditions = conditions
	certificate := o.Status.Certificate
	switch {
	case e.Certificate != nil:
		if !bytes.Equal(e.Certificate, certificate) {
			fail("its certificate was replaced")
		}
	case len(certificate) > 0:
		e.Certificate, e.issued = certificate, time.Now()
		if err := l.verify(o); err != nil {
			fail("%v", err)
		}
	}
	if len(certificate) > 0 && (conditions[certificates.CertificateApproved] == 0 || conditions[certificates.CertificateDenied]+conditions[certificates.CertificateFailed] > 0) {
		fail("issued with conditions %v", conditions)
	}
}

// verify compares the certificate with the request.
func (l *Ledger) verify(o *certificates.CertificateSigningRequest) error {
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
		return fmt.Errorf("certificate of %s does not have the key and subject of the request", certificate.Subject)
	}
	_, err = certificate.Verify(x509.VerifyOptions{Roots: l.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// Check fails the test for each violation since the last call.
func (l *Ledger) Check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.wrong {
		t.Error(w)
	}
	l.wrong = nil
}

// Entry returns the last state of a CSR object, or nil if the ledger has not seen the object.
func (l *Ledger) Entry(name string) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[name]; e != nil {
		copied := *e
		return &copied
	}
	return nil
}

// All returns the last state of each CSR object, by name.
func (l *Ledger) All() map[string]Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]Entry, len(l.entries))
	for name, e := range l.entries {
		all[name] = *e
	}
	return all
}

// WaitIssued waits until all CSR objects with these names have certificates, and returns the time of the last certificate.
func (l *Ledger) WaitIssued(t *testing.T, names []string) time.Time {
	t.Helper()
	var last time.Time
	Wait(t, "certificates", func() error {
		last = time.Time{}
		missing := 0
		for _, name := range names {
			if e := l.Entry(name); e == nil || e.Certificate == nil {
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

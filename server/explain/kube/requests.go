package kube

import (
	"bytes"
	"context"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// object is a CertificateSigningRequest.
type object = *certificates.CertificateSigningRequest

// requests reads the certificate requests for the name. The API server cannot filter by subject, so requests lists
// all requests of the two signers, page by page.
func (g *gathering) requests(ctx context.Context) error {
	var found []object
	for _, name := range []string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName} {
		options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.signerName", name).String()}
		err := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return g.Client.CertificatesV1().CertificateSigningRequests().List(ctx, options)
		}).EachListItem(ctx, options, func(item runtime.Object) error {
			if o, ok := item.(object); ok && g.isFor(o) {
				found = append(found, o)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	g.set(func(f *explain.Facts) {
		for _, o := range found {
			f.Requests = append(f.Requests, request(o))
		}
		g.latest, g.served = g.newest(found), found
	})
	return nil
}

// isFor reports whether a request is for the node. It is false for a request that cannot be parsed.
func (g *gathering) isFor(o object) bool {
	parsed, err := pkcs10.Parse(o.Spec.Request)
	return err == nil && parsed.Subject.CommonName == tokens.NodeUserPrefix+g.facts.Node
}

// newest returns the client certificate requests that can matter to the explanation: the newest request, and the
// newest request that the node itself did not send.
func (g *gathering) newest(all []object) []object {
	var newest, other object
	later := func(a, b object) bool {
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.After(b.CreationTimestamp.Time)
		}
		return a.Name > b.Name // the same order as in package explain
	}
	for _, o := range all {
		if o.Spec.SignerName != certificates.KubeAPIServerClientKubeletSignerName {
			continue
		}
		if newest == nil || later(o, newest) {
			newest = o
		}
		if o.Spec.Username != tokens.NodeUserPrefix+g.facts.Node && (other == nil || later(o, other)) {
			other = o
		}
	}
	switch {
	case newest == nil:
		return nil
	case other == nil || other == newest:
		return []object{newest}
	}
	return []object{newest, other}
}

func request(o object) api.RequestEvidence {
	r := api.RequestEvidence{
		Name: o.Name, UID: string(o.UID), Signer: o.Spec.SignerName,
		User: o.Spec.Username, Groups: o.Spec.Groups, Created: o.CreationTimestamp.Time,
	}
	for _, c := range o.Status.Conditions {
		if c.Status != "" && c.Status != corev1.ConditionTrue { // a condition that is False does not apply
			continue
		}
		condition := &api.RequestCondition{Reason: c.Reason, Message: c.Message, At: c.LastUpdateTime.Time}
		if condition.At.IsZero() {
			condition.At = c.LastTransitionTime.Time
		}
		switch c.Type {
		case certificates.CertificateApproved:
			r.Approved = condition
		case certificates.CertificateDenied:
			r.Denied = condition
		case certificates.CertificateFailed:
			r.Failed = condition
		}
	}
	if len(o.Status.Certificate) > 0 {
		r.Certificate = certificate(o, r.Approved)
	}
	return r
}

// certificate returns the issued certificate, with its writer and time from managedFields. Without an entry there,
// the time is the time of approval.
func certificate(o object, approved *api.RequestCondition) *api.CertificateEvidence {
	c := &api.CertificateEvidence{Chain: pemfile.Presented(o.Status.Certificate), At: o.CreationTimestamp.Time}
	if approved != nil {
		c.At = approved.At
	}
	for _, entry := range o.ManagedFields {
		if entry.Subresource == "status" && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:certificate"`)) {
			c.Writer = entry.Manager
			if entry.Time != nil {
				c.At = entry.Time.Time
			}
		}
	}
	return c
}

// permission checks, like the approver, whether RBAC allows automatic approval for the requesters of the newest
// pending requests.
func (g *gathering) permission(ctx context.Context) error {
	for _, o := range g.latest {
		if len(o.Status.Conditions) > 0 {
			continue
		}
		may, err := allowed(ctx, &kubefacts.Facts{Client: g.Client}, g.facts.Node, o)
		if err != nil {
			return err
		}
		g.set(func(f *explain.Facts) {
			for i := range f.Requests {
				if f.Requests[i].UID == string(o.UID) {
					f.Requests[i].Permitted = &may
				}
			}
		})
	}
	return nil
}

// allowed reports whether RBAC allows the automatic approval of a request for a node name.
func allowed(ctx context.Context, facts *kubefacts.Facts, node string, o object) (bool, error) {
	r, _ := csr.Request(o) // Request sets the requester even if the request is malformed
	subresource := "nodeclient"
	if o.Spec.Username == tokens.NodeUserPrefix+node {
		subresource = "selfnodeclient"
	}
	return facts.Allowed(ctx, r, approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource})
}

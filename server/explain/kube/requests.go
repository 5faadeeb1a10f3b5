package kube

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

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

// A listedRequest is a certificate request of a node.
type listedRequest struct {
	node     string
	object   object // without what explanations do not need: requesters choose its size
	evidence api.RequestEvidence
}

func decodeRequest(o object) (listedRequest, error) {
	parsed, err := pkcs10.Parse(o.Spec.Request)
	if err != nil {
		return listedRequest{}, err
	}
	node, found := strings.CutPrefix(parsed.Subject.CommonName, tokens.NodeUserPrefix)
	if !found || tokens.CheckNodeName(node) != nil {
		return listedRequest{}, fmt.Errorf("request %s is not of a node", o.Name)
	}
	r := listedRequest{node: node, object: o, evidence: request(o)}
	if r.evidence.Certificate != nil {
		r.evidence.Certificate.Chain = nil // few explanations need it, and it is large
	}
	o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, CreationTimestamp: o.CreationTimestamp, ResourceVersion: o.ResourceVersion}
	o.Spec.Request, o.Spec.Usages = nil, nil
	return r, nil
}

// requests reads the certificate requests for the name. The API server cannot filter by subject, so requests lists
// all requests of the two signers, page by page.
func (g *gathering) requests(ctx context.Context) error {
	var found []listedRequest
	for _, name := range []string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName} {
		options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.signerName", name).String()}
		err := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return g.Client.CertificatesV1().CertificateSigningRequests().List(ctx, options)
		}).EachListItem(ctx, options, func(item runtime.Object) error {
			if o, ok := item.(object); ok {
				if r, err := decodeRequest(o); err == nil && r.node == g.facts.Node {
					found = append(found, r)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(found, func(a, b listedRequest) int { // the newest first
		return cmp.Or(b.evidence.Created.Compare(a.evidence.Created), cmp.Compare(b.evidence.Name, a.evidence.Name))
	})
	g.permissions(ctx, found)
	g.listed = found
	return nil
}

// requested sets the requests, which other facts depend on.
func (g *gathering) requested() {
	f := &g.facts
	for _, r := range g.listed {
		if c := r.evidence.Certificate; c != nil && (f.Object == nil || f.Object.Ready != "True") {
			whole := *c
			whole.Chain = pemfile.Presented(r.object.Status.Certificate)
			r.evidence.Certificate = &whole
		}
		f.Requests = append(f.Requests, r.evidence)
	}
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

// maxPermissions is the maximum number of users whose permission is checked at a time.
const maxPermissions = 20

// permissions sets Permitted of the requests that nobody has decided: whether RBAC allows their automatic approval. The approver
// checks the same permission.
func (g *gathering) permissions(ctx context.Context, all []listedRequest) {
	facts, checked := &kubefacts.Facts{Client: g.Client}, map[string]bool{}
	for i, r := range all {
		if len(r.object.Status.Conditions) > 0 || r.evidence.Signer != certificates.KubeAPIServerClientKubeletSignerName {
			continue
		}
		subresource := explain.Subresource(r.node, r.evidence.User)
		user := strings.Join(append([]string{subresource, r.evidence.User}, r.evidence.Groups...), "\n")
		_, found := checked[user]
		if !found && len(checked) == maxPermissions {
			g.unread(explain.FactPermission, fmt.Errorf("only %d users are checked at a time", maxPermissions))
			continue
		}
		if !found {
			requester, _ := csr.Request(r.object) // Request sets the requester even if the request is malformed
			may, err := facts.Allowed(ctx, requester, approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource})
			if err != nil {
				g.unread(explain.FactPermission, err)
				return
			}
			checked[user] = may
		}
		all[i].evidence.Permitted = new(checked[user])
	}
}

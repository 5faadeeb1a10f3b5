package kube_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// If the leader's Lease does not say that it may patch Nodes, requests must fail: the Nodes would wait forever,
// or lack the labels of their token.
func TestLeaderSaysWhetherItPatchesNodes(t *testing.T) {
	lease := func(annotations map[string]string) runtime.Object {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "lead", Annotations: annotations}}
	}
	forbidden := apierrors.NewForbidden(coordinationv1.Resource("leases"), "lead", nil)
	for name, test := range map[string]struct {
		lease   []runtime.Object
		err     error
		want    string // part of the error
		invalid bool
	}{
		"it may":     {lease: []runtime.Object{lease(map[string]string{leader.NodePropertiesAnnotation: "true"})}},
		"it may not": {lease: []runtime.Object{lease(nil)}, want: "nodeTaints: kubejoin may not patch Nodes; apply deploy/node-properties.yaml", invalid: true},
		"no Lease":   {want: "nodeTaints: kubejoin may not patch Nodes", invalid: true},
		"unreadable": {err: forbidden, want: "cannot read the Lease system/lead, which says whether kubejoin may patch Nodes"},
	} {
		client := fake.NewClientset(test.lease...)
		if test.err != nil {
			client.PrependReactor("get", "leases", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
		}
		err := kube.NodeProperties(client, "system", "lead")(t.Context(), "nodeTaints")
		refusal := (*tokens.Refusal)(nil)
		switch {
		case test.want == "" && err == nil:
		case test.want == "" || err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, new(api.InvalidFields)) != test.invalid:
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		case !test.invalid && (!errors.As(err, &refusal) || !refusal.Retry):
			t.Errorf("%s: got %#v, want an error to retry", name, err)
		}
	}
}

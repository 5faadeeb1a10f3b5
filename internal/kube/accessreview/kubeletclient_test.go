package accessreview_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	authorization "k8s.io/api/authorization/v1"
)

// The command in the warning must grant the right that the review checks: create on nodes/proxy for the user, without groups.
func TestKubeletClientWarnsOfMissingRights(t *testing.T) {
	const command = "run: kubectl create clusterrolebinding kubeadm:apiserver-kubelet-client --clusterrole=system:kubelet-api-admin --user=kube-apiserver-kubelet-client"
	for _, test := range []struct {
		name, status string // status of the review
		code         int
		want         []string // parts of the warning
	}{
		{"allowed", `{"allowed":true}`, 201, nil},
		{"not allowed", `{"allowed":false}`, 201, []string{"may not use kubelets", "first " + command}},
		{"allowed and denied", `{"allowed":true,"denied":true}`, 201, []string{"may not use kubelets"}},
		{"an authorizer fails", `{"allowed":false,"evaluationError":"down\n"}`, 201, []string{"could not check", "(down )", command}},
		{"no right to create reviews", `{}`, 403, []string{"could not check", command}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := accessreview.KubeletClient(t.Context(), apitest.Client(t, func(w http.ResponseWriter, r *http.Request) {
				var review authorization.SubjectAccessReview
				if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
					t.Error(err)
				}
				s := review.Spec
				if a := s.ResourceAttributes; s.User != "kube-apiserver-kubelet-client" || strings.Join(s.Groups, ",") != "system:authenticated" ||
					a == nil || a.Verb+" "+a.Group+a.Resource+"/"+a.Subresource != "create nodes/proxy" {
					t.Errorf("got a review of %+v", s)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(test.code)
				_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":`+test.status+`}`)
			}))
			if (got == "") != (test.want == nil) || strings.Contains(got, "\n") {
				t.Errorf("got %q, want %q", got, test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			}
		})
	}
}

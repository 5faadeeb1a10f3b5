package server

import (
	"errors"
	"net/http"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const discoveryPath = "/api/v1/namespaces/" + clusterinfo.Namespace + "/configmaps/" + clusterinfo.Name

// discovery answers what kubeadm's token-based discovery reads from an API server, to anybody:
// with it joining nodes need no anonymous access to the real one.
func (h *handler) discovery(r *http.Request) (answer, error) {
	body, err := h.ClusterInfo.JSON(r.Context())
	if err != nil {
		return answer{}, noClusterInfo(err)
	}
	return h.discovered.answer(r, body, "application/json"), nil
}

// noClusterInfo is the answer where cluster-info cannot be told.
func noClusterInfo(err error) *problem {
	switch {
	case errors.Is(err, clusterinfo.ErrNotFound):
		return newProblem(http.StatusNotFound, "no-cluster-info", "there is no cluster-info yet")
	case errors.Is(err, clusterinfo.ErrKubeconfig), errors.Is(err, clusterinfo.ErrNoKubeconfig):
		return malformed(err)
	}
	p := newProblem(http.StatusServiceUnavailable, "cluster-info-unavailable", "cluster-info cannot be read now; try again")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// malformed is the answer where cluster-info has been edited to something that must not be passed
// on, such as a credential, or leads nowhere.
func malformed(err error) *problem {
	return newProblem(http.StatusInternalServerError, "malformed-cluster-info", "the kubeconfig in cluster-info is of no use to a joining node: %v", err)
}

// kubernetesPath reports whether who asks for a path reads a Status in place of a problem.
func kubernetesPath(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}

// kubernetes is the problem as clients of the Kubernetes API read it.
func (p problem) kubernetes() metav1.Status {
	reasons := map[int]metav1.StatusReason{
		http.StatusBadRequest:            metav1.StatusReasonBadRequest,
		http.StatusUnauthorized:          metav1.StatusReasonUnauthorized,
		http.StatusForbidden:             metav1.StatusReasonForbidden,
		http.StatusNotFound:              metav1.StatusReasonNotFound,
		http.StatusMethodNotAllowed:      metav1.StatusReasonMethodNotAllowed,
		http.StatusRequestEntityTooLarge: metav1.StatusReasonRequestEntityTooLarge,
		http.StatusUnsupportedMediaType:  metav1.StatusReasonUnsupportedMediaType,
		http.StatusTooManyRequests:       metav1.StatusReasonTooManyRequests,
		http.StatusServiceUnavailable:    metav1.StatusReasonServiceUnavailable,
		http.StatusInternalServerError:   metav1.StatusReasonInternalError,
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Message:  p.Detail,
		Reason:   reasons[p.Status],
		Details: &metav1.StatusDetails{
			UID:               "",
			RetryAfterSeconds: int32(p.retryAfter.Seconds()),
		},
		Code: int32(p.Status),
	}
}

package server

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const discoveryPath = "/api/v1/namespaces/" + clusterinfo.Namespace + "/configmaps/" + clusterinfo.Name

// discovery returns cluster-info for kubeadm's token-based discovery, without authentication. With it,
// joining nodes need no anonymous access to kube-apiserver.
func (h *handler) discovery(r *call) (response, error) {
	body, err := h.ClusterInfo.JSON(r.Context())
	if err != nil {
		return response{}, noClusterInfo(err)
	}
	return h.discovered.answer(r, body, "application/json"), nil
}

// noClusterInfo returns the problem of an error of ClusterInfo.
func noClusterInfo(err error) error {
	switch {
	case errors.Is(err, clusterinfo.ErrNotFound):
		return newProblem(http.StatusNotFound, "no-cluster-info", "there is no cluster-info yet")
	case errors.Is(err, clusterinfo.ErrKubeconfig), errors.Is(err, clusterinfo.ErrNoKubeconfig):
		return malformed(err)
	}
	p := newProblem(http.StatusServiceUnavailable, "cluster-info-unavailable", "cluster-info cannot be read now; retry")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// malformed returns the problem of a kubeconfig that must not be served or that nodes cannot use.
func malformed(err error) error { return notMinted(mint.MalformedError(err)) }

// kubernetesPath reports whether clients of a path expect a Kubernetes Status in place of a problem.
func kubernetesPath(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}

// kubernetes returns the problem as a Kubernetes Status.
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

// publicKubeconfig is a kubeconfig in the forms that discovery serves without authentication.
type publicKubeconfig struct {
	kubeconfig []byte
	err        error // why it must not be served
	pem, json  []byte
}

// publish reads and validates the kubeconfig of cluster-info. It caches the last result, valid or not:
// anyone can request it, and it rarely changes.
func (h *handler) publish(r *call) (*publicKubeconfig, error) {
	kubeconfig, err := h.ClusterInfo.Config(r.Context())
	if err != nil {
		return nil, noClusterInfo(err)
	}
	if last := h.published.Load(); last != nil && bytes.Equal(last.kubeconfig, kubeconfig) {
		return last, last.err
	}
	p := &publicKubeconfig{kubeconfig: kubeconfig}
	if _, cas, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil {
		p.err = malformed(err)
	} else if p.pem, p.json, err = bundle(cas); err != nil {
		p.err = err
	}
	h.published.Store(p)
	return p, p.err
}

// discoveryFile returns the kubeconfig for 'kubeadm join --discovery-file https://…'. kubeadm sends no
// credential and trusts the kubeconfig because it trusts the server's certificate.
func (h *handler) discoveryFile(r *call) (response, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return response{}, err
	}
	p, err := h.publish(r)
	if err != nil {
		return response{}, err
	}
	return h.kubeconfig.answer(r, p.kubeconfig, "application/yaml"), nil // RFC 9512
}

// bundle returns CA certificates in PEM and as JSON.
func bundle(cas []*x509.Certificate) (inPEM, inJSON []byte, err error) {
	list := api.CABundle{APIVersion: api.Version, Kind: api.KindCABundle, Items: make([]api.CA, len(cas))}
	for i, ca := range cas {
		one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
		inPEM = append(inPEM, one...)
		list.Items[i] = api.CA{
			Subject: ca.Subject.String(), NotBefore: ca.NotBefore.UTC(), NotAfter: ca.NotAfter.UTC(),
			Pin: clusterinfo.Pin(ca), Certificate: string(one),
		}
	}
	inJSON, err = json.Marshal(list)
	return inPEM, append(inJSON, '\n'), err
}

// Forms of the CA bundle.
const (
	formatPEM  = "pem"
	formatJSON = "json"
)

// ca returns the CAs of cluster-info, without authentication. The format is PEM, or JSON with CA pins if
// the query requests it. Without a format in the query, the Accept header decides.
func (h *handler) ca(r *call) (response, error) {
	var req api.GetCA
	if err := readQuery(r, &req); err != nil {
		return response{}, err
	}
	format := req.Format
	switch format {
	case formatPEM, formatJSON:
	case "":
		if format = formatPEM; accepts(r.Header.Values("Accept"), "application/json") {
			format = formatJSON
		}
	default:
		return response{}, badField("format", "%.40q given, want %s or %s", format, formatPEM, formatJSON)
	}
	p, err := h.publish(r)
	if err != nil {
		return response{}, err
	}
	if format == formatJSON {
		return h.caSet.answer(r, p.json, "application/json", "Accept"), nil
	}
	return h.caPEM.answer(r, p.pem, "application/x-pem-file", "Accept"), nil
}

// accepts reports whether an Accept header names the media type want. A wildcard does not count: curl
// sends */* by default.
func accepts(accept []string, want string) bool {
	for _, header := range accept {
		for item := range strings.SplitSeq(header, ",") {
			media, parameters, _ := strings.Cut(item, ";")
			if strings.EqualFold(strings.TrimSpace(media), want) {
				return quality(parameters) > 0
			}
		}
	}
	return false
}

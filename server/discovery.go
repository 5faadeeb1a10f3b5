package server

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
)

const discoveryPath = "/api/v1/namespaces/" + clusterinfo.Namespace + "/configmaps/" + clusterinfo.Name

// discovery returns cluster-info for kubeadm's token-based discovery, without authentication. So joining nodes
// need no anonymous access to kube-apiserver.
func (h *handler) discovery(r *call) (web.Response, error) {
	body, err := h.ClusterInfo.JSON(r.Context())
	if err != nil {
		return web.Response{}, noClusterInfo(err)
	}
	return h.documents.configMap.Respond(r.Request, body, "application/json"), nil
}

// noClusterInfo returns the problem of an error of ClusterInfo.
func noClusterInfo(err error) error {
	switch {
	case errors.Is(err, clusterinfo.ErrNotFound):
		return web.NewProblem("no-cluster-info", "there is no cluster-info yet")
	case errors.Is(err, clusterinfo.ErrKubeconfig), errors.Is(err, clusterinfo.ErrNoKubeconfig):
		return malformed(err)
	}
	return web.NewProblem("cluster-info-unavailable", "cluster-info cannot be read now; retry").Unavailable(err)
}

// malformed returns the error for a kubeconfig that must not be served or that nodes cannot use.
func malformed(err error) error { return mint.MalformedError(err) }

// kubernetesPath reports whether clients of a path expect a Kubernetes Status in place of a problem.
func kubernetesPath(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
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
	if last := h.documents.published.Load(); last != nil && bytes.Equal(last.kubeconfig, kubeconfig) {
		return last, last.err
	}
	p := &publicKubeconfig{kubeconfig: kubeconfig}
	if _, cas, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil {
		p.err = malformed(err)
	} else {
		p.pem, p.json, p.err = bundle(cas)
	}
	h.documents.published.Store(p)
	return p, p.err
}

// discoveryFile returns the kubeconfig for 'kubeadm join --discovery-file https://…'. kubeadm sends no
// credential and trusts the kubeconfig because it trusts the server's certificate.
func (h *handler) discoveryFile(r *call, _ struct{}) (web.Response, error) {
	p, err := h.publish(r)
	if err != nil {
		return web.Response{}, err
	}
	return h.documents.kubeconfig.Respond(r.Request, p.kubeconfig, "application/yaml"), nil // RFC 9512
}

// bundle returns CA certificates in PEM and as JSON.
func bundle(cas []*x509.Certificate) (inPEM, inJSON []byte, err error) {
	list := api.CABundle{APIVersion: api.GroupVersion, Kind: api.KindCABundle, Items: operations.CAs(cas)}
	for _, ca := range list.Items {
		inPEM = append(inPEM, ca.Certificate...)
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
func (h *handler) ca(r *call, req api.GetCA) (web.Response, error) {
	format := req.Format
	switch format {
	case formatPEM, formatJSON:
	case "":
		if format = formatPEM; web.Accepts(r.Header.Values("Accept"), "application/json") {
			format = formatJSON
		}
	default:
		return web.Response{}, web.BadField("format", "%.40q given, want %s or %s", format, formatPEM, formatJSON)
	}
	p, err := h.publish(r)
	if err != nil {
		return web.Response{}, err
	}
	if format == formatJSON {
		return h.documents.caSet.Respond(r.Request, p.json, "application/json", "Accept"), nil
	}
	return h.documents.caPEM.Respond(r.Request, p.pem, "application/x-pem-file", "Accept"), nil
}

package server

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
)

// A published is what a kubeconfig tells anybody who asks.
type published struct {
	kubeconfig []byte
	err        error // why it tells nothing
	pem, json  []byte
}

// publish reads the kubeconfig of cluster-info, and remembers the last one, good or not: it is
// asked for by anybody, and hardly ever changes.
func (h *handler) publish(r *http.Request) (*published, error) {
	kubeconfig, err := h.ClusterInfo.Config(r.Context())
	if err != nil {
		return nil, noClusterInfo(err)
	}
	if last := h.published.Load(); last != nil && bytes.Equal(last.kubeconfig, kubeconfig) {
		return last, last.err
	}
	p := &published{kubeconfig: kubeconfig}
	if _, cas, err := clusterinfo.ParseKubeconfig(kubeconfig); err != nil {
		p.err = malformed(err)
	} else if p.pem, p.json, err = bundle(cas); err != nil {
		p.err = err
	}
	h.published.Store(p)
	return p, p.err
}

// discoveryFile answers the kubeconfig for 'kubeadm join --discovery-file https://…', which reads
// it with no credential and trusts it as it trusts the certificate that it is served with.
func (h *handler) discoveryFile(r *http.Request) (answer, error) {
	if err := readQuery(r, &struct{}{}); err != nil {
		return answer{}, err
	}
	p, err := h.publish(r)
	if err != nil {
		return answer{}, err
	}
	return h.kubeconfig.answer(r, p.kubeconfig, "application/yaml"), nil // RFC 9512
}

// bundle is CA certificates in PEM, and as JSON.
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

package csr

import (
	"bytes"
	"crypto/x509"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/cache"
)

// byNode is the index of issued requests by the node name in their certificate.
const byNode = "certificate-of-node"

// maxShared limits how many certificates of one node name are compared with a new one. A token without
// limits can obtain any number of them.
const maxShared = 100

var nodeIndex = cache.Indexers{byNode: func(object any) ([]string, error) {
	csr, ok := object.(*certificates.CertificateSigningRequest)
	if !ok {
		return nil, nil
	}
	if node := nodeOf(leaf(csr)); node != "" {
		return []string{node}, nil
	}
	return nil, nil
}}

// leaf returns the issued certificate; nil if it cannot be parsed.
func leaf(csr *certificates.CertificateSigningRequest) *x509.Certificate {
	chain := pemfile.Presented(csr.Status.Certificate)
	if len(chain) == 0 {
		return nil
	}
	return chain[0]
}

// nodeOf returns the node that an API server authenticates by the certificate; empty if there is none.
func nodeOf(cert *x509.Certificate) string {
	if cert == nil || !slices.Contains(cert.Subject.Organization, tokens.NodesGroup) {
		return ""
	}
	node, found := strings.CutPrefix(cert.Subject.CommonName, tokens.NodeUserPrefix)
	client := len(cert.ExtKeyUsage) == 0 || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny)
	if !found || !client || tokens.CheckNodeName(node) != nil {
		return ""
	}
	return node
}

// noticeShared reports a first certificate for a node name while another certificate for that name is valid:
// two machines may use the name. A token without limits creates no claim, so kubejoin has no other sign that
// two machines share a name.
func (h *handler) noticeShared(csr *certificates.CertificateSigningRequest) {
	cert := leaf(csr)
	node := nodeOf(cert)
	if node == "" || csr.Spec.Username == tokens.NodeUserPrefix+node { // a renewal
		return
	}
	others, err := h.byNode.ByIndex(byNode, node)
	if err != nil {
		h.log.Error("cannot look up certificates of a node", "error", err) // the index is missing
		return
	}
	for _, object := range others[:min(len(others), maxShared)] {
		other := object.(*certificates.CertificateSigningRequest) // nodeIndex contains no other type
		if !h.signs(other) {
			continue
		}
		known := leaf(other)
		if known == nil || !time.Now().Before(known.NotAfter) || bytes.Equal(known.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) {
			continue
		}
		otherName, otherUser := safetext.Text(other.Name, safetext.MaxName), safetext.Text(other.Spec.Username, safetext.MaxName)
		h.counts.shared.WithLabelValues(csr.Spec.SignerName).Inc()
		h.event(csr, codes.SharedNodeName,
			"Another certificate for node %s, with another key, is valid until %s (request %q of user %q). Two machines use this name, or one machine made a second request; see: kubejoin explain %s",
			node, known.NotAfter.UTC().Format(time.RFC3339), otherName, otherUser, node)
		h.logOf(csr).Warn("node name has two valid certificates with different keys", "node", node, "other_csr", otherName, "other_user", otherUser)
		return
	}
}

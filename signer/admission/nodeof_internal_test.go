package admission

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

func nodeRequest(cn string, organizations ...string) approval.Request {
	return approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: "system:node:w", Groups: []string{"system:nodes"},
		Usages: []certificates.KeyUsage{certificates.UsageClientAuth},
		CSR:    &x509.CertificateRequest{Raw: []byte(cn), Subject: pkix.Name{CommonName: cn, Organization: organizations}},
	}
}

func TestNodeOfMatchesOnlyNodeClientCertificates(t *testing.T) {
	serving := nodeRequest("system:node:w", "system:nodes")
	serving.SignerName = certificates.KubeletServingSignerName
	server := nodeRequest("system:node:w", "system:nodes")
	server.Usages = []certificates.KeyUsage{certificates.UsageServerAuth}
	for _, test := range []struct {
		name string
		r    approval.Request
		node string
		ok   bool
	}{
		{"client certificate of a node", nodeRequest("system:node:w", "system:nodes"), "w", true},
		{"with another organization", nodeRequest("system:node:w", "a", "system:nodes"), "w", true},
		{"no organization", nodeRequest("system:node:w"), "w", false},
		{"another organization", nodeRequest("system:node:w", "a"), "w", false},
		{"no node's name", nodeRequest("w", "system:nodes"), "w", false},
		{"of the signer of serving certificates", serving, "w", false},
		{"not for clients", server, "w", false},
	} {
		if node, ok := nodeOf(test.r); node != test.node || ok != test.ok {
			t.Errorf("%s: got %q, %v, want %q, %v", test.name, node, ok, test.node, test.ok)
		}
	}
}

func TestIsOwnMatchesOnlyRequestsOfTheNode(t *testing.T) {
	of := func(user, cn string, groups ...string) approval.Request {
		r := nodeRequest(cn, "system:nodes")
		r.User, r.Groups = user, groups
		return r
	}
	for _, test := range []struct {
		name string
		r    approval.Request
		want bool
	}{
		{"its own", of("system:node:w", "system:node:w", "system:nodes"), true},
		{"another node's", of("system:node:w", "system:node:v", "system:nodes"), false},
		{"no group of nodes", of("system:node:w", "system:node:w"), false},
		{"no node", of("w", "w", "system:nodes"), false},
	} {
		if got := isOwn(test.r); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

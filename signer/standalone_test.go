package signer_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func TestStandaloneAllowsFirstCertificateAndRenewal(t *testing.T) {
	facts := signer.Standalone{}
	first := approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: "nodeclient"}
	renewal := approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: "selfnodeclient"}
	sign := approval.Permission{Verb: "sign", Resource: "signers", Name: "example.com/any"}
	approve := approval.Permission{Verb: "approve", Resource: "signers", Name: "example.com/any"}
	for _, test := range []struct {
		name   string
		user   string
		groups []string
		cn     string
		allows []approval.Permission
	}{
		{name: "token", user: "system:bootstrap:abcdef", groups: []string{"system:bootstrappers", tokens.DefaultGroup}, cn: "system:node:w", allows: []approval.Permission{first}},
		{name: "user name of a token", user: "system:bootstrap:abcdef", cn: "system:node:w"},
		{name: "in the group of tokens", user: "ada", groups: []string{"system:bootstrappers"}, cn: "system:node:w"},
		{name: "node", user: "system:node:w", groups: []string{"system:nodes"}, cn: "system:node:w", allows: []approval.Permission{renewal}},
		{name: "another node", user: "system:node:v", groups: []string{"system:nodes"}, cn: "system:node:w"},
		{name: "user name of a node", user: "system:node:w", cn: "system:node:w"},
		{name: "admin", user: "ada", groups: []string{"kubejoin:admins"}, cn: "system:node:w"},
		{name: "node in the group of admins", user: "system:node:w", groups: []string{"system:nodes", "kubejoin:admins"}, cn: "system:node:w", allows: []approval.Permission{renewal}},
		{name: "masters", user: "root", groups: []string{"system:masters"}, cn: "root"},
	} {
		r := approval.Request{User: test.user, Groups: test.groups, CSR: &x509.CertificateRequest{Subject: pkix.Name{CommonName: test.cn}}}
		for _, p := range []approval.Permission{
			first, renewal, sign, approve, {}, {Verb: "watch", Resource: "signers", Name: "example.com/any"}, {Verb: "create", Resource: "certificatesigningrequests"},
			{Verb: "delete", Resource: "certificatesigningrequests", Subresource: "nodeclient"},
		} {
			if got, err := facts.Allowed(t.Context(), r, p); err != nil || got != slices.Contains(test.allows, p) {
				t.Errorf("%s: %s: %v %v", test.name, p, got, err)
			}
		}
	}
}

func TestStandaloneNodeHasAddressOfConnectionAndSuffixes(t *testing.T) {
	facts := signer.Standalone{DNSSuffixes: []string{"example.com", ".rack.example.org"}}
	request := approval.Request{User: "system:node:w", Groups: []string{"system:nodes"}, From: netip.MustParseAddr("::ffff:192.0.2.7")}
	got, err := facts.Node(t.Context(), request, "w")
	if want := []string{"192.0.2.7", "w", "w.example.com", "w.rack.example.org"}; err != nil || got.Name != "w" || !slices.Equal(got.Addresses, want) {
		t.Errorf("%+v %v, want %q", got, err, want)
	}
	if got, err := facts.Node(t.Context(), request, "v"); !errors.Is(err, approval.ErrNoNode) {
		t.Errorf("another node: got %+v, %v, want ErrNoNode", got, err)
	}
	request.Groups = nil
	if got, err := facts.Node(t.Context(), request, "w"); !errors.Is(err, approval.ErrNoNode) {
		t.Errorf("requester is not a node: got %+v, %v, want ErrNoNode", got, err)
	}
	request.Groups, request.From = []string{"system:nodes"}, netip.Addr{}
	if got, err := facts.Node(t.Context(), request, "w"); err == nil || errors.Is(err, approval.ErrNoNode) {
		t.Errorf("without an address: got %+v, %v, want an error other than ErrNoNode", got, err)
	}
}

func TestStandaloneReportersComeFromClaims(t *testing.T) {
	file := memdb.Open()
	for _, name := range []string{"w", "v", "u.example.com"} {
		must.Get(storetest.CreateClaim(t.Context(), file.Claims(), tokens.Claim{Node: name, TokenID: "abcdef"}))
	}
	facts := signer.Standalone{Claims: file.Claims(), DNSSuffixes: []string{".example.com"}}
	got, err := facts.Reporters(t.Context(), "w", []string{"w", "w.example.com", "V", "v.EXAMPLE.com.", "v.example.org", "u", "u.example.com", "192.0.2.1", "2001:db8::1", "*.example.com"})
	want := map[string][]string{"V": {"v"}, "u.example.com": {"u.example.com"}}
	if err != nil || !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%q %v, want %q", got, err, want)
	}
	facts.Claims = storetest.Fail(errors.New("down")).Claims(file.Claims())
	if got, err := facts.Reporters(t.Context(), "w", []string{"v"}); err == nil {
		t.Errorf("without claims: got %q and no error", got)
	}
	if got, err := (signer.Standalone{}).Reporters(t.Context(), "w", []string{"v"}); err != nil || len(got) > 0 {
		t.Errorf("%q %v", got, err)
	}
}

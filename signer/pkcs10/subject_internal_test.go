package pkcs10

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
)

func TestRefusesMalformedSubjectAltNames(t *testing.T) {
	for name, test := range map[string]struct {
		der  string // value of the extension
		want string // part of the refusal; empty: no refusal
	}{
		"DNS":                      {"\x30\x03\x82\x01a", ""},
		"nothing":                  {"", "malformed"},
		"cut off":                  {"\x30\x03\x82", "malformed"},
		"bytes behind":             {"\x30\x03\x82\x01a\x00", "malformed"},
		"a set":                    {"\x31\x03\x82\x01a", "malformed"},
		"not a universal sequence": {"\xb0\x03\x82\x01a", "malformed"},
		"name cut off":             {"\x30\x02\x82\x05", "malformed"},
		"integer in place of DNS":  {"\x30\x03\x02\x01a", "malformed"},
		"other name":               {"\x30\x03\x80\x01a", "otherName"},
		"unknown kind":             {"\x30\x03\x89\x01a", "kind 9"},
		"empty":                    {"\x30\x02\x82\x00", "empty"},
		"space":                    {"\x30\x03\x82\x01 ", "not printable ASCII"},
		"delete":                   {"\x30\x03\x82\x01\x7f", "not printable ASCII"},
		"above ASCII":              {"\x30\x03\x86\x01\xe9", "not printable ASCII"},
		"IPv4 as IPv6":             {"\x30\x12\x87\x10" + strings.Repeat("\x00", 10) + "\xff\xff\x0a\x00\x00\x01", "is an IPv4-mapped IPv6 address, ::ffff:10.0.0.1: want the IPv4 address in 4 bytes"},
	} {
		err := checkNames(&x509.CertificateRequest{
			Subject:    pkix.Name{CommonName: "a"},
			Extensions: []pkix.Extension{{Id: oidSubjectAltName, Value: []byte(test.der)}},
		})
		var refused *approval.Error
		if (err == nil) != (test.want == "") || err != nil && (!errors.As(err, &refused) || refused.Verdict != approval.Deny || !strings.Contains(refused.Message, test.want)) {
			t.Errorf("%s: got %v, want a refusal with %q", name, err, test.want)
		}
	}
}

func TestRefusesNamesThatLookReserved(t *testing.T) {
	for _, name := range []string{"jane", "system", "systematic:x", "system:masters", "system:node:a", "system:Etcd"} {
		if err := checkSystemName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{
		"System:etcd", " system:etcd", "sy\u200bstem:etcd", "ѕystem:etcd", "ｓystem:etcd", "system∶etcd",
		"system:a b", "system:\u00e9", "system:a\u200b", "system:Masters", "system:NODES",
	} {
		if err := checkSystemName(name); approval.Refused(err) == nil {
			t.Errorf("checkSystemName(%+q) = %v, want a refusal", name, err)
		}
	}
}

// requestOf returns a request with these subject attributes.
func requestOf(attributes ...pkix.AttributeTypeAndValue) *x509.CertificateRequest {
	csr := &x509.CertificateRequest{}
	csr.Subject.Names = attributes
	return csr
}

func TestRefusesUnusualSubjectAttributes(t *testing.T) {
	name := asn1.ObjectIdentifier{2, 5, 4, attrCommonName}
	for what, test := range map[string]struct {
		attributes []pkix.AttributeTypeAndValue
		want       string // part of the refusal; empty: no refusal
	}{
		"common name":           {[]pkix.AttributeTypeAndValue{{Type: name, Value: "a"}}, ""},
		"two common names":      {[]pkix.AttributeTypeAndValue{{Type: name, Value: "a"}, {Type: name, Value: "b"}}, "more than once"},
		"number":                {[]pkix.AttributeTypeAndValue{{Type: name, Value: 1}}, "is not text"},
		"not UTF-8":             {[]pkix.AttributeTypeAndValue{{Type: name, Value: "\xff"}}, "is not valid UTF-8"},
		"control character":     {[]pkix.AttributeTypeAndValue{{Type: name, Value: "a\x1b"}}, "control character"},
		"reserved look":         {[]pkix.AttributeTypeAndValue{{Type: name, Value: "System:etcd"}}, "which looks like"},
		"short identifier":      {[]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4}, Value: "a"}}, ""},
		"longer identifier":     {[]pkix.AttributeTypeAndValue{{Type: append(name, 1), Value: "System:etcd"}}, ""},
		"identifier of another": {[]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 5, 4, 3}, Value: "System:etcd"}}, ""},
		"of another standard":   {[]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 6, 4, 3}, Value: "System:etcd"}}, ""},
		"of another part":       {[]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 5, 3}, Value: "System:etcd"}}, ""},
	} {
		err := checkAttributes(requestOf(test.attributes...))
		var refused *approval.Error
		if (err == nil) != (test.want == "") || err != nil && (!errors.As(err, &refused) || refused.Verdict != approval.Deny || !strings.Contains(refused.Message, test.want)) {
			t.Errorf("%s: got %v, want a refusal with %q", what, err, test.want)
		}
	}
}

// Package crafted creates certificate requests (PKCS #10, RFC 2986) that no honest program creates, and that
// crypto/x509 cannot encode. Only tests use it.
package crafted

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"unicode/utf16"
)

// ASN.1 tags of string types. encoding/asn1 has no name for UniversalString.
const (
	TagUniversalString = 28
	TagBMPString       = asn1.TagBMPString
	TagT61String       = asn1.TagT61String
)

// Attribute types of a subject.
var (
	CommonName   = asn1.ObjectIdentifier{2, 5, 4, 3}
	SerialNumber = asn1.ObjectIdentifier{2, 5, 4, 5}
	Organization = asn1.ObjectIdentifier{2, 5, 4, 10}
	Email        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 1}
	UserID       = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
	// KubernetesUID is the attribute from which kube-apiserver reads a user's UID.
	KubernetesUID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
)

// An Attribute is an attribute of a subject, with its encoded value.
type Attribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// Text returns an attribute with a string value. tag is the string type. Text encodes a BMPString as UTF-16, and every
// other type as the bytes of value.
func Text(oid asn1.ObjectIdentifier, tag int, value string) Attribute {
	content := []byte(value)
	if tag == TagBMPString {
		content = nil
		for _, u := range utf16.Encode([]rune(value)) {
			content = append(content, byte(u>>8), byte(u))
		}
	}
	return Attribute{oid, asn1.RawValue{Tag: tag, Bytes: content}}
}

// UTF8 is like [Text], for a UTF8String.
func UTF8(oid asn1.ObjectIdentifier, value string) Attribute {
	return Text(oid, asn1.TagUTF8String, value)
}

// Subject encodes a distinguished name with one relative distinguished name per attribute.
func Subject(attributes ...Attribute) []byte {
	var parts [][]Attribute
	for _, a := range attributes {
		parts = append(parts, []Attribute{a})
	}
	return MultiValued(parts...)
}

// MultiValued encodes a distinguished name. Each part is a relative distinguished name with several attributes.
func MultiValued(parts ...[]Attribute) []byte {
	var content []byte
	for _, part := range parts {
		var set []byte
		for _, a := range part {
			set = append(set, encode(a)...)
		}
		content = append(content, encode(asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: set})...)
	}
	return encode(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: content})
}

// Name returns a subject alternative name. kind is the tag of its type (RFC 5280, section 4.2.1.6).
func Name(kind int, value []byte) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: kind, Bytes: value}
}

// Subject alternative names of the types that crypto/x509 parses.
func EmailName(v string) asn1.RawValue { return Name(1, []byte(v)) }
func DNSName(v string) asn1.RawValue   { return Name(2, []byte(v)) }
func URIName(v string) asn1.RawValue   { return Name(6, []byte(v)) }
func IPName(v []byte) asn1.RawValue    { return Name(7, v) }

// OtherName returns an otherName with an Active Directory user principal name. kubejoin does not parse it.
func OtherName(principal string) asn1.RawValue {
	value := encode(struct {
		Type  asn1.ObjectIdentifier
		Value string `asn1:"explicit,tag:0,utf8"`
	}{asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 20, 2, 3}, principal})
	var sequence asn1.RawValue
	if _, err := asn1.Unmarshal(value, &sequence); err != nil {
		panic(err)
	}
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 0, IsCompound: true, Bytes: sequence.Bytes}
}

// SAN returns the extension with these subject alternative names.
func SAN(names ...asn1.RawValue) pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: encode(names)}
}

// BasicConstraints returns the extension that requests a CA certificate.
func BasicConstraints() pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}
}

// Request returns a request in DER, signed with key. subject is the result of [Subject] or [MultiValued]; nil means
// the empty subject.
func Request(key crypto.Signer, subject []byte, extensions ...pkix.Extension) ([]byte, error) {
	if subject == nil {
		subject = Subject()
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{RawSubject: subject, ExtraExtensions: extensions}, key)
}

// PEM encodes a request in PEM.
func PEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// RSA returns a request in DER with an RSA public key of this number of bits. There is no private key, and the
// signature is invalid.
func RSA(bits int, subject []byte) []byte {
	modulus := new(big.Int).SetBit(new(big.Int).Lsh(big.NewInt(1), uint(bits-1)), 0, 1)
	null := asn1.RawValue{Tag: asn1.TagNull}
	key := encode(struct {
		N *big.Int
		E int
	}{modulus, 65537})
	return unsigned(
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: null}, key,
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: null}, bits/8, subject)
}

// MLDSA65 returns a request in DER with the sizes and the algorithm of ML-DSA-65 (RFC 9881). Key and signature are invalid.
func MLDSA65(subject []byte) []byte {
	mldsa65 := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 18}}
	return unsigned(mldsa65, bytes.Repeat([]byte{1}, 1952), mldsa65, 3309, subject)
}

// unsigned returns a request with an invalid signature of this number of bytes.
func unsigned(keyAlgorithm pkix.AlgorithmIdentifier, key []byte, signatureAlgorithm pkix.AlgorithmIdentifier, signature int, subject []byte) []byte {
	type publicKey struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	type info struct {
		Version    int
		Subject    asn1.RawValue
		Key        publicKey
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}
	return encode(struct {
		Info      info
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		Info:      info{Subject: asn1.RawValue{FullBytes: subject}, Key: publicKey{keyAlgorithm, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}}},
		Algorithm: signatureAlgorithm,
		Signature: asn1.BitString{Bytes: bytes.Repeat([]byte{1}, signature), BitLength: 8 * signature},
	})
}

// encode encodes a value in DER. It panics if that fails.
func encode(v any) []byte {
	der, err := asn1.Marshal(v)
	if err != nil {
		panic(err)
	}
	return der
}

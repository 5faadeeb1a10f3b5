package clusterinfo_test

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
)

func TestPins(t *testing.T) {
	a, b := certtest.CA(t, "a"), certtest.CA(t, "b")
	got := clusterinfo.Pins([]*x509.Certificate{a.Leaf, b.Leaf, a.Leaf})
	want := []string{
		fmt.Sprintf("sha256:%x", sha256.Sum256(a.Leaf.RawSubjectPublicKeyInfo)),
		fmt.Sprintf("sha256:%x", sha256.Sum256(b.Leaf.RawSubjectPublicKeyInfo)),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParsePin(t *testing.T) {
	hash := strings.Repeat("0aB1", 16)
	for in, want := range map[string]string{
		"sha256:" + hash:                  "sha256:" + strings.ToLower(hash),
		"SHA256:" + strings.ToUpper(hash): "sha256:" + strings.ToLower(hash),
		"":                                "",
		hash:                              "",
		"sha256:":                         "",
		"sha256:" + hash[1:]:              "",
		"sha256:" + hash + "00":           "",
		"sha512:" + hash:                  "",
		" sha256:" + hash:                 "",
		"sha256:" + hash[:62] + "zz":      "",
	} {
		got, err := clusterinfo.ParsePin(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParsePin(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

package clusterinfo_test

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/tokens"
	"k8s.io/cluster-bootstrap/token/jws"
)

// oracle implements RFC 7515 independently.
func oracle(content []byte, id, secret string) string {
	b64 := base64.RawURLEncoding.EncodeToString
	header := b64([]byte(`{"alg":"HS256","kid":"` + id + `"}`))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(header + "." + b64(content)))
	return header + ".." + b64(mac.Sum(nil))
}

// kubeadm join computes the signature with cluster-bootstrap and compares strings, so Sign must return
// identical signatures. KUBEJOIN_TEST_SIGNATURES is the number of compared signatures.
func TestSignLikeClusterBootstrap(t *testing.T) {
	published := must.Value(tokens.New("qwertz", "0123456789abcdee"))(t)
	sample.Check(t, "docs/protocol.md", must.Value(clusterinfo.Sign([]byte("kubeconfig"), published))(t)+"\n")
	const shards = 4
	cases := must.Value(strconv.Atoi(cmp.Or(os.Getenv("KUBEJOIN_TEST_SIGNATURES"), "10000")))(t)
	for shard := range uint64(shards) {
		t.Run(fmt.Sprint("seed ", shard), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(2026, shard))
			word := func(n int) string {
				w := make([]byte, n)
				for i := range w {
					w[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[random.IntN(36)]
				}
				return string(w)
			}
			for range cases / shards {
				id, secret := word(6), word(16)
				token := must.Value(tokens.New(id, secret))(t)
				size := random.IntN(200)
				if random.IntN(50) == 0 {
					size = random.IntN(8000)
				}
				content := make([]byte, size)
				for i := range content {
					content[i] = byte(random.Uint32())
				}
				got := must.Value(clusterinfo.Sign(content, token))(t)
				upstream := must.Value(jws.ComputeDetachedSignature(string(content), id, secret))(t)
				if want := oracle(content, id, secret); got != want || got != upstream {
					t.Fatalf("token %s, content %x:\ngot      %s\nupstream %s\nby hand  %s", id, content, got, upstream, want)
				}
				must.OK(t, clusterinfo.Verify(content, got, token))
			}
		})
	}
}

func TestSignNeedsSecret(t *testing.T) {
	onlyID := must.Value(tokens.OnlyID("abcdef"))(t)
	for _, token := range []tokens.Token{{}, onlyID} {
		if jws, err := clusterinfo.Sign([]byte("x"), token); err == nil || jws != "" {
			t.Errorf("%v: signed %q, %v", token, jws, err)
		}
		if err := clusterinfo.Verify([]byte("x"), "", token); err == nil {
			t.Errorf("%v: an empty signature is valid", token)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	token, other := mustToken(t, "abcdef.9876543210fedcba"), mustToken(t, "abcdef.9876543210fedcbb")
	content := []byte("kubeconfig")
	good := must.Value(clusterinfo.Sign(content, token))(t)
	attached := strings.Replace(good, "..", "."+base64.RawURLEncoding.EncodeToString(content)+".", 1)
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"abcdef"}`)) + ".."
	for name, test := range map[string]struct {
		content, jws string
		token        tokens.Token
	}{
		"other content":   {"kubeconfig ", good, token},
		"other secret":    {"kubeconfig", good, other},
		"empty":           {"kubeconfig", "", token},
		"cut":             {"kubeconfig", good[:len(good)-1], token},
		"longer":          {"kubeconfig", good + "=", token},
		"attached":        {"kubeconfig", attached, token},
		"algorithm none":  {"kubeconfig", none, token},
		"header reversed": {"kubeconfig", base64.RawURLEncoding.EncodeToString([]byte(`{"kid":"abcdef","alg":"HS256"}`)) + good[strings.Index(good, ".."):], token},
	} {
		err := clusterinfo.Verify([]byte(test.content), test.jws, test.token)
		if !errors.Is(err, clusterinfo.ErrSignature) {
			t.Errorf("%s: got %v, want ErrSignature", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "9876543210") {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	token := mustToken(f, "abcdef.9876543210fedcba")
	for _, content := range []string{"", "a", "apiVersion: v1\n"} {
		good := must.Value(clusterinfo.Sign([]byte(content), token))(f)
		f.Add([]byte(content), good)
		f.Add([]byte(content+" "), good)
		f.Add([]byte(content), strings.ToUpper(good))
	}
	f.Add([]byte("x"), "..")
	f.Fuzz(func(t *testing.T, content []byte, signature string) {
		var err error
		fuzzing.RunWithinLimit(t, func() { err = clusterinfo.Verify(content, signature, token) })
		if valid := jws.DetachedTokenIsValid(signature, string(content), "abcdef", "9876543210fedcba"); valid != (err == nil) {
			t.Errorf("%q over %q: cluster-bootstrap returns %t, Verify %v", signature, content, valid, err)
		}
	})
}

package boltstore_test

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
)

// A damaged claim must keep its node name taken. Every error must name the claim and its file.
func TestDamagedClaimKeepsName(t *testing.T) {
	const good = `{"tokenID":"abc123","tokenUID":"u","limits":{"maxNodes":1,"replaces":{"name":"worker-1","uid":"n"}},"keys":["k"],"created":"2026-01-02T03:04:05Z","uid":"u"}`
	for name, test := range map[string]struct{ value, want string }{
		"good":          {good, ""},
		"empty":         {"", "unexpected end of JSON"},
		"more":          {good + good, "unexpected data after"},
		"unknown field": {strings.Replace(good, "tokenUID", "tokenUid2", 1), "known fields only"},
		"wrong type":    {strings.Replace(good, `["k"]`, `"k"`, 1), `field "keys" has the wrong type`},
		"limits":        {strings.Replace(good, `"maxNodes":1`, `"maxNodes":-1`, 1), "limits"},
		"duration":      {strings.Replace(good, `"maxNodes":1`, `"certificateDuration":9223372036854775807`, 1), "limits"},
		"overflow":      {strings.Replace(good, `"maxNodes":1`, `"certificateDuration":36028797018967568`, 1), "limits"},
		"past overflow": {strings.Replace(good, `"uid":"u"`, `"past":{"until":"2026-01-02T03:04:05Z","certificateDuration":36028797018967568},"uid":"u"`, 1), "invalid claim"},
		"replaces":      {strings.Replace(good, `"name":"worker-1","uid":"n"`, `"name":"","uid":""`, 1), "limits"},
		"token":         {strings.Replace(good, "abc123", "", 1), "invalid claim"},
		"keys":          {strings.Replace(good, `["k"]`, `["1","2","3","4"]`, 1), "invalid claim"},
		"past":          {strings.Replace(good, `"uid":"u"`, `"past":{"until":"2026-01-02T03:04:05.5Z"},"uid":"u"`, 1), "invalid claim"},
		"long past":     {strings.Replace(good, `"uid":"u"`, `"past":{"until":"2026-01-02T03:04:05Z","certificateDuration":9223372036854775807},"uid":"u"`, 1), "invalid claim"},
		"released":      {strings.Replace(good, `"tokenID":"abc123",`, "", 1), "invalid claim"},
		"not created":   {strings.Replace(good, "2026-01-02T03:04:05Z", "0001-01-01T00:00:00Z", 1), "missing"},
		"no version":    {"", "version is missing"},
		"no uid":        {strings.Replace(good, `"uid":"u"`, `"uid":""`, 1), "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			s := open(t, path)
			if _, err := s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			row := versioned(test.value)
			if name == "no version" {
				row = row[:7]
			}
			edit(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("claims")).Put([]byte("worker-1"), row) })
			claims := open(t, path).Claims()
			c, getErr := claims.Get(t.Context(), "worker-1")
			_, listErr := claims.List(t.Context())
			_, ofErr := claims.HeldBy(t.Context(), "abc123", tokens.Cached)
			_, createErr := claims.Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"})
			if test.want == "" {
				if err := errors.Join(getErr, listErr, ofErr); err != nil || c.Limits.Replaces.UID != "n" {
					t.Errorf("Get = %+v, %v, want the claim", c, err)
				}
				return
			}
			for what, err := range map[string]error{"Get": getErr, "List": listErr, "cached HeldBy": ofErr, "Create": createErr} {
				if !errors.Is(err, boltstore.ErrDamaged) || errors.Is(err, tokens.ErrNotFound) {
					t.Errorf("%s = %v, want ErrDamaged", what, err)
					continue
				}
				for _, part := range []string{path, strconv.Quote("worker-1"), test.want} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s = %q, want %q in it", what, err, part)
					}
				}
			}
		})
	}
}

// If the row of a claim is missing, HeldBy must fail: the token could claim more names than its limit.
func TestMissingClaimIsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	if _, err := s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	edit(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("claims")).Delete([]byte("worker-1")) })
	if all, err := open(t, path).Claims().HeldBy(t.Context(), "abc123", tokens.Live); !errors.Is(err, boltstore.ErrDamaged) {
		t.Errorf("HeldBy = %+v, %v, want ErrDamaged", all, err)
	}
}

// Changes of claims must not wake listeners of tokens, nor the other way round.
func TestSeparateHintsForTokensAndClaims(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
	ofTokens, ofClaims := s.Watch(t.Context()), s.Claims().Watch(t.Context())
	<-ofTokens
	<-ofClaims
	hinted := func(hints <-chan struct{}) bool {
		select {
		case <-hints:
			return true
		default:
			return false
		}
	}
	// The hint is sent before the write returns.
	if _, err := s.Claims().Create(t.Context(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}); err != nil {
		t.Fatal(err)
	}
	if !hinted(ofClaims) || hinted(ofTokens) {
		t.Error("after a new claim: got a hint about tokens, or none about claims")
	}
	if _, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}); err != nil {
		t.Fatal(err)
	}
	if hinted(ofClaims) || !hinted(ofTokens) {
		t.Error("after a new token: got a hint about claims, or none about tokens")
	}
}

// Tokens and claims that are created concurrently share commits. None may be lost.
func TestConcurrentClaimsAndTokens(t *testing.T) {
	const n = 200
	s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Limits: tokens.Limits{MaxNodes: 1}})
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			node := "worker-" + strconv.Itoa(i/2) // two goroutines per name
			_, err = s.Claims().Create(t.Context(), tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits})
			if err != nil && !errors.Is(err, tokens.ErrExists) {
				t.Errorf("Create of a claim: %v", err)
			}
		})
	}
	wg.Wait()
	all, err := s.Claims().List(t.Context())
	if err != nil || len(all) != n/2 {
		t.Errorf("List gives %d claims, %v, want %d", len(all), err, n/2)
	}
	records, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	of := 0
	for _, r := range records {
		claims, err := s.Claims().HeldBy(t.Context(), r.Token.ID(), tokens.Cached)
		if err != nil {
			t.Fatal(err)
		}
		of += len(claims)
	}
	if len(records) != n || of != n/2 {
		t.Errorf("%d tokens have %d claims, want %d and %d", len(records), of, n, n/2)
	}
}

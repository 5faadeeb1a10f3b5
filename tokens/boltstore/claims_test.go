package boltstore_test

import (
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Changes of claims must not wake listeners of tokens, and changes of tokens must not wake listeners of claims.
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
	must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: "worker-1", TokenID: "abc123"}))(t)
	if !hinted(ofClaims) || hinted(ofTokens) {
		t.Error("after a new claim: got a hint about tokens, or none about claims")
	}
	must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
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
			_, err = storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: node, TokenID: r.Token.ID(), TokenUID: r.UID, Limits: r.Limits})
			if err != nil && !errors.Is(err, tokens.ErrConflict) {
				t.Errorf("Create of a claim: %v", err)
			}
		})
	}
	wg.Wait()
	all, err := s.Claims().List(t.Context())
	if err != nil || len(all) != n/2 {
		t.Errorf("List gives %d claims, %v, want %d", len(all), err, n/2)
	}
	records := must.Value(s.List(t.Context()))(t)
	of := 0
	for _, r := range records {
		claims := must.Value(s.Claims().HeldBy(t.Context(), r.Token.ID(), tokens.Cached))(t)
		of += len(claims)
	}
	if len(records) != n || of != n/2 {
		t.Errorf("%d tokens have %d claims, want %d and %d", len(records), of, n, n/2)
	}
}

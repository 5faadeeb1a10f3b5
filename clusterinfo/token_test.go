package clusterinfo_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
)

func mustToken(t testing.TB, s string) tokens.Token {
	t.Helper()
	token, err := tokens.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

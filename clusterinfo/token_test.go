package clusterinfo_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

func mustToken(t testing.TB, s string) tokens.Token {
	t.Helper()
	return must.Value(tokens.Parse(s))(t)
}

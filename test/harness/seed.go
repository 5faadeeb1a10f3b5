package harness

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// Seed returns the value of KUBEJOIN_TEST_SEED, or a random seed. If the test fails, Seed logs the seed.
func Seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("KUBEJOIN_TEST_SEED"); given != "" {

		s = must.Value(strconv.ParseUint(given, 10, 64))(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat these faults, set KUBEJOIN_TEST_SEED=%d", s)
		}
	})
	return s
}

package harness

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is the value of KUBEJOIN_TEST_SEED, or random. A test that fails logs it.
func Seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("KUBEJOIN_TEST_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat these faults, set KUBEJOIN_TEST_SEED=%d", s)
		}
	})
	return s
}

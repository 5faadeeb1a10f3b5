package admission_test

import (
	"crypto/elliptic"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// An admission that stops between any two calls leaves a state from which the next attempt can continue.
func TestNextAttemptContinuesInterruptedAdmission(t *testing.T) {
	for i := range 2 * 12 {
		step, newKey := i/2, i%2 == 1
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		stopped := storetest.Before(func() error {
			if step--; step < 0 {
				return errors.New("process stopped")
			}
			return nil
		}, "Store.Get", "Store.Update", "Claims.Create", "Claims.Update")
		n := c.admissionWith(stopped)
		request := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		first, err := admit(t.Context(), n, request)
		again := c.admission()
		other, otherErr := admit(t.Context(), again, firstRequest(t, bootstrapUser(token), "worker-2", nil))
		if newKey { // a minute later
			later := time.Now().Add(time.Minute)
			again.Now = func() time.Time { return later }
			request = firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		}
		one, oneErr := admit(t.Context(), again, request)
		if (one != nil) == (other != nil) || first != nil && one == nil {
			t.Errorf("worker-1: got %v, %v, then %v, %v; worker-2: %v, %v; want exactly one admitted", first, err, one, oneErr, other, otherErr)
		}
		if len(c.claims) != 1 || len(c.records[token.ID()].Nodes) != 1 {
			t.Errorf("got %d claims and counted names %q, want one of each", len(c.claims), c.records[token.ID()].Nodes)
		}
	}
}

package httplimit

import (
	"fmt"
	"hash/maphash"
	"testing"
)

// Catches a user that evicts others from the credential cache with many credentials.
func TestOneUserEvictsNoOtherFromCredentialCache(t *testing.T) {
	a := &accepted{seed: maphash.MakeSeed()}
	const others = 20
	for i := range others {
		a.add("client", Authenticated, fmt.Sprint("credential of user ", i), fmt.Sprint("user ", i))
	}
	for i := range 12_000 {
		a.add("client", Authenticated, fmt.Sprint("credential ", i), "ada")
	}
	for i := range others {
		if !a.has("client", Authenticated, fmt.Sprint("credential of user ", i)) {
			t.Errorf("user %d: the credential is no longer cached", i)
		}
	}
	if !a.has("client", Authenticated, "credential 11999") || a.has("client", Authenticated, "credential 1") {
		t.Error("want the latest credential of ada cached, and the first one forgotten")
	}
}

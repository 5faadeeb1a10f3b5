package httplimit

import "testing"

// Catches a holder that gets more slots than are free, and slots that stay taken after Free.
func TestSharesLeaveSlotsFree(t *testing.T) {
	s := NewShares(16)
	take := func(holder string, want int) {
		t.Helper()
		n := 0
		for s.Take(holder) {
			n++
		}
		if n != want {
			t.Errorf("%s got %d slots, want %d", holder, n, want)
		}
	}
	for range 2 {
		take("a", 8)
		take("b", 4)
		for range 8 {
			s.Free("a")
		}
		for range 4 {
			s.Free("b")
		}
	}
}

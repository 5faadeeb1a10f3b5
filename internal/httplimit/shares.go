package httplimit

import "sync"

// Shares are slots that holders share: none gets more than are free. Use [NewShares].
type Shares struct {
	most int

	mu    sync.Mutex
	taken int
	has   map[string]int // by holder
}

// NewShares returns this many free slots.
func NewShares(most int) *Shares { return &Shares{most: most, has: map[string]int{}} }

// Take takes a slot for a holder, and reports whether the holder's share allows it.
func (s *Shares) Take(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !fair(s.most, s.taken, s.has[holder]) {
		return false
	}
	s.taken++
	s.has[holder]++
	return true
}

// Free frees a slot that the holder has taken.
func (s *Shares) Free(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	less(s.has, holder)
}

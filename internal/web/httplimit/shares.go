package httplimit

import "sync"

// Shares are slots that holders share. A holder never has more slots than are free. A slot that was taken without a holder
// counts towards no share. Create them with [NewShares].
type Shares struct {
	most int

	mu    sync.Mutex
	taken int
	has   map[string]int // number of slots by holder
}

// NewShares returns this many free slots.
func NewShares(most int) *Shares { return &Shares{most: most, has: map[string]int{}} }

// Take takes a slot for a holder, and reports whether the holder's share allows it. With an empty holder, it takes a slot
// if one is free.
func (s *Shares) Take(holder string) bool { return s.take(holder) == "" }

// take is like Take, but returns the reason to refuse; empty if it took a slot.
func (s *Shares) take(holder string) (reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken >= s.most:
		return Overloaded
	case !fair(s.most, s.taken, s.has[holder]):
		return clientInFlight
	}
	s.taken++
	s.count(holder)
	return ""
}

// seat assigns a slot that was taken without a holder to this holder, and reports whether the holder's share allows it.
func (s *Shares) seat(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !fair(s.most, s.taken-1, s.has[holder]) {
		return false
	}
	s.count(holder)
	return true
}

func (s *Shares) count(holder string) {
	if holder != "" {
		s.has[holder]++
	}
}

// Free frees a slot that the holder has taken.
func (s *Shares) Free(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	less(s.has, holder)
}

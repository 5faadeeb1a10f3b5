package storecopy

import (
	"context"
	"time"
)

// BeforeBegin runs a function before a copy to the store begins.
func (s *Store) BeforeBegin(run func()) {
	begin := s.begin
	s.begin = func(ctx context.Context) error {
		run()
		return begin(ctx)
	}
}

// Later returns options for a copy that runs later.
func (o Options) Later(by time.Duration) Options {
	o.after = by
	return o
}

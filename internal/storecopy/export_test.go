package storecopy

import "context"

// BeforeBegin runs a function before a copy to the store begins.
func (s *Store) BeforeBegin(run func()) {
	begin := s.begin
	s.begin = func(ctx context.Context) error {
		run()
		return begin(ctx)
	}
}

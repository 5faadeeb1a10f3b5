package storecopy

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// BeforeBegin runs a function before a copy to the store begins.
func (s *Store) BeforeBegin(run func()) {
	begin := s.begin
	s.begin = func(ctx context.Context) error {
		run()
		return begin(ctx)
	}
}

// DB returns the rows of the store.
func (s *Store) DB() rowstore.DB { return s.rows.DB() }

package admission_test

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens"
)

// hookBeforeCount calls do when the count of a token is about to be written.
type hookBeforeCount struct {
	store
	do func()
}

func (s hookBeforeCount) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	return s.store.Update(ctx, id, func(r *tokens.Record) error {
		err := change(r)
		s.do()
		return err
	})
}

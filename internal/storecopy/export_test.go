package storecopy

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// BeforeBegin runs a function before a copy to the store begins.
func (b *Backend) BeforeBegin(run func()) {
	begin := b.begin
	b.begin = func(ctx context.Context) error {
		run()
		return begin(ctx)
	}
}

// DB returns the rows of the store.
func (b *Backend) DB() rowstore.DB { return b.rows.DB() }

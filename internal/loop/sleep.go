package loop

import (
	"context"
	"time"
)

// Sleep returns after d, or with the error of ctx as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

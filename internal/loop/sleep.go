package loop

import (
	"context"
	"time"
)

// Sleep returns nil after d, or the error of ctx as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

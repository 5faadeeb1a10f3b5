package loop

import "context"

// Either hints whenever one of the hints does, until ctx ends. A nil one never does.
func Either(ctx context.Context, hints ...<-chan struct{}) <-chan struct{} {
	either := make(chan struct{}, 1)
	for _, hint := range hints {
		if hint == nil {
			continue
		}
		go func() {
			for {
				select {
				case <-hint:
				case <-ctx.Done():
					return
				}
				select {
				case either <- struct{}{}:
				default:
				}
			}
		}()
	}
	return either
}

package loop

import "context"

// Either returns a channel that receives a hint when any of the given channels does, until ctx ends. It ignores nil channels.
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

// Package outage is about an API server that does not answer for a while: how to tell, and how
// to wait for it so that its return is noticed within seconds at the cost of a request in as
// many. What to make of an answer that is an error is left to each caller.
package outage

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Times between two tries. The most is also how late the return of the API server is noticed;
// client-go by itself takes up to a minute.
const (
	firstWait = 100 * time.Millisecond
	mostWait  = 5 * time.Second
)

// Is reports whether an error is no answer at all, or what an API server answers to anybody
// while it starts, stops, is overloaded or has lost etcd.
func Is(err error) bool {
	var request *url.Error
	var network net.Error // a context that has timed out, too
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case errors.As(err, &request), errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// Wait calls try until what it returns [Is] no outage, and returns that, or until ctx ends.
// Told, unless it is nil, gets the first error of an outage, and nil when that has ended.
func Wait(ctx context.Context, try func(context.Context) error, told func(error)) error {
	out := false
	for wait := firstWait; ; wait = min(2*wait, mostWait) {
		err := try(ctx)
		if out && told != nil && !Is(err) && ctx.Err() == nil {
			told(nil)
		}
		if ctx.Err() != nil || !Is(err) {
			return err
		}
		if !out && told != nil {
			told(err)
		}
		out = true
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

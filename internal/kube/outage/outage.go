// Package outage detects outages of an API server and waits for their end. It retries often enough to notice the end
// within seconds. It leaves other errors to the caller.
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

// Times between retries. mostWait is also the longest time until Wait notices the end of an outage. Without Wait,
// client-go may need a minute.
const (
	firstWait = 100 * time.Millisecond
	mostWait  = 5 * time.Second
)

// Is reports whether an error means that the API server did not respond, or that it is starting, stopping, overloaded
// or without etcd.
func Is(err error) bool {
	var request *url.Error
	var network net.Error // matches also a context that timed out
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case errors.As(err, &request), errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsInternalError(err) ||
		apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// Wait calls try until [Is] returns false for its error, and returns that error. It also returns when ctx ends. If
// told is not nil, Wait calls it with the first error of an outage, and with nil when the outage ends.
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

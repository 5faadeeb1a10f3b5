package outage_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var refused = &url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}

func TestIs(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{refused, true},
		{fmt.Errorf("rule nodeclient: %w", refused), true},
		{context.DeadlineExceeded, true},
		{io.ErrUnexpectedEOF, true},
		{apierrors.NewServiceUnavailable("shutting down"), true},
		{apierrors.NewTooManyRequests("busy", 1), true},
		{apierrors.NewInternalError(errors.New("etcdserver: leader changed")), true},
		{apierrors.NewServerTimeout(secrets, "create", 1), true},
		{apierrors.NewTimeoutError("slow", 1), true},
		{context.Canceled, false},
		{&url.Error{Op: "Get", Err: context.Canceled}, false},
		{errors.New("the CA key cannot be read"), false},
		{apierrors.NewForbidden(secrets, "x", nil), false},
		{apierrors.NewConflict(secrets, "x", nil), false},
		{apierrors.NewNotFound(secrets, "x"), false},
	} {
		if got := outage.Is(test.err); got != test.want {
			t.Errorf("Is(%v) = %t, want %t", test.err, got, test.want)
		}
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const length = 10 * time.Minute
		began, tries := time.Now(), 0
		var told []error
		err := outage.Wait(t.Context(), func(context.Context) error {
			tries++
			if time.Since(began) < length {
				return refused
			}
			return nil
		}, func(err error) { told = append(told, err) })
		if err != nil {
			t.Errorf("Wait = %v, want nil when the server is back", err)
		}
		if late := time.Since(began) - length; late > 5*time.Second {
			t.Errorf("noticed %s late", late)
		}
		if tries < 120 || tries > 260 {
			t.Errorf("%d tries in %s, want one in 2.5 to 5 s", tries, length)
		}
		if len(told) != 2 || !errors.Is(told[0], refused) || told[1] != nil {
			t.Errorf("told %v, want the beginning and the end", told)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := outage.Wait(ctx, func(context.Context) error { return refused }, nil); !errors.Is(err, refused) {
			t.Errorf("Wait = %v at the end of its context, want the last error", err)
		}
		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "x", nil)
		told := 0
		if err := outage.Wait(t.Context(), func(context.Context) error { return forbidden }, func(error) { told++ }); !errors.Is(err, forbidden) || told != 0 {
			t.Errorf("Wait = %v, told %d times; an answer that is an error is the caller's", err, told)
		}
	})
}

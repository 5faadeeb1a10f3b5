package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
)

// The banner says that kubejoin is ready, which it was not while etcd did not respond.
func TestBannerWaitsForReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log, out logs.Buffer
		s := newService(Options{}, slog.New(slog.NewTextHandler(&log, nil)), &out)
		started := time.Now()
		s.check("tokens", func(context.Context) error {
			if time.Since(started) < time.Minute {
				return errors.New("kubejoin cannot read etcd")
			}
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan struct{})
		go func() {
			s.announce(ctx, func() string { return "kubejoin is ready" })
			close(done)
		}()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if out.String() != "" || strings.Count(log.String(), `msg="not ready yet" waits_for="tokens: kubejoin cannot read etcd"`) != 1 {
			t.Errorf("not ready: printed %q and logged\n%s", &out, &log)
		}
		<-done
		if out.String() != "kubejoin is ready" || !strings.Contains(log.String(), "msg=ready\n") || time.Since(started) > 66*time.Second {
			t.Errorf("ready: printed %q after %s, and logged\n%s", &out, time.Since(started), &log)
		}
	})
}

package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/rest"
)

// The banner says that kubejoin is ready. Catches a banner that is printed while etcd does not respond.
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

// Catches a banner whose URL has no host.
func TestBannersHaveHost(t *testing.T) {
	for _, test := range []struct{ listen, advertise, want string }{
		{"127.0.0.1:9443", "join.example.com:443", "https://127.0.0.1:9443"},
		{":9443", "join.example.com:443", "https://join.example.com:443"},
		{"[::]:9443", "192.0.2.7:9443", "https://192.0.2.7:9443"},
		{"0.0.0.0:9443", "", "https://" + must.Value(reachable(":9443"))(t)},
	} {
		s := newService(Options{Listen: test.listen, Advertise: test.advertise}, slog.New(slog.DiscardHandler), io.Discard)
		for _, banner := range []string{(&standalone{service: s}).readyBanner(), (&cluster{connection: &connection{service: s, config: &rest.Config{}}}).clusterBanner()} {
			if !strings.Contains(banner, test.want+" ") && !strings.Contains(banner, test.want+",") {
				t.Errorf("--listen %s --advertise %s: got %q, want %s", test.listen, test.advertise, banner, test.want)
			}
		}
	}
}

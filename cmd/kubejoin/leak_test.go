package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/testing/logs"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
)

// patience is how long tests wait for a condition. It is long because machines may be slow.
const patience = 2 * time.Minute

// A stopped service must leave no goroutines or locks: a program may start it again in the same folder.
func TestStandaloneLeaksNoGoroutines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	n := 300
	if testing.Short() {
		n = 50
	}
	startAndStop(t, n, "--data-dir", dir)
}

// On a cluster, with all controllers and leader election, a stopped service must leave no goroutines either.
func TestOnClusterLeaksNoGoroutines(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	shareConnection(t, c)
	startAndStop(t, 50, "--kubeconfig", c.Kubeconfig(), "--cluster-signing-cert-file", c.CAFile(), "--cluster-signing-key-file", c.CAKeyFile())
}

// On a cluster with a file store, and with both ways to authenticate kube-apiserver, a stopped service must leave no
// goroutines either.
func TestFileStoreOnClusterLeaksNoGoroutines(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	shareConnection(t, c)
	startAndStop(t, 20, "--kubeconfig", c.Kubeconfig(), "--cluster-signing-cert-file", c.CAFile(), "--cluster-signing-key-file", c.CAKeyFile(),
		"--token-store", "file", "--data-dir", filepath.Join(t.TempDir(), "data"), "--webhook-client-ca-file", c.CAFile(), "--webhook-client-name", "kube-apiserver")
}

// shareConnection lets all runs share one connection to the API server. Otherwise client-go opens another connection after
// the garbage collector has freed the last transport, whose connection stays open for 90 s.
func shareConnection(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	config := must.Value(c.Config("admin.conf"))(t)
	transport := must.Value(rest.TransportFor(config))(t)
	t.Cleanup(func() { runtime.KeepAlive(transport) })
}

// startAndStop runs the program n times and fails the test if a run leaves goroutines.
func startAndStop(t *testing.T, n int, flags ...string) {
	t.Helper()
	o := optionsOf(t, flags...)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
	var before goleak.Option
	for i := range n {
		if i == 1 { // count after the first run, because client-go keeps the first connection to a server open
			before = goleak.IgnoreCurrent()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var log lines
		done := make(chan error, 1)
		go func() {
			done <- daemon.Run(ctx, o, slog.New(slog.NewTextHandler(&log, nil)), io.Discard)
		}()
		// Stop the program when it is ready, but every tenth time at a random point before.
		if i%10 == 9 {
			time.AfterFunc(time.Duration(i/10%50)*time.Millisecond, cancel)
		} else {
			awaitReady(t, client, log.await(t, "msg=serving address=", done))
			cancel()
		}
		if err := <-done; err != nil {
			t.Fatalf("start %d: %v\n%s", i, err, &log)
		}
		if i > 0 { // goleak.Find waits for less than a second
			wait.OK(t, fmt.Sprintf("all goroutines of start %d end", i), func() error { return goleak.Find(before) })
		}
	}
}

// optionsOf returns the options that flags of serve set. The server listens on a free port.
func optionsOf(t *testing.T, flags ...string) daemon.Options {
	t.Helper()
	var o serveOptions
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	o.register(f)
	o.given = f.Changed
	must.OK(t, f.Parse(append([]string{"--listen", "127.0.0.1:0"}, flags...)))
	return must.Value(o.options())(t)
}

func awaitReady(t *testing.T, client *http.Client, address string) {
	t.Helper()
	wait.OK(t, "readyz", func() error {
		answer, err := client.Get("https://" + address + "/readyz")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				err = errors.New(answer.Status)
			}
		}
		return err
	})
}

// lines is a log that tests can wait for.
type lines struct{ logs.Buffer }

// await waits for a line with prefix and returns the word after prefix.
func (l *lines) await(t *testing.T, prefix string, done <-chan error) (word string) {
	t.Helper()
	wait.OK(t, "log "+prefix, func() error {
		text := l.String()
		_, after, _ := strings.Cut(text, prefix)
		before, _, whole := strings.Cut(after, " ")
		if word = before; whole {
			return nil
		}
		select {
		case err := <-done:
			t.Fatalf("ended: %v\n%s", err, text)
		default:
		}
		return fmt.Errorf("got log\n%s", text)
	})
	return word
}

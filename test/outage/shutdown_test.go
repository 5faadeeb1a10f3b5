package outage

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestShutdownLosesNoRequest catches a shutdown that loses requests, that keeps the Lease, or that load balancers can
// notice only by lost connections.
func TestShutdownLosesNoRequest(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	stopInTheMiddle(t, s)
	s.Start(t, "--shutdown-delay-duration=1h")
	stopWithDelay(t, s)
}

// stopInTheMiddle stops a leader while a client sends a request.
func stopInTheMiddle(t *testing.T, s *harness.Site) {
	t.Helper()
	s.WaitLeader(t)
	const body = `{"ttl": "1h"}`
	conn := must.Value(tls.Dial("tcp", s.Endpoint, &tls.Config{RootCAs: s.Roots}))(t)
	defer conn.Close()
	half := func(text string) {
		t.Helper()
		must.Value(io.WriteString(conn, text))(t)
	}
	half("POST /v1/token/print-join-command HTTP/1.1\r\nHost: kubejoin\r\nContent-Type: application/json\r\n" +
		"Authorization: Bearer " + s.Bearer(t) + "\r\nContent-Length: " + fmt.Sprint(len(body)) + "\r\n\r\n" + body[:5])
	const inFlight = "\nkubejoin_http_requests_in_flight{class=\"join-command\"} 1\n"
	harness.Wait(t, "the request in flight", func() error {
		if metrics := s.Metrics(t); !strings.Contains(metrics, inFlight) {
			return fmt.Errorf("no %q in\n%s", inFlight, metrics)
		}
		return nil
	})
	signal(t, s.Program)
	harness.Wait(t, "the end of the listener", func() error {
		s.HTTP.CloseIdleConnections()
		if status, _, err := s.Get(t.Context(), "/healthz", ""); err == nil {
			return fmt.Errorf("/healthz: %d", status)
		}
		return nil
	})
	if holder(t, s) == "" {
		t.Error("the Lease was given up before the last request")
	}
	half(body[5:])
	response := must.Value(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	defer response.Body.Close()
	line, err := io.ReadAll(response.Body)
	if err != nil || !strings.HasPrefix(string(line), "kubeadm join ") {
		t.Errorf("response: %s, %v", response.Status, err)
	}
	<-s.Done()
	if err := s.Err(); err != nil {
		t.Errorf("exit: %v", err)
	}
	if got := holder(t, s); got != "" {
		t.Errorf("the Lease is still held by %q", got)
	}
}

// stopWithDelay stops a replica with a delay. Meanwhile it must still serve, but not be ready.
func stopWithDelay(t *testing.T, s *harness.Site) {
	t.Helper()
	signal(t, s.Program)
	harness.Wait(t, "a failing readiness", func() error {
		status, text, err := s.Get(t.Context(), "/readyz", "")
		if err != nil {
			t.Fatal(err)
		}
		if status != http.StatusServiceUnavailable || !strings.Contains(text, "[-]shutdown failed") {
			return fmt.Errorf("/readyz: %d %s", status, text)
		}
		return nil
	})
	if _, err := s.JoinCommand(t, ""); err != nil {
		t.Errorf("during the delay: %v", err)
	}
	s.Kill(t)
}

func signal(t *testing.T, p *harness.Program) {
	t.Helper()
	must.OK(t, p.Signal(syscall.SIGTERM))
}

func holder(t *testing.T, s *harness.Site) string {
	t.Helper()
	return s.RunKubectl(t, "-n", "kubejoin-system", "get", "lease", "kubejoin", "-o", "jsonpath={.spec.holderIdentity}")
}

package main

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// mostCalls is the maximum number of requests that kubejoin may send to kube-apiserver per machine. With 100 machines,
// kubejoin needed 9.3 per machine. Another 1.2 were for leader Leases, proofs of caches, reads before a proof, and
// restarted watches. With 300 machines, the latter are fewer per machine.
const mostCalls = 10.5

// TestStormLosesNoMachine lets 300 machines with all kinds of keys join, and kills the leader. It catches machines that
// never become Ready, tokens and names that admit two, and requests to kube-apiserver that a machine does not need.
func TestStormLosesNoMachine(t *testing.T) {
	need.Long(t)
	harness.Parallel(t)
	kubejoin := filepath.Join(t.TempDir(), "kubejoin")
	if output, err := exec.Command("go", "build", "-o", kubejoin, "github.com/kubejoin/kubejoin/cmd/kubejoin").CombinedOutput(); err != nil {
		t.Fatalf("building kubejoin: %v\n%s", err, output)
	}
	r := must.Value(storm(t.Context(), options{
		kubejoin: kubejoin, machines: 300, replicas: 2, tokens: "both", keys: "P-256,P-384,RSA-2048,RSA-4096", atOnce: 300, heartbeat: 10 * time.Second,
		down: 2 * time.Second, timeout: 5 * time.Minute, progress: t.Output(),
	}))(t)
	r.print(t.Output())
	r.plot(io.Discard)
	if len(r.Problems) > 0 {
		t.Error("got lost machines, double names or nodes over a limit, want none")
	}
	if n := r.Calls[0].Kubejoin; n > mostCalls {
		t.Errorf("got %.2f calls of kubejoin for a machine, want at most %.1f", n, mostCalls)
	}
	if len(r.Marks) != 2 || !strings.Contains(r.Marks[0].What, "killed") {
		t.Errorf("got marks %v, want that the leader was killed and restarted", r.Marks)
	}
	if r.Intruders == 0 || r.Denied != r.Intruders {
		t.Errorf("got %d intruders and %d denied requests, want the same number", r.Intruders, r.Denied)
	}
}

// TestTallyCountsCallsForMachine catches requests from before the storm, requests counted for the wrong sender, and failed
// requests counted like successful ones.
func TestTallyCountsCallsForMachine(t *testing.T) {
	began := time.Now()
	call := func(after time.Duration, user, from, verb, resource, subresource string, status int) (c cluster.Call) {
		c.RequestReceivedTimestamp, c.User.Username, c.SourceIPs = began.Add(after), user, []string{from}
		c.Verb, c.ObjectRef.Resource, c.ObjectRef.Subresource, c.ResponseStatus.Code = verb, resource, subresource, status
		return c
	}
	version := call(1, kubejoinUser, "127.0.1.1", "get", "", "", 200)
	version.RequestURI = "/version?timeout=1s"
	log := []cluster.Call{
		call(-1, kubejoinUser, "127.0.1.1", "get", "nodes", "", 200),
		call(0, kubejoinUser, "127.0.1.1", "get", "nodes", "", 200),
		call(1, kubejoinUser, "127.0.1.1", "get", "nodes", "", 404),
		call(2, kubejoinUser, "127.0.1.2", "get", "nodes", "", 404),
		call(2, "system:node:a", "127.0.0.1", "patch", "nodes", "status", 200),
		version,
	}
	entries := func(yield func(cluster.Call, error) bool) {
		for _, c := range log {
			if !yield(c, nil) {
				return
			}
		}
	}
	kinds, from, err := tally(entries, began, 2)
	want := []calls{{"all", 2, 0.5}, {"get nodes 404", 1, 0}, {"get /version", 0.5, 0}, {"get nodes", 0.5, 0}, {"patch nodes/status", 0, 0.5}}
	if err != nil || !slices.Equal(kinds, want) {
		t.Errorf("got kinds %v, %v, want %v", kinds, err, want)
	}
	if want := map[string]float64{"127.0.0.1": 0.5, "127.0.1.1": 1.5, "127.0.1.2": 0.5}; !maps.Equal(from, want) {
		t.Errorf("got %v by address, want %v", from, want)
	}
	if _, _, err := tally(func(yield func(cluster.Call, error) bool) { yield(cluster.Call{}, io.ErrUnexpectedEOF) }, began, 2); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v for a cut line, want the error", err)
	}
}

// TestKeysAreOfTheirKind catches machines whose keys are not of the kind that the flag selects, and ECDSA keys that
// machines share.
func TestKeysAreOfTheirKind(t *testing.T) {
	for kind, want := range map[string]int{"P-256": 20, "P-384": 20, "RSA-2048": 4} { // number of different keys in 20 calls
		newKey := must.Value(keysOf(kind))(t)
		seen := map[string]bool{}
		for range 20 {
			public := must.Value(newKey())(t).Public()
			seen[string(must.Value(x509.MarshalPKIXPublicKey(public))(t))] = true
			got := ""
			switch key := public.(type) {
			case *ecdsa.PublicKey:
				got = key.Params().Name
			case *rsa.PublicKey:
				got = fmt.Sprintf("RSA-%d", key.N.BitLen())
			}
			if got != kind {
				t.Errorf("got a key of kind %s, want %s", got, kind)
			}
		}
		if len(seen) != want {
			t.Errorf("%s: got %d different keys in 20 calls, want %d", kind, len(seen), want)
		}
	}
	if _, err := keysOf("RSA-1024"); err == nil {
		t.Error("got keys of RSA-1024, want an error")
	}
}

// TestJudgeFindsProblems catches a judge that never finds a problem.
func TestJudgeFindsProblems(t *testing.T) {
	for name, test := range map[string]struct {
		change                    func(e *evidence)
		lost, double, over, again int
	}{
		"all is well":              {change: func(*evidence) {}},
		"no Node":                  {change: func(e *evidence) { delete(e.ready, "a") }, lost: 1},
		"Node of another machine":  {change: func(e *evidence) { e.ready["a"] = "intruder" }, lost: 1},
		"two machines of one name": {change: func(e *evidence) { e.issued = append(e.issued, issued{"spare1", "a", "request-of-intruder"}) }, double: 1, over: 1},
		"request of no machine":    {change: func(e *evidence) { e.issued[0].request = "unknown" }, double: 1},
		"a second request":         {change: func(e *evidence) { e.issued = append(e.issued, issued{"each01", "a", "second-request-of-a"}) }, again: 1},
		"serving certificate":      {change: func(e *evidence) { e.issued = append(e.issued, issued{"", "a", "second-request-of-a"}) }},
		"one over the limit": {change: func(e *evidence) {
			e.issued = append(e.issued, issued{"each01", "d", "request-of-intruder"})
			e.claims["each01"], e.counted["each01"] = []string{"a", "d"}, []string{"a", "d"}
		}, over: 1},
		"a claim over the limit":   {change: func(e *evidence) { e.claims["shared"] = []string{"b", "c", "d"} }, over: 1},
		"a count over the limit":   {change: func(e *evidence) { e.counted["shared"] = []string{"b", "c", "d"} }, over: 1},
		"certificate without slot": {change: func(e *evidence) { e.claims["shared"] = []string{"b"} }, over: 1},
		"certificate not counted":  {change: func(e *evidence) { e.counted["shared"] = []string{"b"} }, over: 1},
	} {
		e := evidence{
			machines: map[string]string{"a": "A", "b": "B", "c": "C"},
			senders:  map[string]string{"request-of-a": "A", "request-of-b": "B", "request-of-c": "C", "second-request-of-a": "A", "request-of-intruder": "intruder"},
			limits:   map[string]int{"each01": 1, "shared": 2, "spare1": 1},
			ready:    map[string]string{"a": "A", "b": "B", "c": "C"},
			issued:   []issued{{"each01", "a", "request-of-a"}, {"shared", "b", "request-of-b"}, {"shared", "c", "request-of-c"}},
			claims:   map[string][]string{"each01": {"a"}, "shared": {"b", "c"}},
			counted:  map[string][]string{"each01": {"a"}, "shared": {"b", "c"}},
		}
		test.change(&e)
		lost, double, over, again := e.judge()
		if len(lost) != test.lost || len(double) != test.double || len(over) != test.over || again != test.again {
			t.Errorf("%s: got lost %q, double %q, over limit %q, %d again, want %d, %d, %d, %d", name, lost, double, over, again, test.lost, test.double, test.over, test.again)
		}
	}
}

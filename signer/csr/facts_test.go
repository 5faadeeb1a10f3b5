package csr_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
)

// countingTransport counts the permissions that are asked for.
type countingTransport struct {
	next  http.RoundTripper
	asked *atomic.Int32
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
		c.asked.Add(1)
	}
	return c.next.RoundTrip(r)
}

func TestFactsCachePermissionForOneSecond(t *testing.T) {
	w := newWorld(t)
	config, err := w.cluster.Config(w.identity)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return countingTransport{next, &asked} })
	facts := &csr.Facts{Client: unlimited(t, config)}
	allowed := func(r approval.Request, subresource string) bool {
		t.Helper()
		ok, err := facts.Allowed(t.Context(), r, mayCreate(subresource))
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	token := approvalRequest()
	start := time.Now()
	for range 100 {
		if !allowed(token, "nodeclient") {
			t.Fatal("not allowed")
		}
	}
	if n := asked.Load(); n != 1 && time.Since(start) < time.Second {
		t.Errorf("asked %d times for one requester", n)
	}
	w.poll("the permission asked for anew", func() bool { allowed(token, "nodeclient"); return asked.Load() > 1 })
	if took := time.Since(start); took < time.Second {
		t.Errorf("asked anew after %s", took)
	}

	// Whoever differs in anything is asked for, and so is everyone who may not.
	others := []approval.Request{token, token, token, token}
	others[0].User = "system:bootstrap:abc124"
	others[1].UserUID = "1"
	others[2].Extra = map[string][]string{"a": {"b"}}
	others[3].Groups = []string{"system:bootstrappers " + bootstrapGroup, "system:authenticated"}
	for i, r := range others {
		before := asked.Load()
		if ok := allowed(r, "nodeclient"); ok != (i < 3) || asked.Load() != before+1 {
			t.Errorf("requester %d: allowed %t, asked %d times", i, ok, asked.Load()-before)
		}
	}
	for range 3 {
		before := asked.Load()
		if allowed(token, "selfnodeclient") || asked.Load() != before+1 {
			t.Errorf("what is not allowed was asked for %d times", asked.Load()-before)
		}
	}
}

// mayCreate is the permission that automatic approval takes.
func mayCreate(subresource string) approval.Permission {
	return approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource}
}

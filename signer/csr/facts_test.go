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

// countingTransport counts SubjectAccessReviews.
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
			t.Fatal("got not allowed, want allowed")
		}
	}
	if n := asked.Load(); n != 1 && time.Since(start) < time.Second {
		t.Errorf("got %d access reviews for one requester within a second, want 1", n)
	}
	w.poll("another access review", func() bool { allowed(token, "nodeclient"); return asked.Load() > 1 })
	if took := time.Since(start); took < time.Second {
		t.Errorf("got another access review after %s, want at least 1s", took)
	}

	// A requester that differs in any field has its own access review. Denials are not cached.
	others := []approval.Request{token, token, token, token}
	others[0].User = "system:bootstrap:abc124"
	others[1].UserUID = "1"
	others[2].Extra = map[string][]string{"a": {"b"}}
	others[3].Groups = []string{"system:bootstrappers " + bootstrapGroup, "system:authenticated"}
	for i, r := range others {
		before := asked.Load()
		if ok := allowed(r, "nodeclient"); ok != (i < 3) || asked.Load() != before+1 {
			t.Errorf("requester %d: got allowed %t after %d access reviews", i, ok, asked.Load()-before)
		}
	}
	for range 3 {
		before := asked.Load()
		if allowed(token, "selfnodeclient") || asked.Load() != before+1 {
			t.Errorf("denied permission: got %d access reviews, want 1", asked.Load()-before)
		}
	}
}

// mayCreate returns the permission that automatic approval requires.
func mayCreate(subresource string) approval.Permission {
	return approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource}
}

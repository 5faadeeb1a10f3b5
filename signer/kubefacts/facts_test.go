package kubefacts_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
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

const bootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

func approvalRequest() approval.Request {
	return approval.Request{User: "system:bootstrap:abc123", Groups: []string{"system:bootstrappers", bootstrapGroup, "system:authenticated"}}
}

// countedFacts returns Facts and how many access reviews they have created.
func countedFacts(t *testing.T) (*kubefacts.Facts, *atomic.Int32) {
	var asked atomic.Int32
	client := newClient(t, func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return countingTransport{next, &asked} })
	})
	wait.Until(t, "the permission of the group", func() bool {
		allowed, err := (&kubefacts.Facts{Client: client}).Allowed(t.Context(), approvalRequest(), mayCreate("nodeclient"))
		return err == nil && allowed
	})
	asked.Store(0)
	return &kubefacts.Facts{Client: client}, &asked
}

func TestFactsCachePermissionForOneSecond(t *testing.T) {
	facts, asked := countedFacts(t)
	allowed := func(r approval.Request, subresource string) bool {
		t.Helper()
		return must.Value(facts.Allowed(t.Context(), r, mayCreate(subresource)))(t)
	}
	token := approvalRequest()
	token.User = "machine"
	start := time.Now()
	for range 100 {
		if !allowed(token, "nodeclient") {
			t.Fatal("got not allowed, want allowed")
		}
	}
	if n := asked.Load(); n != 1 && time.Since(start) < time.Second {
		t.Errorf("got %d access reviews for one requester within a second, want 1", n)
	}
	wait.Until(t, "another access review", func() bool { allowed(token, "nodeclient"); return asked.Load() > 1 })
	if took := time.Since(start); took < time.Second {
		t.Errorf("got another access review after %s, want at least 1s", took)
	}

	// A requester that differs in any field has its own access review. Denials are not cached.
	others := []approval.Request{token, token, token, token}
	others[0].User = "another-machine"
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

// All tokens with the same groups share one access review. Facts must also use a permission that only the user of a
// token has.
func TestTokensShareAccessReview(t *testing.T) {
	facts, asked := countedFacts(t)
	start := time.Now()
	for i := range 100 {
		r := approvalRequest()
		r.User, r.UserUID = fmt.Sprintf("system:bootstrap:abc%03d", i), fmt.Sprint(i)
		if ok, err := facts.Allowed(t.Context(), r, mayCreate("nodeclient")); err != nil || !ok {
			t.Fatalf("token %d: got %t, %v, want allowed", i, ok, err)
		}
	}
	if n := asked.Load(); n != 1 && time.Since(start) < time.Second {
		t.Errorf("got %d access reviews for 100 tokens within a second, want 1", n)
	}
	r := approvalRequest()
	r.User = "system:bootstrap:" + tokens.Generate().ID()
	may := func() bool {
		t.Helper()
		return must.Value(facts.Allowed(t.Context(), r, mayCreate("selfnodeclient")))(t)
	}
	if may() {
		t.Error("before the binding: got allowed, want denied")
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "one-token-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: r.User}},
	}
	must.Value(facts.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}))(t)
	wait.Until(t, "permission of the user", may)
}

// mayCreate returns the permission that automatic approval requires.
func mayCreate(subresource string) approval.Permission {
	return approval.Permission{Verb: "create", Resource: "certificatesigningrequests", Subresource: subresource}
}

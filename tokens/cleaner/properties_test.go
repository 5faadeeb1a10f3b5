package cleaner_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// fakeNodes are Nodes by name. Each Set of an existing Node is recorded.
type fakeNodes struct {
	mu      sync.Mutex
	uids    map[string]string
	tainted []string
	waits   bool
	err     error
	set     []string
	during  func() // nil: nothing
}

// all returns the UIDs of the Nodes by name.
func (f *fakeNodes) all(context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.uids), nil
}

func (f *fakeNodes) Joining(context.Context) ([]string, error) { return f.tainted, nil }

func (f *fakeNodes) Set(_ context.Context, claim tokens.Claim) (uid string, done bool, err error) {
	node, want := claim.Node, claim.Remaining().Node
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uids[node] == "" {
		return "", false, tokens.ErrNotFound
	}
	f.set = append(f.set, node+" "+want.Labels+" "+want.ReadyAfter)
	if f.during != nil {
		f.during()
	}
	if f.err != nil || f.waits {
		return "", false, f.err
	}
	f.tainted = slices.DeleteFunc(f.tainted, func(n string) bool { return n == node })
	return f.uids[node], true, nil
}

// A Node gets the properties before its claim records that, and once. Catches a claim without the Node while its Node waits, so
// that its token could admit another machine, and a Node that is patched again later. Catches a taint that stays because its Node has no claim, and a Node that
// registers again without its properties.
func TestSetsPropertiesBeforeRegistration(t *testing.T) {
	props := tokens.NodeProperties{Labels: "a=b", ReadyAfter: tokens.ReadyAfterServingCertificate}
	const first, again = "n a=b serving-certificate", "n a=b "
	live := func(uid string) *tokens.Claim {
		return &tokens.Claim{Node: "n", TokenID: "abc123", NodeUID: uid, Limits: tokens.Limits{Node: props}}
	}
	waiting := func() *tokens.Claim {
		c := live("u1")
		c.Waits = true
		return c
	}
	for name, test := range map[string]struct {
		claim   *tokens.Claim
		uid     string // of the Node; empty if there is none
		tainted bool
		waits   bool
		err     error
		expired bool // the token
		set     []string
		want    string // the NodeUID of the claim, with "waits", "released", or "none"
	}{
		"registers":                               {claim: live(""), uid: "u1", set: []string{first}, want: "u1"},
		"registers with the taint":                {claim: live(""), uid: "u1", tainted: true, set: []string{first}, want: "u1"},
		"waits":                                   {claim: live(""), uid: "u1", tainted: true, waits: true, set: []string{first}, want: "u1 waits"},
		"waits after its token has expired":       {claim: live(""), uid: "u1", tainted: true, waits: true, expired: true, set: []string{first}, want: "u1 waits"},
		"waits still":                             {claim: waiting(), uid: "u1", waits: true, set: []string{first}, want: "u1 waits"},
		"waits no longer":                         {claim: waiting(), uid: "u1", set: []string{first}, want: "u1"},
		"waits no longer for ready-after":         {claim: waiting(), uid: "u1", tainted: true, set: []string{first}, want: "u1"},
		"waited, registered again":                {claim: waiting(), uid: "u2", tainted: true, set: []string{first}, want: "u2"},
		"waited, registered again, waits":         {claim: waiting(), uid: "u2", tainted: true, waits: true, set: []string{first}, want: "u2 waits"},
		"waited, was deleted":                     {claim: waiting(), want: "released"},
		"registered again, waits":                 {claim: live("u1"), uid: "u2", waits: true, set: []string{again}, want: "u1"},
		"patch fails after its token has expired": {claim: live(""), uid: "u1", err: errors.New("down"), expired: true, set: []string{first}, want: "u1 waits"},
		"never registered, token expired":         {claim: live(""), expired: true, want: "released"},
		"has registered":                          {claim: live("u1"), uid: "u1", want: "u1"},
		"has registered, and has the taint":       {claim: live("u1"), uid: "u1", tainted: true, set: []string{again}, want: "u1"},
		"registered again":                        {claim: live("u1"), uid: "u2", set: []string{again}, want: "u2"},
		"was deleted":                             {claim: live("u1"), want: "released"},
		"registered again after release":          {claim: &tokens.Claim{Node: "n", Past: tokens.ReleasedClaim{Node: props}}, uid: "u2", set: []string{first}, want: "released"},
		"limited token without properties":        {claim: &tokens.Claim{Node: "n", TokenID: "abc123"}, uid: "u1", tainted: true, set: []string{"n  "}, want: "u1"},
		"taint without claim":                     {uid: "u1", tainted: true, set: []string{"n  "}, want: "none"},
		"nothing to do":                           {uid: "u1", want: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := openClaims(t)
				if test.claim != nil {
					if test.claim.Released() {
						test.claim.Past.Until = time.Now().Add(time.Hour).Truncate(time.Second)
					}
					store = openClaims(t, *test.claim)
				}
				if !test.expired {
					must.Value(store.Create(t.Context(), tokens.NewRecord(newToken(t, "abc123"), time.Hour, time.Now())))(t)
				}
				nodes := &fakeNodes{uids: map[string]string{"n": test.uid}, waits: test.waits, err: test.err}
				if test.tainted {
					nodes.tainted = []string{"n"}
				}
				c := cleaner.Claims{
					Store: store.Claims(), Tokens: store, Properties: nodes,
					Node: func(context.Context, string) (string, error) {
						if test.uid == "" {
							return "", tokens.ErrNotFound
						}
						return test.uid, nil
					},
					Nodes: func(context.Context) (map[string]string, error) {
						if test.uid == "" {
							return nil, nil
						}
						return nodes.uids, nil
					},
				}
				cleanClaims(t, c)
				if test.err != nil || test.waits {
					nodes.set = slices.Compact(nodes.set) // retried
				}
				if !slices.Equal(nodes.set, test.set) {
					t.Errorf("got properties %q, want %q", nodes.set, test.set)
				}
				got := "none"
				if claim, err := store.Claims().Get(t.Context(), "n", tokens.Live); err == nil && claim.Released() {
					got = "released"
				} else if err == nil {
					got = claim.NodeUID + map[bool]string{true: " waits"}[claim.Waits]
				}
				if got != test.want {
					t.Errorf("claim: got %q, want %q", got, test.want)
				}
			})
		})
	}
}

// Catches a claim that records its Node before the Node has its properties: after a crash between the two, nobody would set them.
// Also catches a crash after the properties that keeps the claim without its Node, or that sets them without end.
func TestCrashRepeatsProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openClaims(t, tokens.Claim{Node: "n", TokenID: "abc123", Limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b"}}})
		must.Value(store.Create(t.Context(), tokens.NewRecord(newToken(t, "abc123"), 2*time.Hour, time.Now())))(t)
		nodes := &fakeNodes{uids: map[string]string{"n": "u1"}}
		recorded := func() string { return must.Value(store.Claims().Get(t.Context(), "n", tokens.Live))(t).NodeUID }
		nodes.during = func() {
			if uid := recorded(); uid != "" {
				t.Errorf("the claim has the Node %s before its properties are set", uid)
			}
		}
		run := func(claims tokens.Claims) {
			ctx, crash := context.WithTimeout(t.Context(), time.Hour)
			defer crash()
			must.OK(t, cleaner.Claims{
				Store: claims, Tokens: store, Properties: nodes, Nodes: nodes.all,
				Node: func(context.Context, string) (string, error) { return "u1", nil },
			}.Run(ctx))
		}
		run(storetest.Fail(errors.New("crash"), "Claims.Update").Claims(store.Claims()))
		crashed := len(nodes.set)
		if crashed == 0 || recorded() != "" {
			t.Fatalf("before the crash: got %d calls of Set and Node %q in the claim, want calls and none", crashed, recorded())
		}
		run(store.Claims())
		if len(nodes.set) != crashed+1 || recorded() != "u1" {
			t.Errorf("after the crash: got %d more calls of Set and Node %q in the claim, want one and u1", len(nodes.set)-crashed, recorded())
		}
	})
}

// Catches properties that each step sets again on a Node whose claim was released.
func TestSetsPropertiesOfPastOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		past := tokens.ReleasedClaim{Until: time.Now().Add(48 * time.Hour).Truncate(time.Second), Node: tokens.NodeProperties{Labels: "a=b"}}
		store := openClaims(t, tokens.Claim{Node: "n", Past: past})
		nodes := &fakeNodes{uids: map[string]string{"n": "u1"}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		c := cleaner.Claims{
			Store: store.Claims(), Tokens: store, Properties: nodes,
			Node:  func(context.Context, string) (string, error) { return "", errors.New("not expected") },
			Nodes: nodes.all,
		}
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Hour)
		nodes.mu.Lock()
		nodes.uids["n"] = "u2"
		nodes.mu.Unlock()
		time.Sleep(time.Hour)
		cancel()
		must.OK(t, <-done)
		if want := []string{"n a=b ", "n a=b "}; !slices.Equal(nodes.set, want) {
			t.Errorf("got %q, want one for each Node", nodes.set)
		}
	})
}

// A person removes a label of a Node and releases its claim. Catches a label that comes back, although the Node was not deleted.
func TestSetsNothingAgainAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openClaims(t, tokens.Claim{Node: "n", TokenID: "abc123", NodeUID: "u1", Limits: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b"}}})
		nodes := &fakeNodes{uids: map[string]string{"n": "u1"}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		c := cleaner.Claims{
			Store: store.Claims(), Tokens: store, Properties: nodes, Nodes: nodes.all,
			Node: func(context.Context, string) (string, error) { return "u1", nil },
		}
		go func() { done <- c.Run(ctx) }()
		time.Sleep(time.Hour)
		claim := must.Value(store.Claims().Get(t.Context(), "n", tokens.Live))(t)
		must.OK(t, tokens.Release(t.Context(), store.Claims(), claim, claim.PastAfterRelease(time.Now(), 0)))
		time.Sleep(time.Hour)
		cancel()
		must.OK(t, <-done)
		if len(nodes.set) > 0 {
			t.Errorf("got %q, want none", nodes.set)
		}
	})
}

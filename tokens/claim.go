package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxKeys is how many keys may be certified on one claim: a kubelet that starts anew before its
// node has registered makes another one.
const MaxKeys = 3

// A Claim is a node name that was taken with a token that has [Limits]. While it is there no
// other token takes the name. One without TokenID was released: it holds no name, counts for
// nothing, and is there for its Past alone.
type Claim struct {
	// Node is the name.
	Node string
	// TokenID and TokenUID tell which token took it.
	TokenID, TokenUID string
	// Limits are the token's when it took the name. They hold for the token even if its own
	// are erased, and for renewals of the node's certificate when the token is gone.
	Limits Limits
	// Keys are the public keys that have been admitted, at most [MaxKeys]: "sha256:" and the
	// SHA-256 of the SubjectPublicKeyInfo in lower-case hex, as in CA pins.
	Keys []string
	// Requests are the UIDs of the last certificate requests that those keys came with, at most
	// [MaxKeys], the newest last. Requests over HTTPS have no UID.
	Requests []string
	// Pending is set while the token may not have counted the name yet. Nothing is issued on a
	// pending claim, and it can be removed: the issuing side clears Pending first, and only if the
	// claim has not changed.
	Pending bool
	// NodeUID is that of the Node that has registered; empty as long as none is known to have.
	// Where there are no Nodes it is [ByCertificate] instead.
	NodeUID string
	// ReadyBefore identifies the period of being Ready that the Node was in when a token that
	// replaces it took its name, as the Ready of cleaner.Claims returns it; empty if the Node was not Ready.
	ReadyBefore string
	// ReadyAgain is set for good when the replaced Node is seen in another period of being Ready:
	// a machine has taken its place, and the token admits no other.
	ReadyAgain bool
	// Past is what claims that were released before have left.
	Past ReleasedClaim

	// Created, UID and Version are the store's, as with a [Record]. A claim in the place of one
	// that was released is created then, and has its UID.
	Created time.Time
	UID     string
	Version string
}

// Claims keeps claims, one for each node name. Its methods may be called side by side. Errors
// wrap [ErrNotFound], [ErrExists] or [ErrConflict] where these apply; every other error may pass
// by itself, and the write that it is about may have taken effect.
//
// Package tokens/storetest is the suite that every Claims passes, too.
type Claims interface {
	// Get reads one claim as it is now, never from a cache.
	Get(ctx context.Context, node string) (Claim, error)

	// Find is Get that may lag behind writes, and costs next to nothing.
	Find(ctx context.Context, node string) (Claim, error)

	// List gives all claims in the order of their names, those that were released as well. It may
	// lag behind writes.
	List(ctx context.Context) ([]Claim, error)

	// OfToken gives the claims with that TokenID, whatever their TokenUID, in the order of
	// their names, and none that was released. It may lag behind writes, and costs little.
	OfToken(ctx context.Context, id string) ([]Claim, error)

	// HeldBy is OfToken as it is now, never from a cache. It fails if one of the claims cannot be
	// read.
	HeldBy(ctx context.Context, id string) ([]Claim, error)

	// Create stores a claim that passes [Claim.Check] for a name that has none, and returns it with Created, UID and
	// Version set. It is one atomic write: of several at once for a name, one succeeds.
	Create(ctx context.Context, c Claim) (Claim, error)

	// Update reads the claim as it is now, lets change alter it and writes it back if it is
	// still as it was read; otherwise it starts over with a fresh one. A claim that the same Claims
	// has just made may be given to change without being read. An error of change ends
	// it and is returned as it is. It is an error to change Node, Created or UID. Without a
	// difference nothing is written.
	Update(ctx context.Context, node string, change func(*Claim) error) (Claim, error)

	// Delete removes exactly the claim given: one of another UID or Version is left alone, with
	// ErrConflict.
	Delete(ctx context.Context, c Claim) error

	// Watch hints at changes as [Store.Watch] does.
	Watch(ctx context.Context) <-chan struct{}
}

// Check says what is wrong with a claim that is to be stored, or nil.
func (c Claim) Check() error {
	errs := []error{CheckNodeName(c.Node), c.Limits.Check(), c.Past.check()}
	if !c.Released() {
		errs = append(errs, CheckID(c.TokenID))
	} else if c.TokenUID != "" || !c.Limits.IsZero() || len(c.Keys) > 0 || len(c.Requests) > 0 || c.Pending || c.NodeUID != "" || c.ReadyBefore != "" || c.ReadyAgain {
		errs = append(errs, errors.New("a claim that was released has more than its past"))
	}
	for what, words := range map[string][]string{"keys": c.Keys, "requests": c.Requests} {
		if n := len(words); n > MaxKeys {
			errs = append(errs, fieldErrorf(what, "%d given, %d allowed", n, MaxKeys))
		}
		if slices.ContainsFunc(words, func(w string) bool { return w == "" || !isShortWord(w) }) {
			errs = append(errs, fieldErrorf(what, "want words of at most %d bytes without space or comma", maxWord))
		}
	}
	if !isShortWord(c.ReadyBefore) {
		errs = append(errs, fieldErrorf("ready-before", "want a word of at most %d bytes without space or comma", maxWord))
	}
	return errors.Join(errs...)
}

// maxWord is the most bytes of a key, the UID of a request and [Claim.ReadyBefore].
const maxWord = 128

func isShortWord(w string) bool { return len(w) <= maxWord && !strings.ContainsAny(w, ", \n") }

// NewestRequests returns the last [MaxKeys] of requests. Stores use it to read claims of versions
// that kept all of them.
func NewestRequests(requests []string) []string {
	return requests[max(0, len(requests)-MaxKeys):]
}

// Same reports whether both are one claim of one token, changed or not.
func (c Claim) Same(d Claim) bool {
	return c.UID == d.UID && c.TokenID == d.TokenID && c.TokenUID == d.TokenUID
}

// HasKey reports whether a key has been admitted.
func (c Claim) HasKey(key string) bool { return slices.Contains(c.Keys, key) }

// Clone shares nothing with c that can be changed.
func (c Claim) Clone() Claim {
	c.Keys, c.Requests, c.Limits.NodeNames = slices.Clone(c.Keys), slices.Clone(c.Requests), slices.Clone(c.Limits.NodeNames)
	return c
}

// Edit calls change on a copy of c and returns the copy, with the Version of c. It fails if a store
// must not accept the copy in place of c. Implementations of [Claims] use it in Update.
func (c Claim) Edit(change func(*Claim) error) (Claim, error) {
	after := c.Clone()
	if err := change(&after); err != nil {
		return Claim{}, err
	}
	if after.Node != c.Node || after.UID != c.UID || !after.Created.Equal(c.Created) {
		return Claim{}, fmt.Errorf("update claim %s: its Node, Created or UID cannot be changed", c.Node)
	}
	if err := after.Check(); err != nil {
		return Claim{}, fmt.Errorf("update claim %s: %w", c.Node, err)
	}
	after.Created, after.Version = c.Created, c.Version
	return after, nil
}

// Equal reports whether both say the same.
func (c Claim) Equal(d Claim) bool {
	return c.Node == d.Node && c.TokenID == d.TokenID && c.TokenUID == d.TokenUID && c.Limits.Equal(d.Limits) &&
		slices.Equal(c.Keys, d.Keys) && slices.Equal(c.Requests, d.Requests) && c.Pending == d.Pending && c.NodeUID == d.NodeUID &&
		c.ReadyBefore == d.ReadyBefore && c.ReadyAgain == d.ReadyAgain && c.Past.equal(d.Past) &&
		c.Created.Equal(d.Created) && c.UID == d.UID && c.Version == d.Version
}

package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxKeys is the maximum number of keys that one claim admits. More than one is needed because a
// kubelet that restarts before its Node has registered generates another key.
const MaxKeys = 3

// A Claim is a node name held by a token that has [Limits]. While the claim exists, no other token
// can take the name. A claim without TokenID is released: no limit counts the claim, and the name is free unless
// it has a Machine. The store keeps a released claim only for its Past, its Identity and its Machine.
type Claim struct {
	// Node is the node name.
	Node string
	// TokenID and TokenUID identify the token that holds the name.
	TokenID, TokenUID string
	// Limits are the limits that the token had when it took the name. They apply to the token even if somebody erases its
	// own limits, and to renewals of the node's certificate after the token was deleted.
	Limits Limits
	// Keys are the admitted public keys, at most [MaxKeys]. Each is "sha256:" and the SHA-256 of the
	// SubjectPublicKeyInfo in lower-case hex, as in CA pins.
	Keys []string
	// Requests are the UIDs of the last certificate requests with these keys, at most [MaxKeys], the
	// newest last. Requests over HTTPS have no UID.
	Requests []string
	// NodeUID is the UID of the Node that has registered. It is empty until kubejoin sees such a Node.
	// If kubejoin has no access to Nodes, it is [ByCertificate] once the node has joined.
	NodeUID string
	// Waits is set while the Node with NodeUID does not have the [NodeProperties] of the Limits yet.
	Waits bool
	// ReadyBefore is used only if the token replaces a Node. It is the Ready period of the Node at the time when the token
	// took the name, as cleaner.Claims.Ready returns it. It is empty if the Node was not Ready.
	ReadyBefore string
	// ReadyAgain is set once the replaced Node is seen in another Ready period, and is never cleared.
	// It means that a machine has replaced the Node, so the token admits no other machine.
	ReadyAgain bool
	// Past is what remains of earlier, released claims of the name.
	Past ReleasedClaim
	// Identity is how the node proves its identity. A node that joined with a token without limits has an Identity, too, in
	// a released claim.
	Identity Identity
	// Machine is the machine that holds the name with a key of its own.
	Machine Machine

	// Created, UID and Version are set by the store, as in a [Record]. If another token takes the name, the claim keeps its
	// UID and gets a new Created.
	Created time.Time
	UID     string
	Version string
}

// Claims stores claims, at most one for each node name. Together with the [Store] of the tokens, it is the ledger of names
// and slots. Its methods may be called concurrently. Errors wrap [ErrNotFound], [ErrExists] or [ErrConflict] where these
// apply. Every other error may be temporary, and the write that failed with it may have taken effect.
//
// Every Claims must pass the suite in package tokens/storetest.
type Claims interface {
	// Get reads a claim.
	Get(ctx context.Context, node string, read Read) (Claim, error)

	// List returns all claims, including released ones, sorted by node name. It may lag behind writes.
	List(ctx context.Context) ([]Claim, error)

	// HeldBy returns the claims with this TokenID and any TokenUID, sorted by node name. Released claims are not among
	// them. HeldBy fails if it cannot decode one of the claims, except with [Cached].
	HeldBy(ctx context.Context, id string, read Read) ([]Claim, error)

	// Ended reports whether the claim of a token on the name of c has ended. The token then still counts the name, but
	// admits no machine under it. c is the current claim, or a Claim with only Node if the name has no claim. Ended does
	// not read from the store.
	Ended(r Record, c Claim) bool

	// Commit changes a token and claims, and returns the Outcome of each change. before is the token as read; zero Records
	// change no token. The caller must count in after each claim that a token with a node limit will hold, so that no
	// machine is admitted without a slot. If a claim changes its holder or is released, its old token still counts the
	// name, but admits nobody under it. If before counts a name and after does not, Commit frees the slot once the token
	// holds no claim on the name. Each name may occur in only one change. A change with the same Before and After writes
	// nothing, unless it deletes the claim. A Commit that writes nothing need not check for conflicts.
	//
	// If Commit has certainly changed no claim, the outcomes are nil, and the error says why. It wraps ErrConflict or
	// ErrNotFound if the token has changed since it was read. If Commit returns outcomes and an error, a slot that after
	// gives up may still be taken. Commit checks the token like [Store.Update], and claims with [Claim.Check] and
	// [Claim.Edit]. A new claim gets new values of Created, UID and Version. A changed claim gets a new Version, and with a
	// new holder a new Created.
	Commit(ctx context.Context, before, after Record, changes []ClaimChange) ([]Outcome, error)

	// Watch sends hints about changes, like [Store.Watch].
	Watch(ctx context.Context) <-chan struct{}
}

// A ClaimChange is a claim before and after a change. Before is the claim that was read, or the zero Claim for a new one.
// An After that is [Claim.Empty] deletes the claim.
type ClaimChange struct{ Before, After Claim }

// An Outcome is the result of a [ClaimChange] in a Commit.
type Outcome struct {
	// Claim is the stored claim if Err is nil.
	Claim Claim
	// Err is nil if the claim is stored, and a token with a node limit counts it. Err wraps [ErrConflict] if the claim or
	// the count has changed since it was read, for example because another token was faster: read both again. It wraps
	// [ErrExists] if an object that is not a claim has the name, which only a person can solve. Any other error may be
	// temporary.
	Err error
}

// OwnName is the beginning of the names of all other objects that kubejoin stores in the namespace of claims.
const OwnName = "kubejoin"

// IsOwnName reports whether a name is reserved for kubejoin's own objects: [OwnName] itself, or OwnName followed by a
// hyphen. No claim can have such a name, because its Lease would have the name of that object. So no node can join under
// such a name.
func IsOwnName(name string) bool { return name == OwnName || strings.HasPrefix(name, OwnName+"-") }

// Check returns an error if a store must not accept the claim. It joins all errors.
func (c Claim) Check() error {
	errs := []error{CheckNodeName(c.Node), checkNotOwn(c.Node), c.Limits.Check(), c.Past.check(), c.Identity.check(), c.Machine.check(c.Node)}
	rest := c.AfterRelease(c.Past)
	rest.Identity = c.Identity
	if !c.Released() {
		errs = append(errs, CheckID(c.TokenID))
	} else if !c.Equal(rest) {
		errs = append(errs, errors.New("want no other fields than past, identity and machine in a released claim"))
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

func checkNotOwn(node string) error {
	if IsOwnName(node) {
		return fmt.Errorf("node name %s, want another one: kubejoin's own Leases are named %s or %s-…", node, OwnName, OwnName)
	}
	return nil
}

// maxWord is the maximum length, in bytes, of a key, the UID of a request and [Claim.ReadyBefore].
const maxWord = 128

func isShortWord(w string) bool { return len(w) <= maxWord && !strings.ContainsAny(w, ", \n") }

// NewestRequests returns the last [MaxKeys] of requests. Stores use it to read claims from earlier versions of kubejoin,
// which kept all requests.
func NewestRequests(requests []string) []string {
	return requests[max(0, len(requests)-MaxKeys):]
}

// Same reports whether c and d are the same claim of the same token, possibly at different times.
func (c Claim) Same(d Claim) bool {
	return c.UID == d.UID && c.TokenID == d.TokenID && c.TokenUID == d.TokenUID
}

// HasKey reports whether the claim has admitted a key.
func (c Claim) HasKey(key string) bool { return slices.Contains(c.Keys, key) }

// Clone returns a copy that shares no slice with c.
func (c Claim) Clone() Claim {
	c.Keys, c.Requests, c.Limits.NodeNames = slices.Clone(c.Keys), slices.Clone(c.Requests), slices.Clone(c.Limits.NodeNames)
	c.Limits.Rules, c.Identity = slices.Clone(c.Limits.Rules), c.Identity.clone()
	return c
}

// Edit calls change on a copy of c and returns the copy, with the Version of c. It fails if a store
// must not accept the copy in place of c. Implementations of [Claims] use it in Commit.
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

// Equal reports whether all fields of c and d are equal. An empty slice equals nil.
func (c Claim) Equal(d Claim) bool {
	return c.Node == d.Node && c.TokenID == d.TokenID && c.TokenUID == d.TokenUID && c.Limits.Equal(d.Limits) &&
		slices.Equal(c.Keys, d.Keys) && slices.Equal(c.Requests, d.Requests) && c.NodeUID == d.NodeUID && c.Waits == d.Waits &&
		c.ReadyBefore == d.ReadyBefore && c.ReadyAgain == d.ReadyAgain && c.Past.equal(d.Past) && c.Identity.Equal(d.Identity) && c.Machine.equal(d.Machine) &&
		c.Created.Equal(d.Created) && c.UID == d.UID && c.Version == d.Version
}

package secretstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/kube/freshness"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// ClaimNamespace is the namespace in which kubejoin stores the Leases of claims. It also contains the Lease
// for the leader election of kubejoin's replicas.
const ClaimNamespace = "kubejoin-system"

// Claims is a [tokens.Claims] of the Leases in one namespace with the label kubejoin.io/claim=true or
// kubejoin.io/claim=released. List and reads with [tokens.Cached] use a cache that watches the API server. Reads
// with [tokens.Recent] use it while a Lease with the label kubejoin.io/claim=proof proves that it is current. All other
// calls send requests to the API server. When Watch sends a hint, the change is already in the cache.
//
// A Lease without this label is not a claim, but nobody can claim its name. The same is true for a malformed
// claim: List and a cached HeldBy omit it, and Get and HeldBy return an error that does not wrap
// [tokens.ErrNotFound].
type Claims struct {
	tokens    tokens.Store
	leases    typedcoordinationv1.LeaseInterface
	namespace string
	cache     *kubecache.Cache[*coordinationv1.Lease, *cachedClaim]

	heldByCalls batch.Queue[struct{}, *heldBy]
	fresh       freshness.Freshness
	proof       *coordinationv1.Lease // the last one that touchProof wrote
	proofs      tokens.Hints          // sent when the watch shows one
	restored    bool                  // writeProof has found errRestored
}

// A cachedClaim is a Lease that the watch of claims selects.
type cachedClaim struct {
	tokens.Claim
	problem error  // why the Lease is not a claim
	tokenID string // from the label; set for a malformed claim, too
}

func decodeCached(lease *coordinationv1.Lease) (*cachedClaim, error) {
	c, err := DecodeClaim(lease)
	return &cachedClaim{c, err, lease.Labels[tokenIDLabel]}, nil
}

var _ tokens.Claims = (*Claims)(nil)

// OpenClaims returns a Claims that watches the claims in a namespace until ctx ends. After that, List
// and cached reads fail. OpenClaims does not wait for the API server, but they do. The identity of
// client needs the verbs get, list, watch, create, update, patch and delete on Leases in the namespace.
//
// The tokens are in store. With nil, Commit fails.
//
// kubejoin uses [ClaimNamespace]. If the namespace does not exist, no claim can be created, and no machine
// can join with a token that has limits.
//
// Claims logs malformed claims, once for each of their changes, and failures to watch the API server. If log
// is nil, it logs nothing.
func OpenClaims(ctx context.Context, client kubernetes.Interface, store tokens.Store, namespace string, log *slog.Logger) (*Claims, error) {
	if namespace == "" {
		return nil, errors.New("watch claims: no namespace given")
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	leases := client.CoordinationV1().Leases(namespace)
	s := &Claims{tokens: store, leases: leases, namespace: namespace}
	s.cache = kubecache.Open(ctx, client, labelled{leases}, "", kubecache.Config[*coordinationv1.Lease, *cachedClaim]{
		What:   "claims",
		Decode: decodeCached,
		Groups: func(c *cachedClaim) []string {
			if c.tokenID == "" { // a released claim, or no claim
				return nil
			}
			return []string{c.tokenID}
		},
		Same: func(before, now *cachedClaim) bool {
			return errors.Is(before.problem, ErrNoClaim) && errors.Is(now.problem, ErrNoClaim)
		},
		Changed: func(_ string, c *cachedClaim, _ error) {
			switch {
			case errors.Is(c.problem, ErrNoClaim):
				s.proofs.Send()
			case c.problem != nil:
				log.Warn("malformed claim", "problem", safetext.Text(c.problem.Error(), safetext.MaxMessage))
			}
		},
		Log: log,
	})
	s.fresh = freshness.Freshness{
		What: "claims", Log: log,
		Prove: func() (freshness.Current, error) { return s.writeProof(ctx) },
		Price: func() int { return 4 },
	}
	return s, nil
}

const claimSelector = claimLabel + " in (" + held + "," + released + "," + proof + ")"

// labelled lists and watches claims only, so that the API server does not send other Leases.
type labelled struct {
	leases typedcoordinationv1.LeaseInterface
}

func (l labelled) List(ctx context.Context, options metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	options.LabelSelector = claimSelector
	return l.leases.List(ctx, options)
}

func (l labelled) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector = claimSelector
	return l.leases.Watch(ctx, options)
}

// Get implements [tokens.Claims]. With [tokens.Cached] it waits, like List, until the cache is filled or ctx ends.
func (s *Claims) Get(ctx context.Context, node string, read tokens.Read) (tokens.Claim, error) {
	if read == tokens.Cached || read == tokens.Recent && s.fresh.Proves(node, "") { // the cache is now at least as new as the proof
		return s.find(ctx, node)
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return tokens.Claim{}, fmt.Errorf("get claim: %w", err)
	}
	lease, err := s.leases.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("%w: no such Lease in %s", tokens.ErrNotFound, s.namespace)
		}
		return tokens.Claim{}, fmt.Errorf("get claim %s: %w", node, err)
	}
	c, err := DecodeClaim(lease)
	switch {
	case errors.Is(err, ErrNoClaim):
		return tokens.Claim{}, fmt.Errorf("get claim %s: %w: %w", node, tokens.ErrNotFound, err)
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("get claim %s: %w", node, err)
	}
	return c, nil
}

// find returns the cached claim of a node.
func (s *Claims) find(ctx context.Context, node string) (tokens.Claim, error) {
	if err := tokens.CheckNodeName(node); err != nil {
		return tokens.Claim{}, fmt.Errorf("find claim: %w", err)
	}
	found, err := s.cache.Get(ctx, node)
	switch {
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("find claim %s: %w", node, err)
	case found == nil:
		return tokens.Claim{}, fmt.Errorf("find claim %s: %w: no such Lease in %s", node, tokens.ErrNotFound, s.namespace)
	case errors.Is(found.Value.problem, ErrNoClaim):
		return tokens.Claim{}, fmt.Errorf("find claim %s: %w: %w", node, tokens.ErrNotFound, found.Value.problem)
	case found.Value.problem != nil:
		return tokens.Claim{}, fmt.Errorf("find claim %s: %w", node, found.Value.problem)
	}
	return found.Value.Clone(), nil
}

// List implements [tokens.Claims].
func (s *Claims) List(ctx context.Context) ([]tokens.Claim, error) {
	return cloned(s.cache.List(ctx))
}

// ofToken returns the cached Leases with the label of a token: its claims, and malformed claims.
func (s *Claims) ofToken(ctx context.Context, id string) ([]*cachedClaim, error) {
	cached, err := s.cache.Grouped(ctx, id)
	return slices.DeleteFunc(cached, func(c *cachedClaim) bool { return c.problem == nil && c.TokenID != id }), err
}

// HeldBy implements [tokens.Claims].
func (s *Claims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	if err := tokens.CheckID(id); err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	if read == tokens.Cached || read == tokens.Recent && s.fresh.Proves(holderKey(id), "") {
		cached, err := s.ofToken(ctx, id)
		if read == tokens.Cached || err == nil && !slices.ContainsFunc(cached, func(c *cachedClaim) bool { return c.problem != nil }) {
			return cloned(cached, err)
		}
	}
	return s.heldBy(ctx, id)
}

// holderKey returns the key of a token ID in Claims.fresh. No node name has a space.
func holderKey(id string) string { return "token " + id }

// A heldBy is one call of HeldBy with its result.
type heldBy struct {
	id     string
	claims []tokens.Claim
	err    error
}

// tokensPerList is how many token IDs one list request selects. The selector must fit into a URL.
const tokensPerList = 200

// heldBy reads the claims of a token live. Concurrent calls share a list request. If many machines join, each with
// its own token, one list request for each of them would cost more than creating their claims.
func (s *Claims) heldBy(ctx context.Context, id string) ([]tokens.Claim, error) {
	q := &heldBy{id: id}
	if err := s.heldByCalls.Do(ctx, struct{}{}, q, s.listHeldBy); err != nil {
		return nil, fmt.Errorf("list claims of token %s: %w", id, err)
	}
	return q.claims, q.err
}

// listHeldBy sets the results of calls of HeldBy. It lists the claims after these calls began, so the results
// are current.
func (s *Claims) listHeldBy(ctx context.Context, all []*heldBy) {
	for part := range slices.Chunk(all, tokensPerList) {
		ids := map[string][]*heldBy{}
		for _, q := range part {
			ids[q.id] = append(ids[q.id], q)
		}
		selector := claimLabel + "=" + held + "," + tokenIDLabel + " in (" + strings.Join(slices.Sorted(maps.Keys(ids)), ",") + ")"
		list, err := s.leases.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			for _, q := range part {
				q.err = fmt.Errorf("list claims of token %s: %w", q.id, err)
			}
			continue
		}
		for i := range list.Items { // sorted by name
			lease := &list.Items[i]
			c, err := DecodeClaim(lease)
			for _, q := range ids[lease.Labels[tokenIDLabel]] {
				switch {
				case err != nil:
					q.err = errors.Join(q.err, fmt.Errorf("list claims of token %s: %w", q.id, err))
				case c.TokenID == q.id:
					q.claims = append(q.claims, c.Clone())
				}
			}
		}
	}
}

// cloned returns copies of the valid claims among cached Leases.
func cloned(cached []*cachedClaim, err error) ([]tokens.Claim, error) {
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	all := make([]tokens.Claim, 0, len(cached))
	for _, c := range cached {
		if c.problem == nil {
			all = append(all, c.Clone())
		}
	}
	return all, nil
}

// leases is the Claims that [Steps] writes to. Its Commit writes one Lease and no token.
type leases struct{ *Claims }

func (s leases) Commit(ctx context.Context, _, _ tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	var o tokens.Outcome
	switch c := changes[0]; {
	case c.Before.Version == "":
		o.Claim, o.Err = s.create(ctx, c.After)
	case c.After.Empty():
		o.Claim, o.Err = c.After, s.delete(ctx, c.Before)
	default:
		after, err := c.Before.Edit(func(now *tokens.Claim) error { *now = c.After.Clone(); return nil })
		if o.Err = err; err == nil {
			o.Claim, o.Err = s.patch(ctx, c.Before, after)
		}
	}
	return []tokens.Outcome{o}, nil
}

// create creates a Lease. The error wraps ErrExists if there is one, which may not be a claim.
func (s *Claims) create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	if err := c.Check(); err != nil {
		return tokens.Claim{}, fmt.Errorf("create claim %.253s: %w", c.Node, err)
	}
	defer s.fresh.Wrote(c.Node, holderKey(c.TokenID))
	lease, err := s.leases.Create(ctx, encodeLease(s.namespace, c), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return tokens.Claim{}, fmt.Errorf("create claim %s: %w: Lease %s/%s", c.Node, tokens.ErrExists, s.namespace, c.Node)
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("create claim %s: %w", c.Node, s.notCreated(err))
	}
	return DecodeClaim(lease)
}

// patch writes a claim over the version before. It does not change labels, annotations and fields that others have set. The
// error wraps ErrConflict if the claim has changed or is gone.
func (s *Claims) patch(ctx context.Context, before, after tokens.Claim) (tokens.Claim, error) {
	patch, err := patchLease(before, after)
	if err != nil {
		return tokens.Claim{}, fmt.Errorf("update claim %s: %w", after.Node, err)
	}
	defer s.fresh.Wrote(after.Node, holderKey(before.TokenID), holderKey(after.TokenID))
	lease, err := s.leases.Patch(ctx, after.Node, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), hasOtherUID(err):
		return tokens.Claim{}, fmt.Errorf("update claim %s: %w: %w", after.Node, tokens.ErrConflict, err)
	case err != nil:
		return tokens.Claim{}, fmt.Errorf("update claim %s: %w", after.Node, err)
	}
	return DecodeClaim(lease)
}

// hasOtherUID reports whether the API server refused a patch because the object has another UID. It does so with 422.
func hasOtherUID(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// delete deletes the Lease of a claim. The error wraps ErrConflict if the claim has changed or is gone.
func (s *Claims) delete(ctx context.Context, c tokens.Claim) error {
	if err := tokens.CheckNodeName(c.Node); err != nil {
		return fmt.Errorf("delete claim: %w", err)
	}
	defer s.fresh.Wrote(c.Node, holderKey(c.TokenID))
	uid := types.UID(c.UID)
	err := s.leases.Delete(ctx, c.Node, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &c.Version},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return fmt.Errorf("delete claim %s: %w: %w", c.Node, tokens.ErrConflict, err)
	case err != nil:
		return fmt.Errorf("delete claim %s: %w", c.Node, err)
	}
	return nil
}

// Ended implements [tokens.Claims].
func (s *Claims) Ended(r tokens.Record, c tokens.Claim) bool { return Steps{}.Ended(r, c) }

// Commit implements [tokens.Claims], in [Steps].
func (s *Claims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	if s.tokens == nil {
		return nil, errors.New("commit claims: opened without a store of tokens")
	}
	return Steps{leases{s}, s.tokens}.Commit(ctx, before, after, changes)
}

// Watch implements [tokens.Claims].
func (s *Claims) Watch(ctx context.Context) <-chan struct{} { return s.cache.Watch(ctx) }

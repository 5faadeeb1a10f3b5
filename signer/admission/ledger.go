package admission

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Only this file reads and writes tokens, claims and Nodes. A decision reads facts, plans and commits, before a certificate
// is signed and after it. If others have changed something since the read, it starts over.

// attempts is how often a decision starts over while others change the same claim or token.
const attempts = 10

// countTimeout is the timeout for a decision about requests with one token. Other requests with it wait meanwhile.
const countTimeout = 30 * time.Second

// facts are what a decision about a node name depends on.
type facts struct {
	rules
	claim   tokens.Claim // the claim of the name; without one, it has only Node
	cached  bool         // the claim may be old: it is enough for a write, which fails if it is old
	foreign bool         // an object that is not a claim has the name
	ended   bool         // the token counts the name, but its claim has ended
	nodeUID string       // the UID of the Node that has the name, or empty
	ready   string       // result of Nodes.Ready for the Node that the token replaces
	err     error        // why the facts are missing
}

// facts returns the facts about a name of which nothing was read.
func (n *Nodes) facts(node string) facts {
	return facts{claim: tokens.Claim{Node: node}, rules: n.rules()}
}

// rules returns the rules at this moment.
func (n *Nodes) rules() rules {
	r := rules{
		nodes: n.Node != nil, existing: n.AllowExisting, reserved: n.Reserved, retention: cmp.Or(max(n.Retention, 0), DefaultRetention),
		window: n.RejoinWindow, budget: min(cmp.Or(n.RejoinBudget, DefaultRejoinBudget), tokens.MaxRejoins), now: time.Now(),
	}
	if n.Now != nil {
		r.now = n.Now()
	}
	return r
}

// startOver calls decide until it returns another error than one for which changed is true.
func startOver(what string, decide func(try int) error) error {
	for try := range attempts {
		if err := decide(try); !changed(err) {
			return err
		}
	}
	return fmt.Errorf("%s changed during each of %d attempts", what, attempts)
}

// changed reports whether a write failed because another writer changed or deleted something first.
func changed(err error) bool {
	return errors.Is(err, tokens.ErrNotFound) || errors.Is(err, tokens.ErrConflict)
}

// settle decides about the claim of one name, for a requester that is no token with limits. Facts from a cache refuse
// nothing, and do not leave the claim as it is. The result has the claim as stored.
func (n *Nodes) settle(ctx context.Context, f facts, decide func(facts) plan) (a Admitted, err error) {
	node := f.claim.Node
	err = startOver("claim of node "+node+":", func(try int) error {
		if try > 0 {
			f = n.live(ctx, node)
		}
		if f.err != nil {
			return f.err
		}
		p := decide(f)
		changes := !p.next.Equal(f.claim)
		if f.cached && (p.err != nil || !changes) {
			return tokens.ErrConflict
		}
		if a = p.admitted; changes {
			outcomes, err := n.commit(ctx, token{}, tokens.Record{}, []facts{f}, []plan{p})
			if err != nil {
				return fmt.Errorf("claim of node %s: %w", node, err)
			}
			if p.next = outcomes[0].Claim; outcomes[0].Err != nil {
				return outcomes[0].Err
			}
		}
		a.claim = p.next
		return p.err
	})
	return a, err
}

// StoreIdentity stores a certificate with the claim of its node, so that the node can rejoin with its key after the
// certificate has expired. Call it when the certificate is made, and do not return the certificate if it fails. Without
// RejoinWindow, or if the certificate is no client certificate of a node, it does nothing. For a node that rejoins, it sets
// a.Fingerprint to that of the certificate which this one replaces. For each node that has a bound key, it sets a.BoundBy.
//
// If the certificate that authenticated the request is not of the claim's identity, StoreIdentity leaves the identity as it
// is. A node without a claim gets a released one, which leaves the name free.
func (n *Nodes) StoreIdentity(ctx context.Context, checked CheckedRequest, a *Admitted, cert *x509.Certificate) error {
	r := checked.request
	if n == nil || n.RejoinWindow <= 0 || n.Claims == nil || n.dry || r.CSR == nil {
		return nil
	}
	node, ok := nodeOf(r)
	if !ok || tokens.CheckNodeName(node) != nil || tokens.IsOwnName(node) {
		return nil
	}
	made := tokens.Identity{
		NodeUID: a.nodeUID, NotAfter: cert.NotAfter.UTC().Truncate(time.Second), TokenID: tokens.IDOfUser(r.User),
		Credentials: []tokens.Credential{{Key: pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo), Fingerprint: string(revocation.FingerprintOf(cert))}},
	}
	f := n.facts(node)
	f.claim, f.nodeUID, f.cached = a.claim, a.nodeUID, true
	stored, err := n.settle(ctx, f, func(f facts) plan { return planCertificate(f, r, *a, made) })
	if err != nil {
		return fmt.Errorf("store identity of node %s: %w", node, err)
	}
	*a = stored
	return nil
}

// A bid is a request for a node name with a token, and its outcome.
type bid struct {
	request  approval.Request
	node     string
	foreign  bool   // an attempt has found an object that is not a claim under the name
	tokenUID string // the UID of the token for which a commit was tried
	admitted Admitted
	err      error
}

// decide decides about all bids for a token, at once about those whose names differ.
func (n *Nodes) decide(ctx context.Context, id string, all []*bid) {
	for len(all) > 0 {
		var now, later []*bid
		names := map[string]bool{}
		for _, b := range all {
			if names[b.node] {
				later = append(later, b)
			} else {
				now = append(now, b)
			}
			names[b.node] = true
		}
		err := startOver("token "+id+": it or the claims of its nodes", func(try int) error {
			again, err := n.try(ctx, id, now, try)
			if err == nil && len(again) > 0 {
				now, err = again, tokens.ErrConflict
			}
			return err
		})
		if err != nil {
			for _, b := range now {
				b.err = err
			}
		}
		all = later
	}
}

// errStale means that the cached token is not enough to decide. Nothing was written.
var errStale = fmt.Errorf("the cached token %w", tokens.ErrConflict)

// try returns the bids that must start over. If it fails with an error for which changed is true, all must. The first try
// reads the token from the cache, and refuses nothing, because its write fails if the cache is stale.
func (n *Nodes) try(ctx context.Context, id string, all []*bid, try int) (again []*bid, err error) {
	cached := try == 0 && !n.dry
	t, err := n.token(ctx, id, cached, all)
	if err != nil {
		return nil, err
	}
	seen := make([]facts, len(all))
	var reading sync.WaitGroup
	for i, b := range all {
		// Refuse first what needs no other read: a refused kubelet retries about a hundred times an hour.
		seen[i] = n.facts(b.node)
		if seen[i].err = seen[i].allows(t.restored, *b); seen[i].err == nil {
			reading.Go(func() { seen[i] = n.look(ctx, t.restored, b.node, b.foreign, try > 1 || n.dry) })
		}
	}
	reading.Wait()
	after, plans := planAll(n.rules(), t.restored, all, seen)
	if cached && slices.ContainsFunc(plans, func(p plan) bool { return approval.Refused(p.err) != nil }) {
		return nil, errStale
	}
	for _, b := range all {
		if b.tokenUID = t.stored.UID; after.Limits.IsZero() {
			b.tokenUID = ""
		}
	}
	outcomes, err := n.commit(ctx, t, after, seen, plans)
	if err != nil {
		return nil, fmt.Errorf("update node count of token %s: %w", id, err)
	}
	for i, b := range all {
		switch o := outcomes[i]; {
		case changed(o.Err), errors.Is(o.Err, tokens.ErrExists):
			b.foreign, again = b.foreign || errors.Is(o.Err, tokens.ErrExists), append(again, b)
		case o.Err != nil:
			b.err = o.Err
		default:
			b.admitted, b.err = plans[i].admitted, plans[i].err
			b.admitted.claim = o.Claim
		}
	}
	return again, nil
}

// A token is a token as the store has it, and with what it has lost: restrictions that were erased, and names that are
// missing in the count. The claims of the token ID have both.
type token struct{ stored, restored tokens.Record }

// token reads a token. A record without a node limit or without counted names may have lost them, or may be another token
// under the same ID. Then token reads the claims live, after the record. Otherwise the cached claims only decide whether to
// read them live.
func (n *Nodes) token(ctx context.Context, id string, cached bool, all []*bid) (t token, err error) {
	if !cached {
		t.stored, err = n.Tokens.Get(ctx, id, tokens.Live)
	} else if t.stored, err = n.Tokens.Get(ctx, id, tokens.Cached); err != nil || needsLive(t.stored, all) {
		return t, errStale
	}
	switch {
	case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
		return t, refuseToken(ReasonTokenRevoked, another, "token %.6s does not exist: it was deleted or has expired", id)
	case err != nil:
		return t, fmt.Errorf("token %s: %w", id, err)
	case t.stored.Problem != nil || t.stored.Limits.Problem != nil:
		t.restored = t.stored
		return t, nil
	}
	read := tokens.Live
	if t.stored.Limits.NodeLimit() > 0 && len(t.stored.Nodes) > 0 {
		read = tokens.Cached
	}
	for {
		claims, err := n.Claims.HeldBy(ctx, id, read)
		if err != nil {
			return t, fmt.Errorf("claims of token %s: %w", id, err)
		}
		t.restored = t.stored.Clone()
		if !restrict(&t.restored, claims) || read == tokens.Live {
			return t, nil
		}
		read = tokens.Live
	}
}

// needsLive reports whether no write on a cached token can admit these bids.
func needsLive(cached tokens.Record, all []*bid) bool {
	return cached.Limits.NodeLimit() == 0 || cached.Limits.Replaces != (tokens.NodeRef{}) ||
		slices.ContainsFunc(all, func(b *bid) bool { return slices.Contains(cached.Nodes, b.node) })
}

// recentlyAllows returns the record of a token that allows the request and has no limits, neither by its record nor by its
// claims. A token without limits reserves nothing, so record and claims may be up to [tokens.MaxAge] old. If the record is
// nil, the caller decides by live reads.
func (n *Nodes) recentlyAllows(ctx context.Context, id string, r approval.Request, node string) (*tokens.Record, error) {
	// The cached record only selects where to start.
	if record, err := n.Tokens.Get(ctx, id, tokens.Cached); err != nil || !record.Limits.IsZero() {
		return nil, nil
	}
	record, err := n.Tokens.Get(ctx, id, tokens.Recent)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("token %s: %w", id, err)
	case !record.Limits.IsZero() || n.rules().check(record, r, node) != nil:
		return nil, nil
	}
	claims, err := n.Claims.HeldBy(ctx, id, tokens.Recent)
	if err != nil {
		return nil, fmt.Errorf("claims of token %s: %w", id, err)
	}
	if restrict(&record, claims) {
		return nil, nil
	}
	return &record, nil
}

// look reads the facts about a name that a token requests: its claim, then its Node.
func (n *Nodes) look(ctx context.Context, record tokens.Record, node string, foreign, live bool) facts {
	f := n.facts(node)
	f.foreign = foreign
	read := tokens.Cached
	if record.Limits.IsZero() { // no write follows if the name is free
		read = tokens.Recent
	}
	// The claim is read live unless the cache has none. If the cache is wrong about that, the write fails.
	live = live || slices.Contains(record.Nodes, node)
	if !live {
		f.claim, f.err = n.claim(ctx, node, read)
	}
	if f.err == nil && (live || f.claim.Version != "") {
		f.claim, f.err = n.claim(ctx, node, tokens.Live)
	}
	if f.err != nil {
		return f
	}
	f.ended = n.Claims != nil && n.Claims.Ended(record, f.claim)
	ref := record.Limits.Replaces
	if n.AllowExisting && ref == (tokens.NodeRef{}) && f.claim.NodeUID == "" && f.claim.Machine.IsZero() {
		return f
	}
	// After the claim: a Node that the claim has, and that does not exist now, was deleted.
	if f.nodeUID, f.err = n.uidOf(ctx, node); f.nodeUID != "" && (ref == (tokens.NodeRef{Name: node, UID: f.nodeUID}) || !f.claim.Machine.IsZero()) {
		f.ready, f.err = n.readyOf(ctx, node)
	}
	return f
}

// live reads the claim of a name live, then its Node. For the Node of a machine, it also reads whether the Node is Ready.
func (n *Nodes) live(ctx context.Context, node string) facts {
	f := n.facts(node)
	if f.claim, f.err = n.claim(ctx, node, tokens.Live); f.err == nil {
		f.nodeUID, f.err = n.uidOf(ctx, node)
	}
	if f.err == nil && f.nodeUID != "" && !f.claim.Machine.IsZero() {
		f.ready, f.err = n.readyOf(ctx, node)
	}
	return f
}

// readyOf returns the result of Ready; empty if the Node does not exist.
func (n *Nodes) readyOf(ctx context.Context, node string) (period string, err error) {
	if n.Ready != nil {
		period, err = n.Ready(ctx, node)
	}
	if errors.Is(err, tokens.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("node %s: %w", node, err)
	}
	return period, nil
}

// claim reads the claim of a name. Without one, it has only Node.
func (n *Nodes) claim(ctx context.Context, node string, read tokens.Read) (c tokens.Claim, err error) {
	err = tokens.ErrNotFound
	if n.Claims != nil {
		c, err = n.Claims.Get(ctx, node, read)
	}
	if errors.Is(err, tokens.ErrNotFound) {
		return tokens.Claim{Node: node}, nil
	}
	if err != nil {
		return c, fmt.Errorf("claim of node %s: %w", node, err)
	}
	return c, nil
}

// uidOf returns the UID of a Node, or nothing if it does not exist.
func (n *Nodes) uidOf(ctx context.Context, node string) (string, error) {
	if n.Node == nil {
		return "", nil
	}
	uid, err := n.Node(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("node %s: %w", node, err)
	}
	return uid, nil
}

// commit writes plans, unless this is a dry run, and returns the outcome of each. after is the planned token.
func (n *Nodes) commit(ctx context.Context, t token, after tokens.Record, seen []facts, plans []plan) ([]tokens.Outcome, error) {
	all := make([]tokens.Outcome, len(plans))
	var changes []tokens.ClaimChange
	var at []int // of each change in plans
	for i, p := range plans {
		all[i].Claim = p.next
		// A claim that stays as it is counts only if the store still counts its name.
		if p.err == nil && !p.next.Released() || !p.next.Equal(seen[i].claim) {
			changes, at = append(changes, tokens.ClaimChange{Before: seen[i].claim, After: p.next}), append(at, i)
		}
	}
	before, mended := t.stored, !t.stored.Limits.Equal(t.restored.Limits) || len(t.stored.Nodes) != len(t.restored.Nodes)
	switch {
	case after.Limits.IsZero():
		before, after = tokens.Record{}, tokens.Record{}
	case after.Limits.NodeLimit() == 0: // it counts nobody
		after, mended = before, false
	}
	if n.dry || len(changes) == 0 && !mended && len(before.Nodes) == len(after.Nodes) {
		return all, nil
	}
	outcomes, err := n.Claims.Commit(ctx, before, after, changes)
	if err != nil && len(outcomes) == 0 {
		return nil, err
	}
	if mended {
		n.counts.WithLabelValues("repaired").Inc()
		n.log.Warn("bootstrap token had lost limits or node names, restored from its claims", "token", before.Token.ID())
	}
	for i, o := range outcomes {
		if all[at[i]] = o; o.Err == nil {
			n.report(seen[at[i]].claim, plans[at[i]], o.Claim)
		}
	}
	for i, p := range plans {
		if p.lost && err != nil && all[i].Err == nil { // a refusal would be final
			all[i].Err = fmt.Errorf("token %s may still count node name %s: %w", before.Token.ID(), seen[i].claim.Node, err)
		}
	}
	return all, nil
}

// report logs and counts a change of a claim that was written.
func (n *Nodes) report(before tokens.Claim, p plan, after tokens.Claim) {
	if p.vacates {
		n.log.Info("claim released, its Node was deleted", "node", tokens.Redact(before.Node), "token", before.TokenID)
		n.counts.WithLabelValues("released").Inc()
	}
	switch p.change {
	case "":
		return
	case made:
		n.log.Info("node name claimed", "node", tokens.Redact(after.Node), "token", after.TokenID)
	default:
		n.log.Warn("node name claim changed", "change", p.change, "node", tokens.Redact(after.Node), "token", after.TokenID, "keys", len(after.Keys))
	}
	n.counts.WithLabelValues(p.change).Inc()
}

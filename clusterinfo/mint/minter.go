package mint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// DefaultSignTimeout is the default of Minter.SignTimeout.
const DefaultSignTimeout = 30 * time.Second

// shortCertificate is the certificate lifetime below which a Minter warns: a node that is off for a day could not renew
// its certificate.
const shortCertificate = 24 * time.Hour

// readTimeout limits the additional reads of the store and of cluster-info, for example to count tokens.
const readTimeout = 5 * time.Second

// A Minter creates, renews and deletes bootstrap tokens. Its fields must not change after the first call. A Minter must
// not be copied after the first call, because it counts the tokens that it creates. It may be used concurrently.
type Minter struct {
	// Tokens stores the tokens. It is required.
	Tokens tokens.Store
	// ClusterInfo is the cluster-info that joining machines trust. It is required.
	ClusterInfo ClusterInfo
	// Claims, if it is not nil, has the claims of deleted tokens. The ID of such a token is refused.
	Claims tokens.Claims

	// Endpoint is the HOST:PORT from which machines read cluster-info. Empty means the API server in
	// cluster-info.
	Endpoint string
	// SignTimeout is the maximum time for Join to store the token and wait for its signature. Reading cluster-info
	// before, and deleting the token after a failure, take additional time. Zero or less is DefaultSignTimeout.
	SignTimeout time.Duration
	// SignedBy names the component that should sign cluster-info, and where to look. It is in the error after
	// SignTimeout. Empty names every component that could sign.
	SignedBy string
	// UserTokens is how many unexpired tokens each Creator of records may have. Zero means DefaultUserTokens, and
	// a negative number means unlimited. Records without a Creator have no limit.
	UserTokens int
	// Warnings returns warnings for the person who creates a token, for example that nothing enforces its limits.
	// Nil adds no warnings to the Minter's own warnings. Join calls it while it waits for the signature.
	Warnings func(ctx context.Context, made tokens.Record) []string

	counts   tokenCounts
	unsigned pendingSignatures
	target   atomic.Pointer[target]
}

// ClusterInfo is the part of cluster-info that a Minter needs. Use clusterinfo.Computed without Kubernetes, or
// ConfigMap or Complete of package clusterinfo/configmap. An implementation that can hold only a limited number
// of signatures should also be a [Bounded]. A Minter then refuses a new token when cluster-info is full.
type ClusterInfo interface {
	// Config returns the kubeconfig of cluster-info.
	Config(ctx context.Context) (kubeconfig []byte, err error)
	// WaitSigned waits until cluster-info has a valid signature of its kubeconfig by the token, and returns the
	// kubeconfig. The error says what cluster-info had instead when ctx ended.
	WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error)
}

// A Minted is a token that a Minter created.
type Minted struct {
	// Record is the token as the store has it.
	Record tokens.Record
	// Existing reports that the token was stored by an earlier request.
	Existing bool
	// Join is how to join with the token. It has no Token if the token lacks a usage, or if cluster-info could not be
	// read without waiting for the signature.
	Join joinformat.Join
	// Warnings are for the person who creates the token. The field Join contains the same warnings.
	Warnings []string
	// Storing and Signing are how long Join waited for the store and for the signature.
	Storing, Signing time.Duration
}

// Join creates a token, waits until cluster-info is signed with it, and returns how to join with it. The token must be
// for signing and authentication. If another token has its ID, Join generates one with another ID.
//
// Join then calls complete, if given, which may change the data to join with and render it. If complete or an earlier
// step fails, Join deletes the token, even if ctx has ended, because no client has received it. The Record is then the
// token that the Fate of the error is about. Generate a token for each call. If the store already had the token, Join
// fails; but if a response of the store was lost, Join assumes that it has created the token itself. Errors other than
// an [Error] are about an invalid record, like the errors of tokens.Record.CheckNew.
func (m *Minter) Join(ctx context.Context, record tokens.Record, complete ...func(context.Context, *joinformat.Join) error) (Minted, error) {
	record, err := newRecord(record)
	if err != nil {
		return Minted{}, err
	}
	if !record.Signing || !record.Authentication {
		return Minted{}, errors.New("usages: a join command needs a token for signing and authentication")
	}
	if err := m.checkClusterInfo(ctx, record); err != nil {
		return Minted{}, err
	}
	client := ctx
	ctx, cancel := context.WithTimeout(ctx, m.signTimeout())
	defer cancel()
	start := time.Now()
	record, err = m.create(ctx, Creation{Record: record})
	made := Minted{Record: record, Storing: time.Since(start)}
	if own := (*Error)(nil); errors.As(err, &own) {
		return made, own
	}
	if errors.Is(err, tokens.ErrExists) {
		return Minted{}, existsError(record.Token)
	}
	if err != nil {
		e := notStored(err)
		if refused(err) {
			return made, e
		}
		return made, m.withdraw(context.WithoutCancel(ctx), record, e)
	}
	stored := time.Now()
	advice := make(chan []string, 1)
	go func() { advice <- m.advice(client, record) }() // during the wait, so that complete keeps the rest of the time
	made.Join, err = m.signed(ctx, client, record, m.signTimeout())
	made.Signing = time.Since(stored)
	if err == nil {
		made.Join.Expires, made.Join.Warnings = record.Expires, <-advice
	}
	for _, f := range complete {
		if err == nil {
			err = f(ctx, &made.Join)
		}
	}
	if err == nil && len(complete) == 0 {
		_, err = made.Join.Line()
	}
	if err != nil {
		return Minted{Record: record}, m.withdraw(context.WithoutCancel(ctx), record, err)
	}
	made.Warnings = made.Join.Warnings
	return made, nil
}

// A Creation describes a token to create.
type Creation struct {
	Record tokens.Record
	// Chosen reports that the caller chose the token, and may have sent the request before. If a token with the same ID
	// exists, Create returns this token if it matches the request, and otherwise fails. Without Chosen, Create
	// generates a token with another ID if the ID is taken.
	Chosen bool
	// Lifetime is the lifetime that the caller chose, with Chosen. An existing token matches if its lifetime since its
	// creation is about the same. Zero means that the caller chose Record.Expires: an existing token must expire at
	// that time.
	Lifetime time.Duration
	// Wait is how long to wait for the signature. With zero, Create does not wait.
	Wait time.Duration
	// DryRun makes Create store nothing, and return the result that it would have.
	DryRun bool
}

// Create creates a token and waits for its signature. If no signature appears, Create (unlike Join) keeps the token,
// because the caller may already know it. If the caller chose the token, Create is idempotent. Other errors than an
// [Error] are errors of tokens.Record.CheckNew.
func (m *Minter) Create(ctx context.Context, r Creation) (Minted, error) {
	var err error
	if r.Record, err = newRecord(r.Record); err != nil {
		return Minted{}, err
	}
	if err := m.checkClusterInfo(ctx, r.Record); err != nil {
		return Minted{}, err
	}
	if r.Chosen {
		if err := m.checkUnclaimed(ctx, r.Record.Token.ID()); err != nil {
			return Minted{}, err
		}
	}
	now := time.Now()
	if r.DryRun {
		return m.tryCreate(ctx, r, now)
	}
	record, err := m.create(ctx, r)
	made := Minted{Record: record}
	var limit *Error
	switch {
	case errors.Is(err, tokens.ErrExists) && !r.Chosen:
		return Minted{}, existsError(record.Token)
	case errors.Is(err, tokens.ErrExists), r.Chosen && errors.As(err, &limit): // an existing token needs no quota
		before, againErr := m.recreate(ctx, r, record, now)
		if againErr != nil && limit != nil {
			return Minted{}, limit
		} else if againErr != nil {
			return Minted{}, againErr
		}
		made.Record, made.Existing = before, true
	case errors.As(err, &limit):
		return Minted{}, limit
	case refused(err):
		return Minted{}, StoreError(err)
	case err != nil:
		e := notStored(err)
		e.TokenID = record.Token.ID()
		e.Fate = fmt.Sprintf("If token %s was stored nevertheless, it %s", e.TokenID, record.Lifetime(time.Now()))
		return Minted{}, e
	}
	if made.Join, err = m.awaitSigned(ctx, made.Record, r.Wait); err != nil {
		return Minted{}, err
	}
	made.Warnings = m.advice(ctx, made.Record)
	return made, nil
}

// newRecord returns a copy of record without the fields that a store sets, so that callers can use a stored
// record as a template. It returns an error if the record is invalid or has expired.
func newRecord(record tokens.Record) (tokens.Record, error) {
	record.UID, record.Version, record.Created = "", "", time.Time{}
	record.Nodes, record.Marks = nil, nil
	// Stores keep whole seconds.
	record.Expires = record.Expires.UTC().Truncate(time.Second)
	err := record.CheckNew()
	if record.Expired(time.Now()) {
		err = errors.Join(err, &tokens.FieldError{Field: "expires", Err: fmt.Errorf("%s given; want a time in the future", record.Expires.Format(time.RFC3339))})
	}
	return record, err
}

// tryCreate returns what Create would return, and stores nothing.
func (m *Minter) tryCreate(ctx context.Context, r Creation, now time.Time) (Minted, error) {
	made := Minted{Record: r.Record}
	switch _, err := m.Tokens.Get(ctx, r.Record.Token.ID(), tokens.Live); {
	case err == nil && !r.Chosen:
		return Minted{}, existsError(r.Record.Token)
	case err == nil:
		if made.Record, err = m.recreate(ctx, r, r.Record, now); err != nil {
			return Minted{}, err
		}
		made.Existing = true
	case !errors.Is(err, tokens.ErrNotFound):
		return Minted{}, StoreError(err)
	default:
		if err := m.reserve(ctx, r); err != nil {
			return Minted{}, err
		}
	}
	made.Join = m.unsignedJoin(ctx, made.Record)
	made.Warnings = m.advice(ctx, made.Record)
	return made, nil
}

func notStored(err error) *Error {
	return &Error{Refusal: tokens.Refusal{Reason: NotStored, Message: "the token could not be stored; retry", Err: err, Retry: true}}
}

func (m *Minter) signTimeout() time.Duration {
	if m.SignTimeout <= 0 {
		return DefaultSignTimeout
	}
	return m.SignTimeout
}

func (m *Minter) signedBy() string {
	return cmp.Or(m.SignedBy, "kubejoin's bootstrap-signer controller, or kube-controller-manager's bootstrap-signer-controller")
}

// advice returns warnings for the person who creates a token.
func (m *Minter) advice(ctx context.Context, record tokens.Record) []string {
	var list []string
	if record.Expires.IsZero() {
		list = append(list, fmt.Sprintf("token %s never expires: anyone who obtains it can use it until it is deleted", record.Token.ID()))
	}
	if record.Authentication && len(record.Groups) == 0 {
		list = append(list, fmt.Sprintf("token %s has no groups: kubeadm's role bindings do not apply to machines that use it", record.Token.ID()))
	}
	if d := record.Limits.Strictest().CertificateDuration; d > 0 && d < shortCertificate {
		list = append(list, fmt.Sprintf("certificates are valid for only %s: a node that is off for longer cannot renew its certificate and has to join again", d))
	}
	var loose []string
	for _, label := range tokens.SplitProperties(record.Limits.Node.Labels) {
		if key, _, _ := strings.Cut(label, "="); tokens.KubeletMaySet(key) {
			loose = append(loose, key)
		}
	}
	if len(loose) > 0 {
		list = append(list, fmt.Sprintf("the kubelet of a machine can change these labels at any time: %s; it cannot change labels with the prefix node-restriction.kubernetes.io/", strings.Join(loose, ", ")))
	}
	if m.Warnings != nil {
		list = append(list, m.Warnings(ctx, record)...)
	}
	return list
}

// checkUnclaimed returns an error for the ID of a deleted token that still has claims. These claims would restrict
// the new token, and use up its node limit. Token IDs are public, and callers can choose them.
func (m *Minter) checkUnclaimed(ctx context.Context, id string) error {
	if m.Claims == nil {
		return nil
	}
	held, err := m.Claims.HeldBy(ctx, id, tokens.Live)
	switch {
	case apierrors.IsForbidden(err): // the caller's kubeconfig may lack this permission, and the check is optional
		return nil
	case err != nil:
		return StoreError(err)
	case len(held) == 0:
		return nil
	}
	if _, err := m.Tokens.Get(ctx, id, tokens.Live); !errors.Is(err, tokens.ErrNotFound) {
		return nil // create handles an existing token
	}
	return errorf(Exists, "a deleted token with the ID %s still holds the name of node %s (%d names in total); choose another ID, or if those machines will not join: kubejoin claim release %s",
		id, held[0].Node, len(held), held[0].Node)
}

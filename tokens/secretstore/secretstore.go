// Package secretstore stores bootstrap tokens where Kubernetes expects them: in the Secrets
// kube-system/bootstrap-token-ID. It stores claims of node names in Leases. It also reads tokens that
// kubeadm and other tools created, and does not change fields that it does not know.
package secretstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/kube/freshness"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
)

// A Store is a [tokens.Store] of Secrets. List and reads with [tokens.Cached] use a cache that watches the API server. Reads
// with [tokens.Recent] use it while a list of the versions of all tokens proves that the cached token is current. All
// other calls send requests to the API server. When Watch sends a hint, the change is already in the cache.
type Store struct {
	secrets typedcorev1.SecretInterface
	cache   *kubecache.Cache[*corev1.Secret, *cachedToken]

	rules    func() []tokens.LimitRule // nil without rules
	getCalls batch.Queue[struct{}, *getCall]
	fresh    freshness.Freshness
}

// A cachedToken is a token with its Secret. The Secret is nil unless the token limits the number of nodes: those tokens
// change with each node.
type cachedToken struct {
	tokens.Record
	secret *corev1.Secret
}

func (s *Store) decodeCached(secret *corev1.Secret) (*cachedToken, error) {
	r, err := s.decode(secret)
	if err != nil || r.Limits.NodeLimit() == 0 {
		secret = nil
	}
	return &cachedToken{r, secret}, err
}

var _ tokens.Store = (*Store)(nil)

// Open returns a Store that watches the bootstrap tokens of a cluster until ctx ends. After that, List and
// cached reads fail. Open does not wait for the API server, but they do. The identity of client needs the
// verbs get, list, watch, create, update and delete on Secrets in kube-system.
//
// The Store logs Secrets that are not valid tokens, once for each of their changes, and failures to watch
// the API server. If log is nil, it logs nothing.
func Open(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (*Store, error) {
	return OpenWithRules(ctx, client, nil, log)
}

// OpenWithRules returns a Store like [Open]. The [tokens.Limits] of each token that it reads have the rules that match the
// token. Call [Store.RulesChanged] when rules returns others.
func OpenWithRules(ctx context.Context, client kubernetes.Interface, rules func() []tokens.LimitRule, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	s := &Store{secrets: secrets, rules: rules}
	s.cache = kubecache.Open(ctx, client, secrets, onlyTokens, kubecache.Config[*corev1.Secret, *cachedToken]{
		What:    "bootstrap tokens",
		Decode:  s.decodeCached,
		Changed: func(name string, c *cachedToken, err error) { report(log, name, c.Record, err) },
		Log:     log,
	})
	s.fresh = freshness.Freshness{
		What: "bootstrap tokens", Log: log,
		Prove: func() (freshness.Current, error) {
			return freshness.ListVersions(ctx, client, metav1.NamespaceSystem, "secrets", "fieldSelector", onlyTokens)
		},
		Price: func() int { n, _ := s.cache.Len(); return 4 + n/tokensPerRead },
	}
	return s, nil
}

// RulesChanged makes the Store read all tokens again, with the rules that apply now. Reads with [tokens.Live] and
// [tokens.Recent] have these rules at once, others soon.
func (s *Store) RulesChanged() { s.cache.DecodeAgain() }

// decode returns the record in a Secret, with the rules that match it. No other function reads the tokens of a Store.
func (s *Store) decode(secret *corev1.Secret) (tokens.Record, error) {
	r, err := decode(secret)
	if err != nil || s.rules == nil {
		return r, err
	}
	for _, rule := range s.rules() {
		if rule.Matches(r, secret.Labels) {
			r.Limits.Rules = append(r.Limits.Rules, rule.Rule)
		}
	}
	if len(r.Limits.Rules) > 0 && r.Limits.Problem == nil { // for example, the names that a rule lets the token count need more space than is left
		r.Limits.Problem = r.Limits.Check()
	}
	return r, nil
}

// onlyTokens is a field selector. With it, the API server does not send other Secrets.
const onlyTokens = "type=" + string(api.SecretTypeBootstrapToken)

// tokensPerRead is how many tokens a list of metadata returns at the cost of one read.
const tokensPerRead = 50

// report logs the problems of a new or changed Secret.
func report(log *slog.Logger, name string, r tokens.Record, err error) {
	switch {
	case err != nil:
		log.Warn("ignoring malformed bootstrap token Secret", "secret", safetext.Text(name, safetext.MaxName), "problem", safetext.Text(err.Error(), safetext.MaxMessage))
		return
	case errors.Is(r.Problem, tokens.ErrDeleting):
		log.Info("bootstrap token is being deleted", "token", r.Token.ID(), "problem", safetext.Text(r.Problem.Error(), safetext.MaxMessage))
	case r.Problem != nil:
		log.Warn("bootstrap token is invalid", "token", r.Token.ID(), "problem", safetext.Text(r.Problem.Error(), safetext.MaxMessage))
	}
	if r.Limits.Problem != nil {
		log.Warn("bootstrap token has malformed limits, no node can join with it", "token", r.Token.ID(), "problem", safetext.Text(r.Limits.Problem.Error(), safetext.MaxMessage))
	}
}

// A getCall is one live call of Get with its result.
type getCall struct {
	id     string
	record tokens.Record
	err    error
}

// Get implements [tokens.Store]. With [tokens.Cached] it waits, like List, until the cache is filled or ctx ends.
// Concurrent live calls share a list request, if the tokens have the label that Update sets.
func (s *Store) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	if err := tokens.CheckID(id); err != nil {
		return tokens.Record{}, err
	}
	name := util.BootstrapTokenSecretName(id)
	switch read {
	case tokens.Cached:
		found, err := s.cache.Get(ctx, name)
		switch {
		case err != nil:
			return tokens.Record{}, fmt.Errorf("find token %s: %w", id, err)
		case found == nil || found.Err != nil:
			return tokens.Record{}, fmt.Errorf("find token %s: %w", id, tokens.ErrNotFound)
		}
		return found.Value.Clone(), nil
	case tokens.Recent:
		if found := s.cache.Peek(name); found != nil && found.Err == nil && s.fresh.Proves(name, found.Version) {
			return found.Value.Clone(), nil
		}
	}
	g := &getCall{id: id}
	if err := s.getCalls.Do(ctx, struct{}{}, g, s.getAll); err != nil {
		return tokens.Record{}, fmt.Errorf("get token %s: %w", id, err)
	}
	return g.record, g.err
}

// getAll sets the results of calls of Get. It reads the tokens after these calls began, so the results are current.
func (s *Store) getAll(ctx context.Context, all []*getCall) {
	ids := map[string][]*getCall{}
	for _, g := range all {
		ids[g.id] = append(ids[g.id], g)
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(ids)), tokensPerList) {
		if len(part) > 1 {
			selector := tokenIDLabel + " in (" + strings.Join(part, ",") + ")"
			list, err := s.secrets.List(ctx, metav1.ListOptions{LabelSelector: selector})
			if err != nil {
				for _, id := range part {
					setAll(ids[id], tokens.Record{}, fmt.Errorf("get token %s: %w", id, err))
				}
				continue
			}
			for i := range list.Items {
				secret := &list.Items[i]
				id, isToken := strings.CutPrefix(secret.Name, api.BootstrapTokenSecretPrefix)
				if r, err := s.decode(secret); isToken && err == nil && ids[id] != nil {
					setAll(ids[id], r, nil)
					delete(ids, id)
				}
			}
		}
		var reading sync.WaitGroup
		for _, id := range part {
			if waiting := ids[id]; waiting != nil { // not in the list
				reading.Go(func() {
					_, r, err := s.get(ctx, id)
					setAll(waiting, r, err)
				})
			}
		}
		reading.Wait()
	}
}

func setAll(calls []*getCall, r tokens.Record, err error) {
	for _, g := range calls {
		g.record, g.err = r.Clone(), err
	}
}

func (s *Store) get(ctx context.Context, id string) (*corev1.Secret, tokens.Record, error) {
	secret, err := s.secrets.Get(ctx, util.BootstrapTokenSecretName(id), metav1.GetOptions{})
	if err != nil {
		return nil, tokens.Record{}, failure("get", id, err)
	}
	r, err := s.decode(secret)
	if err != nil {
		return nil, tokens.Record{}, fmt.Errorf("get token %s: %w: %w", id, tokens.ErrNotFound, err)
	}
	return secret, r, nil
}

// List implements [tokens.Store]. It waits until the cache is filled for the first time or ctx ends.
func (s *Store) List(ctx context.Context) ([]tokens.Record, error) {
	all, err := s.cache.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	records := make([]tokens.Record, len(all))
	for i, c := range all {
		records[i] = c.Clone()
	}
	return records, nil
}

// Shared returns all records, sorted by ID, like List. They are those of the cache: the caller must not change them. A
// record with the same address as before has not changed.
func (s *Store) Shared(ctx context.Context) ([]*tokens.Record, error) {
	all, err := s.cache.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	records := make([]*tokens.Record, len(all))
	for i, c := range all {
		records[i] = &c.Record
	}
	return records, nil
}

// Create implements [tokens.Store].
func (s *Store) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	id := r.Token.ID()
	if err := r.Check(); err != nil {
		return tokens.Record{}, fmt.Errorf("create token %s: %w", id, err)
	}
	defer s.fresh.Wrote(util.BootstrapTokenSecretName(id))
	secret, err := s.secrets.Create(ctx, encode(r), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		name := util.BootstrapTokenSecretName(id)
		if other, err := s.secrets.Get(ctx, name, metav1.GetOptions{}); err == nil && other.Type != api.SecretTypeBootstrapToken {
			return tokens.Record{}, &tokens.Refusal{
				Reason: "token-exists", Err: tokens.ErrRefused,
				Message: fmt.Sprintf("Secret kube-system/%[1]s has the name of this token and the type %[2]q, so it is no bootstrap token. Choose another token, or see the Secret with: kubectl -n kube-system get secret %[1]s -o yaml", name, other.Type),
			}
		}
		return tokens.Record{}, fmt.Errorf("create token %s: %w: Secret kube-system/%s", id, tokens.ErrExists, util.BootstrapTokenSecretName(id))
	case err != nil: // a NotFound error here would be about the namespace, not the token
		return tokens.Record{}, fmt.Errorf("create token %s: %w", id, err)
	}
	return s.decode(secret)
}

// Update implements [tokens.Store]. It writes only the fields that change has altered, and leaves everything
// else in the Secret as it is. But if change clears the Problem of malformed limits, Update writes all
// limits and removes unknown annotations with the prefix kubejoin.io/. A Secret that counts nodes gets the label
// kubejoin.io/token-id.
func (s *Store) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	if err := tokens.CheckID(id); err != nil {
		return tokens.Record{}, err
	}
	if cached := s.cache.Peek(util.BootstrapTokenSecretName(id)); cached != nil && cached.Value.secret != nil {
		if r, err := s.write(ctx, cached.Value.secret.DeepCopy(), cached.Value.Record, change); err == nil {
			return r, nil
		} else if ctx.Err() != nil {
			return tokens.Record{}, err
		}
	}
	for {
		secret, before, err := s.get(ctx, id)
		if err != nil {
			return tokens.Record{}, err
		}
		if r, err := s.write(ctx, secret, before, change); !errors.Is(err, errChanged) {
			return r, err
		}
	}
}

// errChanged means that the Secret has changed since it was read.
var errChanged = errors.New("the Secret has changed")

// write writes a changed token, if its Secret has not changed since it was read.
func (s *Store) write(ctx context.Context, secret *corev1.Secret, before tokens.Record, change func(*tokens.Record) error) (tokens.Record, error) {
	id := before.Token.ID()
	after, err := before.Edit(change)
	if err != nil {
		return tokens.Record{}, err
	}
	apply(secret, before, after)
	r, err := s.decode(secret)
	if err := errors.Join(err, r.Problem, r.Limits.Problem); err != nil {
		return tokens.Record{}, fmt.Errorf("update token %s: still invalid after the change: %w", id, err)
	}
	defer s.fresh.Wrote(secret.Name)
	// The resourceVersion in secret makes the update conditional.
	updated, err := s.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err):
		return tokens.Record{}, errChanged
	case err != nil:
		return tokens.Record{}, failure("update", id, err)
	}
	return s.decode(updated)
}

// Delete implements [tokens.Store].
func (s *Store) Delete(ctx context.Context, r tokens.Record) error {
	id := r.Token.ID()
	if err := tokens.CheckID(id); err != nil {
		return err
	}
	defer s.fresh.Wrote(util.BootstrapTokenSecretName(id))
	uid := types.UID(r.UID)
	err := s.secrets.Delete(ctx, util.BootstrapTokenSecretName(id), metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &r.Version},
	})
	if err != nil {
		return failure("delete", id, err)
	}
	return nil
}

// Watch implements [tokens.Store].
func (s *Store) Watch(ctx context.Context) <-chan struct{} { return s.cache.Watch(ctx) }

// failure returns an error of the API server about one token as an error of package tokens. It wraps
// ErrNotFound or ErrConflict where these apply.
func failure(verb, id string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s token %s: %w: no Secret kube-system/%s", verb, id, tokens.ErrNotFound, util.BootstrapTokenSecretName(id))
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s token %s: %w: %w", verb, id, tokens.ErrConflict, err)
	}
	return fmt.Errorf("%s token %s: %w", verb, id, err)
}

package ha

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/kubejoin/kubejoin/tokens"
)

// A history records the arguments and results of calls of stores, for [history.check].
type history struct {
	began time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
	unknown    int
}

func newHistory() *history { return &history{began: time.Now()} }

// An operation is a read or a conditional write of one token or claim. The values are texts; empty means that the token or
// claim does not exist.
type operation struct {
	key           string
	before, after string // equal in a read
	unknown       bool   // the write may or may not have taken effect
	any           bool   // a read that found a value, which is not known
}

func (o operation) String() string {
	switch {
	case o.any:
		return fmt.Sprintf("%s: exists", o.key)
	case o.before == o.after:
		return fmt.Sprintf("%s: read %q", o.key, o.before)
	case o.unknown:
		return fmt.Sprintf("%s: perhaps %q -> %q", o.key, o.before, o.after)
	}
	return fmt.Sprintf("%s: %q -> %q", o.key, o.before, o.after)
}

// now returns the time for a call or return.
func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add records an operation that began at this time and has just returned. A write with an unknown result may take effect at
// any later time.
func (h *history) add(began int64, o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := h.now()
	if o.unknown {
		ended = math.MaxInt64
		h.unknown++
	}
	h.operations = append(h.operations, porcupine.Operation{Input: o, Call: began, Return: ended})
}

// steps is the model: each key is a register with a compare-and-swap.
func steps(state, input, _ any) []any {
	now, o := state.(string), input.(operation)
	switch {
	case o.unknown && now == o.before:
		return []any{now, o.after}
	case o.unknown, o.any && now != "":
		return []any{now}
	case !o.any && now == o.before:
		return []any{o.after}
	}
	return nil
}

var model = func() porcupine.Model {
	registers := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: steps,
		Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
			at := map[string]int{}
			for _, o := range all {
				key := o.Input.(operation).key
				i, found := at[key]
				if !found {
					i = len(parts)
					at[key], parts = i, append(parts, nil)
				}
				parts[i] = append(parts[i], o)
			}
			return parts
		},
		DescribeOperation: func(input, _ any) string { return input.(operation).String() },
	}
	return registers.ToModel()
}()

// linearizable reports whether one order of the operations explains all results.
func linearizable(operations []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, operations, 30*time.Second)
}

// check fails the test if the history is not linearizable, or too small to show it.
func (h *history) check(t *testing.T, least int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	began := time.Now()
	result := linearizable(h.operations)
	t.Logf("a history of %d operations, of which %d writes may have failed: %s after %s", len(h.operations), h.unknown, result, time.Since(began).Round(time.Millisecond))
	if len(h.operations) < least {
		t.Errorf("%d operations were recorded, want %d at least", len(h.operations), least)
	}
	if result == porcupine.Ok {
		// Check the same history with one lost write. The checker must find it.
		for _, o := range h.operations {
			if in := o.Input.(operation); !in.unknown && in.before != in.after {
				in.after = "another value"
				o.Input = in
				if got := linearizable(append(slices.Clone(h.operations), o)); got != porcupine.Illegal {
					t.Errorf("with a lost update, the history is %s: the check could not fail", got)
				}
				return
			}
		}
		t.Error("the history has no write: the check could not fail")
		return
	}
	t.Errorf("the history is not linearizable: %s", result)
	for _, part := range model.Partition(h.operations) {
		if linearizable(part) != porcupine.Ok {
			for _, o := range part[:min(len(part), 400)] {
				t.Logf("%12d %12d %s", o.Call/1000, o.Return/1000, o.Input)
			}
			return
		}
	}
}

// recordText returns the text for a token in a history. It leaves out the version, which is unknown for a write whose
// response was lost.
func recordText(r tokens.Record) string {
	return fmt.Sprintf("%s %q nodes=%v most=%d", r.Expires.UTC().Truncate(time.Second).Format(time.RFC3339), r.Description, r.Nodes, r.Limits.MaxNodes)
}

// claimText returns the text for a claim in a history.
func claimText(c tokens.Claim) string {
	return fmt.Sprintf("of=%s keys=%v requests=%v node=%s past=%v", c.TokenID, short(c.Keys), c.Requests, c.NodeUID, c.Past.Until.Unix())
}

// short shortens keys, so that a reader can compare them.
func short(keys []string) (all []string) {
	for _, k := range keys {
		all = append(all, strings.TrimPrefix(k, "sha256:")[:12])
	}
	return all
}

// attempts records the calls of change in an Update. A write may follow each call.
type attempts struct {
	h             *history
	key           string
	began         int64
	tried, failed bool
	at            int64
	before, after string
}

// try records a call of change. If there was an earlier call, its write failed, or the response was lost.
func (a *attempts) try(before, after string, err error) {
	a.lost()
	a.tried, a.failed = true, err != nil
	a.at, a.before, a.after = a.h.now(), before, after
}

// lost records that the last write may have taken effect.
func (a *attempts) lost() {
	if a.tried && !a.failed && a.before != a.after {
		a.h.add(a.at, operation{key: a.key, before: a.before, after: a.after, unknown: true})
	}
}

// end records the result of the Update.
func (a *attempts) end(err error) {
	switch {
	case errors.Is(err, tokens.ErrNotFound) && !a.failed:
		a.lost()
		a.h.add(a.began, operation{key: a.key})
	case err != nil && !a.failed, !a.tried:
		a.lost()
	case a.failed, a.before == a.after: // without a write, the Update was a read of the current value
		a.h.add(a.began, operation{key: a.key, before: a.before, after: a.before})
	default:
		a.h.add(a.at, operation{key: a.key, before: a.before, after: a.after})
	}
}

// created records the result of a Create.
func (h *history) created(began int64, key, after string, err error) {
	switch {
	case err == nil:
		h.add(began, operation{key: key, after: after})
		return
	case errors.Is(err, tokens.ErrExists):
		h.add(began, operation{key: key, any: true})
	}
	h.add(began, operation{key: key, after: after, unknown: true})
}

// deleted records the result of a Delete.
func (h *history) deleted(began int64, key, before string, err error) {
	h.add(began, operation{key: key, before: before, unknown: err != nil})
}

// got records the result of a Get.
func (h *history) got(began int64, key, value string, err error) {
	switch {
	case err == nil:
		h.add(began, operation{key: key, before: value, after: value})
	case errors.Is(err, tokens.ErrNotFound):
		h.add(began, operation{key: key})
	}
}

// recordedTokens is a store that records its calls in a history, except reads that may lag.
type recordedTokens struct {
	tokens.Store
	h *history
}

func (s recordedTokens) Get(ctx context.Context, id string, read tokens.Read) (tokens.Record, error) {
	began := s.h.now()
	r, err := s.Store.Get(ctx, id, read)
	if read != tokens.Live {
		return r, err
	}
	s.h.got(began, "token "+id, recordText(r), err)
	return r, err
}

func (s recordedTokens) Create(ctx context.Context, r tokens.Record) (tokens.Record, error) {
	began := s.h.now()
	made, err := s.Store.Create(ctx, r)
	s.h.created(began, "token "+r.Token.ID(), recordText(r), err)
	return made, err
}

func (s recordedTokens) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	a := attempts{h: s.h, key: "token " + id, began: s.h.now()}
	r, err := s.Store.Update(ctx, id, func(r *tokens.Record) error {
		before := recordText(*r)
		err := change(r)
		a.try(before, recordText(*r), err)
		return err
	})
	a.end(err)
	return r, err
}

func (s recordedTokens) Delete(ctx context.Context, r tokens.Record) error {
	began := s.h.now()
	err := s.Store.Delete(ctx, r)
	s.h.deleted(began, "token "+r.Token.ID(), recordText(r), err)
	return err
}

// recordedClaims is like recordedTokens, but for claims.
type recordedClaims struct {
	tokens.Claims
	h *history
}

func (s recordedClaims) Get(ctx context.Context, node string, read tokens.Read) (tokens.Claim, error) {
	began := s.h.now()
	c, err := s.Claims.Get(ctx, node, read)
	if read != tokens.Live {
		return c, err
	}
	s.h.got(began, "claim "+node, claimText(c), err)
	return c, err
}

func (s recordedClaims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	began := s.h.now()
	all, err := s.Claims.HeldBy(ctx, id, read)
	if read == tokens.Cached {
		return all, err
	}
	for _, c := range all {
		s.h.got(began, "claim "+c.Node, claimText(c), err)
	}
	return all, err
}

func (s recordedClaims) Commit(ctx context.Context, before, after tokens.Record, changes []tokens.ClaimChange) ([]tokens.Outcome, error) {
	began := s.h.now()
	outcomes, err := s.Claims.Commit(ctx, before, after, changes)
	changes = slices.DeleteFunc(slices.Clone(changes), func(c tokens.ClaimChange) bool { return c.Before.Version != "" && c.Before.Equal(c.After) })
	if len(changes) == 0 && recordText(before) == recordText(after) { // nothing was written, so nothing was compared
		return outcomes, err
	}
	exists := errors.Is(err, tokens.ErrConflict) || slices.ContainsFunc(outcomes, func(o tokens.Outcome) bool { return errors.Is(o.Err, tokens.ErrConflict) })
	unknown := err != nil || slices.ContainsFunc(outcomes, func(o tokens.Outcome) bool { return o.Err != nil })
	if id := before.Token.ID(); id != "" {
		s.h.add(began, operation{key: "token " + id, before: recordText(before), after: recordText(after), unknown: unknown})
	}
	for _, c := range changes {
		was := ""
		if c.Before.Version != "" {
			was = claimText(c.Before)
		}
		is := claimText(c.After)
		if c.After.Empty() {
			is = ""
		}
		s.h.add(began, operation{key: "claim " + c.After.Node, before: was, after: is, unknown: unknown})
		if before.Token.ID() == "" && was == "" && exists {
			s.h.add(began, operation{key: "claim " + c.After.Node, any: true})
		}
	}
	return outcomes, err
}

// TestCheckerRefusesWrongHistories catches a checker that accepts every history.
func TestCheckerRefusesWrongHistories(t *testing.T) {
	at := func(call, end int64, o operation) porcupine.Operation {
		o.key = "a"
		return porcupine.Operation{Input: o, Call: call, Return: end}
	}
	written := at(0, 1, operation{after: "1"})
	for name, test := range map[string]struct {
		operations []porcupine.Operation
		want       porcupine.CheckResult
	}{
		"one after the other": {[]porcupine.Operation{
			written, at(2, 3, operation{before: "1", after: "2"}), at(4, 5, operation{before: "2", after: "2"}),
		}, porcupine.Ok},
		"two writes of one version": {[]porcupine.Operation{
			written, at(2, 5, operation{before: "1", after: "2"}), at(3, 4, operation{before: "1", after: "3"}),
		}, porcupine.Illegal},
		"stale read": {[]porcupine.Operation{
			written, at(2, 3, operation{before: "1", after: "2"}), at(4, 5, operation{before: "1", after: "1"}),
		}, porcupine.Illegal},
		"read at the same time": {[]porcupine.Operation{
			written, at(2, 5, operation{before: "1", after: "2"}), at(3, 4, operation{before: "1", after: "1"}),
		}, porcupine.Ok},
		"lost write": {[]porcupine.Operation{
			written, at(2, 3, operation{before: "1", after: "2"}), at(4, 5, operation{before: "1", after: "3"}),
		}, porcupine.Illegal},
		"a response was lost, and the write with it": {[]porcupine.Operation{
			written, at(2, math.MaxInt64, operation{before: "1", after: "2", unknown: true}), at(4, 5, operation{before: "1", after: "3"}),
		}, porcupine.Ok},
		"a response was lost, but not the write": {[]porcupine.Operation{
			written, at(2, math.MaxInt64, operation{before: "1", after: "2", unknown: true}), at(4, 5, operation{before: "2", after: "3"}),
		}, porcupine.Ok},
		"a write took effect after all": {[]porcupine.Operation{
			written, at(2, math.MaxInt64, operation{before: "1", after: "2", unknown: true}),
			at(4, 5, operation{before: "1", after: "1"}), at(6, 7, operation{before: "2", after: "2"}),
		}, porcupine.Ok},
		"a write took effect twice": {[]porcupine.Operation{
			written, at(2, math.MaxInt64, operation{before: "1", after: "2", unknown: true}),
			at(4, 5, operation{before: "2", after: "3"}), at(6, 7, operation{before: "2", after: "2"}),
		}, porcupine.Illegal},
		"created twice":              {[]porcupine.Operation{written, at(2, 3, operation{after: "2"})}, porcupine.Illegal},
		"refused to create anything": {[]porcupine.Operation{at(0, 1, operation{any: true})}, porcupine.Illegal},
		"deleted what was another": {[]porcupine.Operation{
			written, at(2, 3, operation{before: "2", after: ""}),
		}, porcupine.Illegal},
		"not found": {[]porcupine.Operation{written, at(2, 3, operation{})}, porcupine.Illegal},
	} {
		if got := linearizable(test.operations); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

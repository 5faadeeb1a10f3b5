package operations_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
)

// machines is a cluster in which machines join.
type machines struct {
	operations.Operations
	mu    sync.Mutex // for all, which may change during a call
	all   []api.Join
	looks int
	err   error
}

func joining(all ...api.Join) *machines {
	m := &machines{all: all}
	m.Joins = func(context.Context, string, string) (api.JoinList, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.looks++
		return explain.JoinList(slices.Clone(m.all)), m.err
	}
	return m
}

func join(node string, state api.JoinState, version string) api.Join {
	return api.Join{Node: node, State: state, Version: fmt.Sprintf("%8s", node+version), SortKey: fmt.Sprintf("%d/%s", slices.Index(api.JoinStates, state), node)}
}

func names(all []api.Join) (names []string) {
	for _, j := range all {
		names = append(names, j.Node)
	}
	return names
}

func TestListsJoins(t *testing.T) {
	m := joining(join("d", api.JoinJoined, ""), join("c", api.JoinJoining, ""), join("b", api.JoinStuck, ""), join("a", api.JoinExpected, ""), join("e", api.JoinStuck, ""))
	list := must.Value(m.ListJoins(t.Context(), api.ListJoins{}, nil))(t)
	if got := names(list.Items); !slices.Equal(got, []string{"b", "e", "c", "a", "d"}) || list.Kind != api.KindJoinList || list.Continue != "" || list.Order != nil {
		t.Errorf("got %+v, want all machines in order", list)
	}
	counts := map[api.JoinState]int{api.JoinStuck: 2, api.JoinJoining: 1, api.JoinExpected: 1, api.JoinJoined: 1}
	stuck := must.Value(m.ListJoins(t.Context(), api.ListJoins{State: "stuck"}, nil))(t)
	if got := names(stuck.Items); !slices.Equal(got, []string{"b", "e"}) || !reflect.DeepEqual(stuck.Counts, counts) || !reflect.DeepEqual(list.Counts, counts) {
		t.Errorf("got %+v, want stuck machines, and the counts of all", stuck)
	}
	var pages []string
	for req := (api.ListJoins{Limit: 2}); ; {
		page := must.Value(m.ListJoins(t.Context(), req, nil))(t)
		pages = append(pages, strings.Join(names(page.Items), ""))
		if req.Continue = page.Continue; req.Continue == "" {
			break
		}
	}
	if !slices.Equal(pages, []string{"be", "ca", "d"}) {
		t.Errorf("got pages %q", pages)
	}
	if empty := must.Value(joining().ListJoins(t.Context(), api.ListJoins{}, nil))(t); empty.Items == nil || empty.Counts[api.JoinStuck] != 0 || empty.Cursor == "" {
		t.Errorf("got %+v, want an empty list with a cursor", empty)
	}
}

// Catches a watch that misses a change, returns without one, or looks more often than once a second.
func TestWaitsForChangeOfJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := joining(join("a", api.JoinJoining, "1"), join("b", api.JoinJoining, "1"), join("c", api.JoinJoining, "1"))
		first := must.Value(m.ListJoins(t.Context(), api.ListJoins{Limit: 2}, nil))(t)
		wait := func(ended <-chan struct{}) (api.JoinList, time.Duration) {
			begin := time.Now()
			list := must.Value(m.ListJoins(t.Context(), api.ListJoins{Limit: 2, After: first.Cursor, Wait: "30s"}, ended))(t)
			return list, time.Since(begin)
		}
		m.looks = 0
		if list, took := wait(nil); took != 30*time.Second || len(list.Items) > 0 || !slices.Equal(list.Order, []string{"a", "b"}) || list.Cursor != first.Cursor || m.looks > 31 {
			t.Errorf("without a change: got %+v after %s and %d looks", list, took, m.looks)
		}
		ended := make(chan struct{})
		time.AfterFunc(1500*time.Millisecond, func() { close(ended) })
		m.looks = 0
		if list, took := wait(ended); took > 2*time.Second || len(list.Items) > 0 || m.looks > 2 {
			t.Errorf("at the end: got %+v after %s and %d looks, want no look at the end", list, took, m.looks)
		}
		for about, test := range map[string]struct {
			all          []api.Join
			items, order []string
		}{
			"a step":                 {[]api.Join{m.all[0], join("b", api.JoinJoining, "2"), m.all[2]}, []string{"b"}, []string{"a", "b"}},
			"stuck":                  {[]api.Join{m.all[0], join("b", api.JoinStuck, "2"), m.all[2]}, []string{"b"}, []string{"b", "a"}},
			"deleted":                {[]api.Join{m.all[1], m.all[2]}, []string{"c"}, []string{"b", "c"}},
			"new on this page":       {append(slices.Clone(m.all), join("d", api.JoinStuck, "1")), []string{"d"}, []string{"d", "a"}},
			"only on the other page": {[]api.Join{m.all[0], m.all[1], join("c", api.JoinJoining, "2")}, nil, []string{"a", "b"}},
		} {
			before := m.all
			time.AfterFunc(5500*time.Millisecond, func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.all = test.all
			})
			list, took := wait(nil)
			if took < 5*time.Second || took > 7*time.Second || !slices.Equal(names(list.Items), test.items) || !slices.Equal(list.Order, test.order) || list.Cursor == first.Cursor {
				t.Errorf("%s: got %+v after %s", about, list, took)
			}
			m.all = before
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := m.ListJoins(ctx, api.ListJoins{After: first.Cursor, Limit: 2, Wait: "30s"}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the error of the context", err)
		}
	})
}

func TestChecksListJoins(t *testing.T) {
	cursor := must.Value(joining(join("a", api.JoinStuck, "1")).ListJoins(t.Context(), api.ListJoins{}, nil))(t).Cursor
	for field, req := range map[string]api.ListJoins{
		"node": {Node: "No Node"}, "token": {Token: "abc"}, "state": {State: "Stuck"}, "limit": {Limit: 201}, "continue": {Continue: "x"},
		"after": {After: "x"}, "wait": {After: cursor, Wait: "61s"},
	} {
		var invalid api.InvalidFields
		if _, err := joining().ListJoins(t.Context(), req, nil); !errors.As(err, &invalid) || len(invalid) != 1 || invalid[0].Field != field {
			t.Errorf("got %v, want an error about %s only", err, field)
		}
	}
	for _, req := range []api.ListJoins{{Wait: "1s"}, {Wait: "x", After: cursor}, {Wait: "-1s", After: cursor}, {After: strings.Repeat("AAAAAAAAAAAAAAAA", 200)}, {After: "AAAA"}, {Limit: -1}} {
		if _, err := joining().ListJoins(t.Context(), req, nil); !errors.As(err, new(api.InvalidFields)) {
			t.Errorf("%+v: got %v, want an invalid field", req, err)
		}
	}
	var refused *tokens.Refusal
	if _, err := (&operations.Operations{}).ListJoins(t.Context(), api.ListJoins{}, nil); !errors.As(err, &refused) || refused.Reason != "no-cluster" {
		t.Errorf("without a cluster: got %v", err)
	}
	m := joining()
	for reason, err := range map[string]error{"no-token": fmt.Errorf("token: %w", tokens.ErrNotFound), "cluster-unavailable": errors.New("down")} {
		m.err = err
		if _, err := m.ListJoins(t.Context(), api.ListJoins{Token: "abcdef"}, nil); !errors.As(err, &refused) || refused.Reason != reason {
			t.Errorf("got %v, want %s", err, reason)
		}
	}
}

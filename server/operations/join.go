package operations

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// joinsEvery is how often a waiting ListJoins looks for a change.
const joinsEvery = time.Second

// ListJoins returns how far machines have joined. With After, it waits for a change. It stops waiting when ended is closed, and
// then returns the unchanged list.
func (o *Operations) ListJoins(ctx context.Context, req api.ListJoins, ended <-chan struct{}) (api.JoinList, error) {
	wait, had, err := checkJoins(&req)
	if err != nil {
		return api.JoinList{}, err
	}
	if o.Joins == nil {
		return api.JoinList{}, &tokens.Refusal{Reason: "no-cluster", Message: "this kubejoin runs without a cluster and does not see Nodes; see what it issued: kubejoin issued list"}
	}
	for deadline := time.Now().Add(wait); ; {
		list, err := o.Joins(ctx, req.Node, req.Token)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return api.JoinList{}, &tokens.Refusal{Reason: mint.NoToken, Message: fmt.Sprintf("there is no token %s; it may have expired or been deleted", req.Token)}
		case err != nil:
			return api.JoinList{}, unread("the machines that join", err)
		}
		if list, err = joinPage(list, req); err != nil {
			return api.JoinList{}, err
		}
		left := time.Until(deadline)
		if req.After == "" || list.Cursor != req.After || left <= 0 {
			return onlyChanged(list, had), nil
		}
		select {
		case <-time.After(min(left, joinsEvery)):
		case <-ended:
			return onlyChanged(list, had), nil
		case <-ctx.Done():
			return api.JoinList{}, ctx.Err()
		}
	}
}

// checkJoins checks a request, and sets its default limit. It returns how long to wait, and what readVersions returns for After.
func checkJoins(req *api.ListJoins) (wait time.Duration, had map[string]bool, err error) {
	var invalid api.InvalidFields
	when := func(is bool, field, format string, args ...any) {
		if is {
			invalid = append(invalid, api.InvalidField(field, format, args...)...)
		}
	}
	if req.Node != "" {
		err = tokens.CheckNodeName(req.Node)
		when(err != nil, "node", "%.300v", err)
	}
	if req.Token != "" {
		err = tokens.CheckID(req.Token)
		when(err != nil, "token", "%v", err)
	}
	when(req.State != "" && !slices.Contains(api.JoinStates, api.JoinState(req.State)), "state", "%.40q given, want one of %v", req.State, api.JoinStates)
	when(req.Limit < 0 || req.Limit > api.MaxJoins, "limit", "%d given, want 1 to %d", req.Limit, api.MaxJoins)
	req.Limit = cmp.Or(req.Limit, api.MaxJoins)
	if req.Wait != "" {
		wait, err = api.ParseDuration(req.Wait)
		when(err != nil || wait < 0 || wait > api.MaxJoinsWait, "wait", "%.40q given, want a duration of at most %s, such as 30s", req.Wait, api.MaxJoinsWait)
		when(req.After == "", "wait", "needs after, the cursor of an earlier list")
	}
	had, ok := readVersions(req.After)
	when(!ok, "after", "malformed; want the cursor of an earlier list")
	if len(invalid) > 0 {
		return 0, nil, invalid
	}
	return wait, had, nil
}

// joinPage returns a page of a list. It does not change the list, which all callers share, and takes no time for other pages.
func joinPage(list api.JoinList, req api.ListJoins) (api.JoinList, error) {
	list.APIVersion, list.Kind = api.GroupVersion, api.KindJoinList
	selected, at := list.Items, 0
	for _, s := range api.JoinStates { // the order of the items
		next := at + list.Counts[s]
		if string(s) == req.State {
			selected = list.Items[at:next]
		}
		at = next
	}
	page, next, err := Page(selected, api.KindJoinList, func(j api.Join) string { return j.SortKey }, api.ListPage{Limit: req.Limit, Continue: req.Continue})
	if err != nil {
		return api.JoinList{}, err
	}
	cursor := []byte(list.Cursor)
	for _, j := range page {
		cursor = append(cursor, j.Version...)
	}
	list.Items, list.Continue, list.Cursor = append([]api.Join{}, page...), next, base64.RawURLEncoding.EncodeToString(cursor)
	return list, nil
}

// onlyChanged removes the items whose versions an earlier page had. It returns the whole list if there was no earlier page.
func onlyChanged(list api.JoinList, had map[string]bool) api.JoinList {
	if len(had) == 0 {
		return list
	}
	changed := []api.Join{}
	list.Order = []string{}
	for _, j := range list.Items {
		list.Order = append(list.Order, j.Node)
		if !had[j.Version] {
			changed = append(changed, j)
		}
	}
	list.Items = changed
	return list
}

// versionSize is the size of an [api.Join.Version] and of the version of a list, in bytes.
const versionSize = 8

// readVersions returns the versions in a cursor: that of the list, and those of the machines on the page.
func readVersions(cursor string) (versions map[string]bool, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	versions = map[string]bool{}
	for v := range slices.Chunk(b, versionSize) {
		versions[string(v)] = true
	}
	return versions, err == nil && len(b)%versionSize == 0 && len(b) <= (1+api.MaxJoins)*versionSize
}

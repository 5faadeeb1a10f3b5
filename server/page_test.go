package server_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches an item that is on no page or on two because other items were created or deleted between the pages.
func TestPagesListEachItemOnce(t *testing.T) {
	s := newSite(t)
	s.Claims = s.store.Claims()
	s.start(t)
	var stay []string
	put := func(id string) {
		token, err := tokens.New(id, tokens.Generate().RevealSecret())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now())); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Claims.Create(t.Context(), tokens.Claim{Node: "node-" + id, TokenID: id, TokenUID: "u"}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 25 {
		stay = append(stay, fmt.Sprintf("t%05d", 10*i))
		put(stay[i])
	}
	lists := map[string]func(query string) (ids []string, next string){
		tokenPath: func(query string) (ids []string, next string) {
			list, _, got := askFor[api.TokenList](t, s, "GET", tokenPath+query, "")
			if got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			for _, item := range list.Items {
				ids = append(ids, item.ID)
			}
			return ids, list.Continue
		},
		"/v1/claim": func(query string) (ids []string, next string) {
			list, _, got := askFor[api.ClaimList](t, s, "GET", "/v1/claim"+query, "")
			if got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			for _, item := range list.Items {
				ids = append(ids, item.Token)
			}
			return ids, list.Continue
		},
	}
	for path, list := range lists {
		if all, next := list(""); !slices.Equal(all, stay) || next != "" {
			t.Errorf("%s: %v, %q", path, all, next)
		}
		if all, next := list("?limit=25"); !slices.Equal(all, stay) || next != "" {
			t.Errorf("%s: %v, %q", path, all, next)
		}
		first, next := list("?limit=24")
		if rest, last := list("?continue=" + url.QueryEscape(next)); !slices.Equal(first, stay[:24]) || !slices.Equal(rest, stay[24:]) || last != "" {
			t.Errorf("%s: %v and %v, %q", path, first, rest, last)
		}
	}
	cursors := map[string]string{}
	for path, list := range lists {
		var seen []string
		query, going := "?limit=7", []string{"t00005", "t00065", "t00095", "t00125"}
		for page := 0; ; page++ {
			ids, next := list(query)
			seen = append(seen, ids...)
			if next == "" {
				break
			}
			cursors[path] = next
			query = "?limit=7&continue=" + url.QueryEscape(next)
			if page == 0 {
				for _, id := range going { // some sort before the cursor, some after
					put(id)
				}
			}
			if page == 1 { // delete these and the last item of the page, which is the cursor
				for _, id := range append([]string{ids[6]}, going...) {
					if r, err := s.store.Get(t.Context(), id); err == nil {
						if err := s.store.Delete(t.Context(), r); err != nil {
							t.Fatal(err)
						}
					}
					if c, err := s.Claims.Get(t.Context(), "node-"+id); err == nil {
						if err := s.Claims.Delete(t.Context(), c); err != nil {
							t.Fatal(err)
						}
					}
				}
				stay = slices.DeleteFunc(stay, func(id string) bool { return id == ids[6] })
			}
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Errorf("%s: %v", path, seen)
		}
		for _, id := range stay {
			if !slices.Contains(seen, id) {
				t.Errorf("%s: %s is on no page: %v", path, id, seen)
			}
		}
	}

	for path, other := range map[string]string{tokenPath: "/v1/claim", "/v1/claim": tokenPath} {
		for query, field := range map[string]string{
			"?limit=-1": "limit", "?limit=1001": "limit", "?limit=x": "limit", "?limit=": "limit",
			"?continue=x": "continue", "?continue=" + cursors[path] + "!": "continue", "?continue=": "continue", "?continue=" + cursors[other]: "continue",
			"?continue=" + base64.RawURLEncoding.EncodeToString([]byte(api.KindTokenList+"/")): "continue",
		} {
			if _, p, got := askFor[struct{}](t, s, "GET", path+query, ""); got.status != 400 || p.Field != field {
				t.Errorf("%s%s: %d %s, want field %s", path, query, got.status, got.body, field)
			}
		}
	}
}

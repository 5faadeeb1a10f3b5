package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/kubejoin/kubejoin/server/api"
)

// ListTokens gives all tokens without their secrets, page by page.
func (c *Client) ListTokens(ctx context.Context) (api.TokenList, error) {
	all := api.TokenList{Items: []api.Token{}}
	err := c.pages(func(p api.ListPage) (string, error) {
		list, err := c.TokensPage(ctx, p)
		all.APIVersion, all.Kind, all.Items = list.APIVersion, list.Kind, append(all.Items, list.Items...)
		for _, w := range list.Warnings {
			if !slices.Contains(all.Warnings, w) {
				all.Warnings = append(all.Warnings, w)
			}
		}
		return list.Continue, err
	})
	return all, err
}

// TokensPage gives a page of the tokens, without their secrets.
func (c *Client) TokensPage(ctx context.Context, req api.ListPage) (api.TokenList, error) {
	var list api.TokenList
	err := c.do(ctx, http.MethodGet, "/v1/token"+query(req), nil, &list)
	return list, err
}

// ListClaims gives the node names that were taken with limited tokens, page by page.
func (c *Client) ListClaims(ctx context.Context) (api.ClaimList, error) {
	all := api.ClaimList{Items: []api.Claim{}}
	err := c.pages(func(p api.ListPage) (string, error) {
		list, err := c.ClaimsPage(ctx, p)
		all.APIVersion, all.Kind, all.Items = list.APIVersion, list.Kind, append(all.Items, list.Items...)
		return list.Continue, err
	})
	return all, err
}

// ClaimsPage gives a page of the node names that were taken with limited tokens.
func (c *Client) ClaimsPage(ctx context.Context, req api.ListPage) (api.ClaimList, error) {
	var list api.ClaimList
	err := c.do(ctx, http.MethodGet, "/v1/claim"+query(req), nil, &list)
	return list, err
}

// pages asks for one page after the other.
func (c *Client) pages(get func(api.ListPage) (next string, err error)) error {
	at := ""
	for {
		next, err := get(api.ListPage{Limit: api.MaxPage, Continue: at})
		if err != nil || next == "" {
			return err
		}
		if next == at {
			return fmt.Errorf("%s: its list does not go on behind a page", c.URL)
		}
		at = next
	}
}

func query(req api.ListPage) string {
	values := url.Values{}
	if req.Limit != 0 {
		values.Set("limit", strconv.Itoa(req.Limit))
	}
	if req.Continue != "" {
		values.Set("continue", req.Continue)
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

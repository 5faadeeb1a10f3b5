package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/kubejoin/kubejoin/server/api"
)

// ListTokens returns all tokens without their secrets. It fetches them page by page.
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

// TokensPage returns one page of the tokens, without their secrets.
func (c *Client) TokensPage(ctx context.Context, req api.ListPage) (api.TokenList, error) {
	var list api.TokenList
	err := c.do(ctx, http.MethodGet, "/v1/token"+query(req), nil, &list)
	return list, err
}

// ListClaims returns all claims of node names. It fetches them page by page.
func (c *Client) ListClaims(ctx context.Context) (api.ClaimList, error) {
	all := api.ClaimList{Items: []api.Claim{}}
	err := c.pages(func(p api.ListPage) (string, error) {
		list, err := c.ClaimsPage(ctx, p)
		all.APIVersion, all.Kind, all.Items = list.APIVersion, list.Kind, append(all.Items, list.Items...)
		return list.Continue, err
	})
	return all, err
}

// ClaimsPage returns one page of the claims of node names.
func (c *Client) ClaimsPage(ctx context.Context, req api.ListPage) (api.ClaimList, error) {
	var list api.ClaimList
	err := c.do(ctx, http.MethodGet, "/v1/claim"+query(req), nil, &list)
	return list, err
}

// ListMachines returns all machines with keys of their own. It fetches them page by page.
func (c *Client) ListMachines(ctx context.Context) (api.MachineList, error) {
	all := api.MachineList{Items: []api.Machine{}}
	err := c.pages(func(p api.ListPage) (string, error) {
		var list api.MachineList
		err := c.do(ctx, http.MethodGet, "/v1/machine"+query(p), nil, &list)
		all.APIVersion, all.Kind, all.Items = list.APIVersion, list.Kind, append(all.Items, list.Items...)
		return list.Continue, err
	})
	return all, err
}

// ListRevocations returns all revocations. It fetches them page by page.
func (c *Client) ListRevocations(ctx context.Context) (api.RevocationList, error) {
	all := api.RevocationList{Items: []api.Revocation{}}
	err := c.pages(func(p api.ListPage) (string, error) {
		var list api.RevocationList
		err := c.do(ctx, http.MethodGet, "/v1/revocation"+query(p), nil, &list)
		all.APIVersion, all.Kind, all.Items = list.APIVersion, list.Kind, append(all.Items, list.Items...)
		return list.Continue, err
	})
	return all, err
}

// pages fetches one page after the other.
func (c *Client) pages(get func(api.ListPage) (next string, err error)) error {
	at := ""
	for {
		next, err := get(api.ListPage{Limit: api.MaxPage, Continue: at})
		if err != nil || next == "" {
			return err
		}
		if next == at {
			return fmt.Errorf("%s: the server returned the same page of a list twice", c.URL)
		}
		at = next
	}
}

// query returns a request as a query. The fields of the request must be strings or numbers, without zero values in JSON.
func query(req any) string {
	content, _ := json.Marshal(req) // strings and numbers have a JSON form
	fields := json.NewDecoder(bytes.NewReader(content))
	fields.UseNumber()
	var all map[string]any
	_ = fields.Decode(&all)
	values := url.Values{}
	for name, value := range all {
		values.Set(name, fmt.Sprint(value))
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

package client_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches a list that ends after its first page.
func TestListReadsAllPages(t *testing.T) {
	s, store, _ := newServer(t)
	var all sync.WaitGroup
	for i := range 1005 {
		token, err := tokens.New(fmt.Sprintf("t%05d", i), tokens.Generate().RevealSecret()) // among 1005 random IDs, two may be equal
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if _, err := store.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now())); err != nil {
				t.Error(err)
			}
			if i < 3 {
				if _, err := storetest.CreateClaim(t.Context(), store.Claims(), tokens.Claim{Node: "worker-" + string(rune('1'+i)), TokenID: "qwertz", TokenUID: "u"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	handler := must.Value(s.Handler())(t)
	var asked []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+"?"+strings.Split(r.URL.RawQuery, "continue=")[0])
		handler.ServeHTTP(w, r)
	}))
	defer web.Close()
	c := &client.Client{URL: web.URL, Bearer: bearer}
	list, err := c.ListTokens(t.Context())
	if err != nil || len(list.Items) != 1005 || list.Kind != api.KindTokenList || list.Continue != "" || !slices.IsSortedFunc(list.Items, func(a, b api.Token) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("%d tokens, %v", len(list.Items), err)
	}
	if len(asked) != 2 {
		t.Errorf("got requests %v, want two pages", asked)
	}
	page, err := c.TokensPage(t.Context(), api.ListPage{Limit: 3})
	if err != nil || len(page.Items) != 3 || page.Continue == "" {
		t.Errorf("%+v, %v", page, err)
	}
	rest, err := c.TokensPage(t.Context(), api.ListPage{Continue: page.Continue})
	if err != nil || len(rest.Items) != 1002 || rest.Items[0].ID <= page.Items[2].ID {
		t.Errorf("%d tokens, %v", len(rest.Items), err)
	}
	claims, err := c.ClaimsPage(t.Context(), api.ListPage{Limit: 2})
	if err != nil || len(claims.Items) != 2 || claims.Continue == "" {
		t.Errorf("%+v, %v", claims, err)
	}
	if claims, err := c.ListClaims(t.Context()); err != nil || len(claims.Items) != 3 || claims.Kind != api.KindClaimList {
		t.Errorf("%+v, %v", claims, err)
	}
}

// Catches an endless loop when a server returns the same continue token again.
func TestListEndsWhenPagesRepeat(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"items":[{}],"continue":"x"}`))
	}))
	defer other.Close()
	if list, err := (&client.Client{URL: other.URL}).ListTokens(t.Context()); err == nil || !strings.Contains(err.Error(), "returned the same page of a list twice") {
		t.Errorf("%d tokens, %v", len(list.Items), err)
	}
}

// Catches a malformed page that is skipped because it has a continue token.
func TestMalformedPageEndsList(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"continue":"x","kind":5}`))
	}))
	defer other.Close()
	if list, err := (&client.Client{URL: other.URL}).ListTokens(t.Context()); err == nil || !strings.Contains(err.Error(), "not from a kubejoin server") {
		t.Errorf("%d tokens, %v", len(list.Items), err)
	}
}

// Catches a discovery endpoint that requires a credential.
func TestDiscovery(t *testing.T) {
	s, _, ca := newServer(t)
	c := overTLS(t, s, ca)
	c.Bearer = ""
	kubeconfig := must.Value(c.ClusterInfo(t.Context()))(t)
	server, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil || server != "https://api.example.com:6443" || len(cas) != 1 || !cas[0].Equal(ca.Certificate()) {
		t.Errorf("%s with %d CAs, %v", server, len(cas), err)
	}
	list, err := c.CA(t.Context())
	if err != nil || len(list.Items) != 1 || list.Items[0].Pin != clusterinfo.Pin(ca.Certificate()) || !list.Items[0].NotAfter.Equal(ca.Certificate().NotAfter) {
		t.Errorf("%+v, %v", list, err)
	}
}

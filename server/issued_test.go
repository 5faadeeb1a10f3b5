package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
)

// recorded returns a site with an issuance record. It has two certificates of token qwertz that expire in 10 and in 100
// days, and one refusal.
func recorded(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.IssuanceRecord = rowrecord.New(s.store.Issued())
	now := time.Now()
	for i, e := range []issuance.Entry{
		{Outcome: issuance.Issued, TokenID: "qwertz", Node: "worker-1", Serial: "1f", NotAfter: now.AddDate(0, 0, 10), Certificate: "-----BEGIN CERTIFICATE-----\n"},
		{Outcome: issuance.Issued, TokenID: "qwertz", Node: "worker-2", Serial: "2f", CA: testPin, NotAfter: now.AddDate(0, 0, 100), Certificate: "-----BEGIN CERTIFICATE-----\n"},
		{Outcome: issuance.Refused, Requester: "system:node:worker-2", Node: "worker-3", Reason: "Bad"},
	} {
		e.Time, e.Signer = now.Add(time.Duration(i-3)*time.Hour), "kubernetes.io/kube-apiserver-client-kubelet"
		must.OK(t, s.IssuanceRecord.Append(t.Context(), e))
	}
	return s
}

// testPin is the pin of the CA of one recorded certificate.
var testPin = "sha256:" + strings.Repeat("ab", 32)

func TestListIssued(t *testing.T) {
	s := recorded(t)
	s.start(t)
	for query, want := range map[string]string{
		"": "Bad 2f 1f", "?tokenID=qwertz": "2f 1f", "?tokenID=asdfgh": "", "?node=worker-2": "Bad 2f", "?requester=system:node:worker-2": "Bad",
		"?signer=kubernetes.io/kube-apiserver-client-kubelet": "Bad 2f 1f", "?signer=example.com/x": "", "?outcome=refused": "Bad",
		"?endsWithin=720h": "1f", "?endsWithin=30d": "1f", "?endsWithin=200d": "1f 2f", "?endsWithin=1h": "", "?endsWithin=30d&tokenID=qwertz&outcome=issued": "1f",
		"?ca=" + strings.ToUpper(testPin): "2f", "?notCA=" + testPin: "1f", "?ca=sha256:" + strings.Repeat("0", 64): "",
		"?since=150m": "Bad 2f", "?since=1d": "Bad 2f 1f", "?since=" + time.Now().Add(-90*time.Minute).UTC().Format(time.RFC3339): "Bad", "?limit=2": "Bad 2f",
	} {
		list, _, got := askFor[api.IssuanceEntryList](t, s, "GET", "/v1/issued"+query, "")
		var names []string
		for _, e := range list.Items {
			names = append(names, e.Serial+e.Reason)
			if e.Kind != api.KindIssuanceEntry || e.Certificate != "" {
				t.Errorf("%s: %+v", query, e)
			}
		}
		if got.status != 200 || list.Kind != api.KindIssuanceEntryList || list.Items == nil || strings.Join(names, " ") != want || (list.Continue != "") != (query == "?limit=2") {
			t.Errorf("%s: %d %s, want %s", query, got.status, got.body, want)
		}
	}
	for query, want := range map[string]string{
		"?tokenID=x": "tokenID: ", "?tokenID=qwertz.qwertzuiopasdfgh": "tokenID: ", "?outcome=maybe": "outcome: ", "?limit=1001": "limit: ", "?limit=-1": "limit: ",
		"?endsWithin=soon": "endsWithin: ", "?endsWithin=-1h": "endsWithin: ", "?endsWithin=0d": "endsWithin: ", "?endsWithin=30d&outcome=refused": "endsWithin: ",
		"?ca=x": "ca: ", "?notCA=sha256:ab": "notCA: ",
		"?since=tomorrow": "since: ", "?continue=x": "continue: ",
	} {
		_, p, got := askFor[api.IssuanceEntryList](t, s, "GET", "/v1/issued"+query, "")
		if got.status != 400 || !strings.Contains(p.Detail, want) || strings.Contains(got.body, "qwertzuiop") {
			t.Errorf("%s: %d %s, want %q", query, got.status, got.body, want)
		}
	}
	if got := s.do(t, "HEAD", "/v1/issued", adminBearer, "", ""); got.status != 200 || got.body != "" {
		t.Errorf("HEAD: %d %s", got.status, got.body)
	}
}

func TestGetIssued(t *testing.T) {
	s := recorded(t)
	s.start(t)
	for path, status := range map[string]int{"1f": 200, "001F": 200, "00:1f": 200, "3f": 404, "x": 400, strings.Repeat("1", 41): 400, "1f?x=1": 400} {
		e, p, got := askFor[api.IssuanceEntry](t, s, "GET", "/v1/issued/"+path, "")
		if got.status != status || status == 200 && (e.Serial != "1f" || e.Certificate == "" || e.Kind != api.KindIssuanceEntry) || status == 404 && !p.Named("not-issued") {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// broken is an issuance record that cannot be read.
type broken struct{ issuance.Store }

func (broken) List(context.Context, issuance.Query) (issuance.Page, error) {
	return issuance.Page{}, errors.New("/var/lib/x: file is damaged")
}

func (broken) Get(context.Context, string) (issuance.Entry, error) {
	return issuance.Entry{}, errors.New("/var/lib/x: file is damaged")
}

func TestMissingOrBrokenRecordIsAProblem(t *testing.T) {
	for _, test := range []struct {
		store  issuance.Store
		status int
		want   string
	}{
		{nil, 404, "--issuance-record FILE"},
		{broken{}, 503, "cannot be read now"},
	} {
		s := newSite(t)
		s.IssuanceRecord = test.store
		s.start(t)
		for _, path := range []string{"/v1/issued", "/v1/issued/1f"} {
			if got := s.do(t, "GET", path, adminBearer, "", ""); got.status != test.status || !strings.Contains(got.body, test.want) || strings.Contains(got.body, "/var/lib") {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
	}
}

// Catches a query of the client that the server does not understand, or a page that the client skips.
func TestClientReadsIssuancePages(t *testing.T) {
	s := recorded(t)
	s.start(t)
	c := s.by(adminBearer)
	var names []string
	asked := api.ListIssued{Limit: 1}
	for range 3 {
		list := must.Get(c.ListIssued(t.Context(), asked))
		names, asked.Continue = append(names, list.Items[0].Serial), list.Continue
	}
	if fmt.Sprint(names) != "[ 2f 1f]" || asked.Continue != "" {
		t.Errorf("got pages %v and then %q, want \"[ 2f 1f]\" and no continue token", names, asked.Continue)
	}
	all := api.ListIssued{TokenID: "qwertz", Node: "worker-1", Signer: "kubernetes.io/kube-apiserver-client-kubelet", Outcome: "issued", NotCA: testPin, EndsWithin: "30d", Since: "7d"}
	if list, err := c.ListIssued(t.Context(), all); err != nil || len(list.Items) != 1 || list.Items[0].Serial != "1f" {
		t.Errorf("%+v, %v", list, err)
	}
	if e, err := c.GetIssued(t.Context(), "1f"); err != nil || e.Node != "worker-1" || e.Certificate == "" {
		t.Errorf("%+v, %v", e, err)
	}
}

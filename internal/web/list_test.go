package web_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
)

// In a list of objects, each field is read or refused, too.
func TestReadsEachFieldOfListedObjects(t *testing.T) {
	for body, want := range map[string]string{
		`{"items":[{"node":"a","key":"b"},{"node":"c"}]}`:  "",
		`{"items":[{"node":"a"},{"nodes":"a"}]}`:           "items[1].nodes: unknown",
		`{"items":[{"Node":"a"}]}`:                         "items[0].Node: unknown",
		`{"items":[{"node":"a","node":"b"}]}`:              "items[0].node: unknown, or given more than once",
		`{"items":[{"node":1}]}`:                           "items: want a list of objects",
		`{"items":{"node":"a"}}`:                           "items: want a list of objects",
		`{"items":[]}`:                                     "items: is empty",
		`{"items":[{"node":"a"}],"items":[{"node":"b"}]}`:  "items: given more than once",
		`{"items":[{"node":"a","nodeLabels":["b=c",{}]}]}`: "items: want a list of objects",
	} {
		var req api.AddMachines
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		err := web.ReadRequest(r, &req)
		if want == "" && (err != nil || len(req.Items) != 2 || req.Items[0].Key != "b") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %+v, %v, want %q", body, req, err, want)
		}
	}
}

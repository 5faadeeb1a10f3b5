package web_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
)

// ReadRequest must read or refuse each field of the objects in a list.
func TestReadsEachFieldOfListedObjects(t *testing.T) {
	for body, want := range map[string]string{
		`{"items":[{"node":"a","key":"b"},{"node":"c"}]}`:  "",
		`{"items":[{"node":"a"},{"nodes":"a"}]}`:           "items[1].nodes: unknown",
		`{"items":[{"Node":"a"}]}`:                         "items[0].Node: unknown",
		`{"items":[{"node":"a","node":"b"}]}`:              "items[0].node: given more than once",
		`{"items":[{"node":1}]}`:                           "items[0].node: a number given, want a string",
		`{"items":[{"node":"a"},"b"]}`:                     "items[1]: a string given, want an object",
		`{"items":[{"node":"a","ttl":""}]}`:                "items[0].ttl: is empty",
		`{"items":[{"node":"a","ttl":null}]}`:              "items[0].ttl: is null",
		`{"items":{"node":"a"}}`:                           "items: an object given, want a list of objects",
		`{"items":[]}`:                                     "items: is empty",
		`{"items":[{"node":"a"}],"items":[{"node":"b"}]}`:  "items: given more than once",
		`{"items":[{"node":"a","nodeLabels":["b=c",{}]}]}`: "items[0].nodeLabels: a list of other values given",
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

// The time to describe errors grows with the square of their number, so one response must describe only some of them.
func TestDescribesFewOfManyInvalidItems(t *testing.T) {
	var req []api.MachineSpec
	err := web.ReadItems([]byte("["+strings.Repeat("1,", 30000)+"1]"), &req)
	var invalid api.InvalidFields
	if !errors.As(err, &invalid) || len(invalid) != 20 {
		t.Errorf("got %d errors, want 20", len(invalid))
	}
}

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// If the response is lost, the command must repeat the request with the same token. Otherwise it would create a second
// token, or not print the first one.
func TestCreateRetriesAfterLostResponse(t *testing.T) {
	for _, test := range []struct {
		name  string
		lost  int64
		fails bool
	}{{"no response lost", 0, false}, {"first response lost", 1, false}, {"all responses lost", 100, true}} {
		t.Run(test.name, func(t *testing.T) {
			var left atomic.Int64
			left.Store(test.lost)
			web := newWebServer(t, func(api http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if left.Add(-1) >= 0 {
						api.ServeHTTP(httptest.NewRecorder(), r)
						panic(http.ErrAbortHandler) // drops the response
					}
					api.ServeHTTP(w, r)
				})
			})
			printed, err := web.run(t, "", "token", "create")
			records, listErr := web.store.List(t.Context())
			if listErr != nil || len(records) != 1 || strings.TrimSpace(printed) != records[0].Token.Reveal() {
				t.Errorf("got %d stored tokens and %d printed bytes (%v), want one token, and printed", len(records), len(printed), listErr)
			}
			if (err != nil) != test.fails || test.fails && !strings.Contains(err.Error(), "may have been created") {
				t.Errorf("%v", err)
			}
		})
	}
}

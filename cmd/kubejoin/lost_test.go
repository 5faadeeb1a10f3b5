package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A command whose answer was lost asks again, for the same token: it is made once, and printed.
func TestCreateRetriesAfterLostResponse(t *testing.T) {
	for _, test := range []struct {
		name  string
		lost  int64
		fails bool
	}{{"no answer", 0, false}, {"one", 1, false}, {"all", 100, true}} {
		t.Run(test.name, func(t *testing.T) {
			var left atomic.Int64
			left.Store(test.lost)
			web := newWebServer(t, func(api http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if left.Add(-1) >= 0 {
						api.ServeHTTP(httptest.NewRecorder(), r)
						panic(http.ErrAbortHandler) // the answer never comes
					}
					api.ServeHTTP(w, r)
				})
			})
			printed, err := web.run(t, "", "token", "create")
			records, listErr := web.store.List(t.Context())
			if listErr != nil || len(records) != 1 || strings.TrimSpace(printed) != records[0].Token.Reveal() {
				t.Errorf("%d tokens are stored, and what is printed has %d bytes: %v", len(records), len(printed), listErr)
			}
			if (err != nil) != test.fails || test.fails && !strings.Contains(err.Error(), "may be there") {
				t.Errorf("%v", err)
			}
		})
	}
}

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
					if (test.lost > 1 || r.Method == http.MethodPost) && left.Add(-1) >= 0 {
						api.ServeHTTP(httptest.NewRecorder(), r)
						panic(http.ErrAbortHandler) // drops the response
					}
					api.ServeHTTP(w, r)
				})
			})
			if test.lost == 1 {
				if _, err := web.run(t, "", "kubeconfig", "bootstrap"); err != nil {
					t.Errorf("kubeconfig bootstrap: %v", err)
				}
				if records, err := web.store.List(t.Context()); err != nil || len(records) != 1 || web.store.Delete(t.Context(), records[0]) != nil {
					t.Errorf("kubeconfig bootstrap: got %d stored tokens (%v), want one", len(records), err)
				}
				left.Store(1)
			}
			printed, err := web.run(t, "", "token", "create")
			records, listErr := web.store.List(t.Context())
			if listErr != nil || len(records) != 1 || strings.TrimSpace(printed) != records[0].Token.Reveal() {
				t.Errorf("got %d stored tokens and %d printed bytes (%v), want one token, and printed", len(records), len(printed), listErr)
			}
			if (err != nil) != test.fails || test.fails && !strings.Contains(err.Error(), "may have been created") {
				t.Errorf("%v", err)
			}
			if !test.fails {
				return
			}
			// Standard output must be empty, because a script would take a token for a join command.
			if printed, err := web.run(t, "", "token", "create", "--print-join-command"); printed != "" || err == nil || !strings.Contains(err.Error(), "kubejoin token delete ") {
				t.Errorf("--print-join-command: got %d printed bytes and %v", len(printed), err)
			}
		})
	}
}

// Catches a command that waits for a server after an interrupt, and does not print the token that may exist.
func TestCreateEndsAtOnceAfterInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var requests atomic.Int32
	web := newWebServer(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			requests.Add(1)
			interrupt()
			panic(http.ErrAbortHandler)
		})
	})
	var out, errs bytes.Buffer
	err := run(ctx, web.args("", "token", "create"), &out, &errs)
	if err == nil || !strings.Contains(err.Error(), "may have been created") || !strings.Contains(out.String(), ".") || requests.Load() != 1 {
		t.Errorf("got %v, %d printed bytes and %d requests, want the token after one request", err, out.Len(), requests.Load())
	}
}

func TestDeadlineNamesItsFlag(t *testing.T) {
	t.Parallel()
	hang := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	web := newWebServer(t, func(http.Handler) http.Handler { return hang })
	if _, err := web.run(t, "", "kubeconfig", "user", "jane", "--wait", "50ms"); err == nil || !strings.HasSuffix(err.Error(), "deadline exceeded: --wait 50ms") {
		t.Errorf("got %v", err)
	}
	need.Long(t)
	silent := httptest.NewTLSServer(hang)
	t.Cleanup(silent.Close)
	kubeconfig := filepath.Join(t.TempDir(), "admin.conf")
	cluster := &clientcmdapi.Cluster{Server: silent.URL, InsecureSkipTLSVerify: true}
	must.OK(t, clientcmd.WriteToFile(oneCluster("kubernetes", cluster, "me", &clientcmdapi.AuthInfo{Token: "me"}), kubeconfig))
	err := run(t.Context(), []string{"kubeconfig", "user", "jane", "--kubeconfig", kubeconfig}, io.Discard, io.Discard)
	if err == nil || !strings.HasSuffix(err.Error(), "deadline exceeded") {
		t.Errorf("the API server does not respond: got %v, want no flag", err)
	}
}

// A script takes standard output for a join command, so kubejoin must not print a bare token there.
func TestPrintsJoinCommandOrNothing(t *testing.T) {
	for format, lost := range map[string]func(http.ResponseWriter, *http.Request, http.Handler){
		"text": func(w http.ResponseWriter, r *http.Request, api http.Handler) { // the response lacks the join command
			made := httptest.NewRecorder()
			api.ServeHTTP(made, r)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(made.Code)
			_, _ = w.Write(bytes.ReplaceAll(made.Body.Bytes(), []byte(`"joinCommand"`), []byte(`"other"`)))
		},
		"script": func(w http.ResponseWriter, r *http.Request, api http.Handler) { // the server has no cluster-info
			if r.Method == http.MethodGet {
				http.NotFound(w, r)
				return
			}
			api.ServeHTTP(w, r)
		},
	} {
		web := newWebServer(t, func(api http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { lost(w, r, api) })
		})
		printed, err := web.run(t, "", "token", "create", "--print-join-command", "--format", format)
		records, listErr := web.store.List(t.Context())
		if printed != "" || err == nil || listErr != nil || len(records) != 1 || !strings.HasSuffix(err.Error(), "kubejoin token delete "+records[0].Token.ID()) {
			t.Errorf("%s: got %d printed bytes and %v, want nothing and how to delete the token", format, len(printed), err)
		}
		// Machines may already use a token that the caller chose, so the error must not advise to delete it.
		if printed, err := web.run(t, "", "token", "create", "s3fk29.dls0w8fjq2s3fk29", "--print-join-command", "--format", format); printed != "" || err == nil || strings.Contains(err.Error(), "token delete") {
			t.Errorf("%s, token of the caller: got %d printed bytes and %v, want nothing and an error without a deletion", format, len(printed), err)
		}
	}
}

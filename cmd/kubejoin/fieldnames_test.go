package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// An error must name the invalid field in the form that the caller used: flag, JSON field, query parameter or
// annotation.
func TestErrorNamesFlagFieldOrAnnotation(t *testing.T) {
	web := newWebServer(t, func(api http.Handler) http.Handler { return api })
	for _, test := range []struct {
		value                   string
		field, flag, annotation string
		json                    string // JSON of the value; if empty, value in quotes
	}{
		{"5000", "maxNodes", "--max-nodes", "max-nodes", "5000"},
		{"Worker_1", "nodeNames", "--node-name", "node-names", `["Worker_1"]`},
		{"1m", "certificateDuration", "--certificate-duration", "certificate-duration", ""},
		{"king", "role", "--role", "role", ""},
		{"maybe", "rejoin", "--rejoin", "rejoin", ""},
		{"Worker_1", "replaceNode", "--replace-node", "replaces-node", ""},
		{"a", "nodeLabels", "--node-label", "node-labels", `["a"]`},
		{"a:Never", "nodeTaints", "--node-taint", "node-taints", `["a:Never"]`},
		{"never", "nodeReadyAfter", "--node-ready-after", "node-ready-after", ""},
		{"system:masters", "groups", "--groups", "", `["system:masters"]`},
		{"v1/node/a/u", "owner", "--owner", "", ""},
		{"a\tb", "description", "--description", "", `"a\tb"`},
		{"tomorrow", "expires", "--expires", "", ""},
	} {
		t.Run(test.field, func(t *testing.T) {
			if test.json == "" {
				test.json = `"` + test.value + `"`
			}
			for what, p := range map[string]api.Problem{
				"JSON":  web.post(t, "/v1/token", `{"`+test.field+`":`+test.json+`}`),
				"query": web.post(t, "/v1/token?"+test.field+"="+url.QueryEscape(test.value), ""),
			} {
				if p.Field != test.field || len(p.Errors) != 1 || p.Errors[0].Field != test.field || p.Detail != test.field+": "+p.Errors[0].Detail {
					t.Errorf("%s: %+v", what, p)
				}
			}
			_, err := web.run(t, "", "token", "create", test.flag, test.value)
			if usage := (*usageError)(nil); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), test.flag+": ") || strings.Contains(err.Error(), "; ") {
				t.Errorf("flag: %v", err)
			}
			if test.annotation == "" {
				return
			}
			name := "kubejoin.io/" + test.annotation
			err = limitsOf(t, map[string]string{name: test.value}).Problem
			if field := (*tokens.FieldError)(nil); !errors.As(err, &field) || field.Field != name || !strings.HasPrefix(err.Error(), name+": ") {
				t.Errorf("annotation: %v", err)
			}
		})
	}
	// Several errors at once must all have the same form.
	_, err := web.run(t, "", "token", "create", "--max-nodes", "5000", "--node-name", "A,B", "--certificate-duration", "1m", "--description", "\t", "--groups", "x")
	var names []string
	for _, line := range strings.Split(err.Error(), "; ") {
		name, _, _ := strings.Cut(line, ": ")
		names = append(names, name)
	}
	if got, want := strings.Join(names, " "), "--groups --description --max-nodes --node-name --node-name --certificate-duration"; got != want {
		t.Errorf("several flags: %v, want errors of %s", err, want)
	}
	err = limitsOf(t, map[string]string{"kubejoin.io/replaces-node": "worker-1/u", "kubejoin.io/max-nodes": "2"}).Problem
	if err == nil || !strings.HasPrefix(err.Error(), "kubejoin.io/max-nodes: 2 given, want at most 1") {
		t.Errorf("two annotations: %v", err)
	}
}

// post sends a request and returns the problem in the response.
func (w *webServer) post(t *testing.T, path, body string) api.Problem {
	t.Helper()
	r := must.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, strings.NewReader(body)))(t)
	r.Header.Set("Authorization", "Bearer bearer-0123456789abcdef")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer := must.Value(client.Do(r))(t)
	defer answer.Body.Close()
	var p api.Problem
	must.OK(t, json.NewDecoder(answer.Body).Decode(&p))
	return p
}

// limitsOf returns the limits of a token whose Secret has these annotations.
func limitsOf(t *testing.T, annotations map[string]string) tokens.Limits {
	t.Helper()
	secret := corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abc123", Annotations: annotations},
		Type:       "bootstrap.kubernetes.io/token",
		Data:       map[string][]byte{"token-id": []byte("abc123"), "token-secret": []byte("s3cr3ts3cr3ts3cr")},
	}
	kube := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/secrets/"+secret.Name) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(secret) // fails only if the client is gone
	}))
	t.Cleanup(kube.Close)
	client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: kube.URL}))(t)
	store := must.Value(secretstore.Open(t.Context(), client, nil))(t)
	r := must.Value(store.Get(t.Context(), "abc123", tokens.Live))(t)
	return r.Limits
}

package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/hostile"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
)

// Sends deep, long, repetitive and out-of-range JSON to every route that reads a body. Catches one that accepts it or
// that needs much time or memory.
func TestRefusesHostileJSON(t *testing.T) {
	w := newWholeSite(t)
	w.handler = w.Server.Handler() // without the check against openapi.yaml, which keeps responses in memory
	const most = server.MaxBody
	nested := func(open, end string) string {
		n := (most - 2) / (len(open) + len(end))
		return strings.Repeat(open, n) + "1" + strings.Repeat(end, n)
	}
	bodies := map[string]string{
		"deep arrays":         nested("[", "]"),
		"deep objects":        nested(`{"a":`, "}"),
		"deep, never closed":  strings.Repeat(`{"spec":`, most/8),
		"deep in a field":     `{"object":` + nested("[", "]")[:most-12] + "}",
		"many digits":         `{"maxNodes":` + strings.Repeat("9", most-20) + `}`,
		"great exponent":      `{"maxNodes":1e999999999,"wait":1e-999999999}`,
		"long string":         `{"description":"` + strings.Repeat("x", most-20) + `"}`,
		"escapes":             `{"description":"` + strings.Repeat(`\u0000`, most/6-10) + `"}`,
		"long list":           `{"groups":[` + strings.Repeat(`"",`, most/3-10) + `""]}`,
		"long list of names":  `{"nodeNames":[` + strings.Repeat(`"*",`, most/4-10) + `"*"]}`,
		"many bad names":      `{"nodeNames":[` + strings.Repeat(`"",`, most/3-10) + `"A"],"maxNodes":-1}`,
		"many usages":         `{"usages":[` + strings.Repeat(`"",`, most/3-10) + `"x"]}`,
		"long list of lists":  `{"spec":{"audiences":[` + strings.Repeat(`[],`, most/3-20) + `[]]}}`,
		"same field":          `{` + strings.Repeat(`"ttl":"1h",`, most/11-3) + `"ttl":"1h"}`,
		"many fields":         `{` + strings.Repeat(`"":1,`, most/5-3) + `"":1}`,
		"a byte too many":     `{"ttl":"1h"}` + strings.Repeat(" ", most),
		"two documents":       `{}{}`,
		"byte order mark":     "\ufeff{}",
		"zero bytes":          strings.Repeat("\x00", most),
		"a list":              `[{}]`,
		"another kind of all": `{"ttl":[],"groups":{},"maxNodes":"1","dryRun":"true","token":1,"object":1,"kind":{},"spec":[]}`,
	}
	for name, body := range bodies {
		for _, on := range w.routes {
			if on.Method == http.MethodGet {
				continue
			}
			t.Run(name+" "+on.Name, func(t *testing.T) {
				who := byte(0)
				if on.Name == "tokenreview" || on.Name == "subjectaccessreview" {
					who = 3
				}
				fuzzing.RunWithinLimit(t, func() {
					got := w.fire(t, on, shot{segment: "<id>", headers: "Content-Type: application/json", body: body, who: who})
					denied := on.Name == "subjectaccessreview" && strings.Contains(got.Body.String(), `"denied":true`)
					if (got.Code < 400 || got.Code >= 500) && !denied {
						t.Errorf("%d %s", got.Code, got.Body)
					}
				})
			})
		}
	}
}

// Catches a CSR that no signer may sign but that is signed over HTTPS, even for a caller that may use every signer.
func TestRefusesHostileCSRs(t *testing.T) {
	s, _ := certifying(t)
	handler := s.Server.Handler()
	token := s.token(t, nil)
	// The server refuses these as parameters, before it parses the CSR.
	parameters := map[string]string{
		"no usages": "is empty", "usage that there is none of": `"root" given, want a usage that a certificate can have`, "usage of a CA": `"cert sign" given, want a usage that a certificate can have`,
		"negative duration": "want at least 10m0s",
	}
	for _, h := range hostile.Corpus() {
		t.Run(h.Name, func(t *testing.T) {
			query := url.Values{"signer": {h.Signer}, "usages": {}}
			for _, u := range h.Usages {
				query.Add("usages", string(u))
			}
			if len(h.Usages) == 0 {
				query.Set("usages", "")
			}
			if h.Duration != 0 {
				query.Set("duration", h.Duration.String())
			}
			want := h.Want
			if parameter := parameters[h.Name]; parameter != "" {
				want = parameter
			}
			if len(h.PEM) > 64<<10 {
				want = "65536" // the body is not read
			}
			fuzzing.RunWithinLimit(t, func() {
				w := send(handler, certificatePath+"?"+query.Encode(), adminBearer, "", bytes.NewReader(h.PEM))
				var p api.Problem
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
					t.Fatalf("%d %s: %v", w.Code, w.Body, err)
				}
				if w.Code < 400 || w.Code >= 500 || !strings.Contains(p.Detail, want) {
					t.Errorf("%d %s, want a refusal that says %q", w.Code, p.Detail, want)
				}
			})
			w := send(handler, certificatePath+"?"+query.Encode(), token, "", bytes.NewReader(h.PEM))
			var p api.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			// A bootstrap token gets the detailed reason only for the client signer of kubelets.
			if kubelet := h.Signer == clientSigner; w.Code < 400 || w.Code >= 500 || kubelet && !strings.Contains(p.Detail, want) {
				t.Errorf("on a bootstrap token: %d %s, want a refusal that says %q", w.Code, p.Detail, want)
			}
		})
	}
}

package server_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// uploading returns a site whose uploads return up, and the number of uploads.
func uploading(t *testing.T, up joinformat.Upload, err error) (*site, *int) {
	t.Helper()
	s, n := newSite(t), 0
	s.Minting.UploadCertificates = func(context.Context) (joinformat.Upload, error) {
		n++
		return up, err
	}
	return s, &n
}

func newUpload() joinformat.Upload {
	return joinformat.Upload{Key: joinformat.GenerateCertificateKey(), Expires: time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second), TokenID: "0wn3r0"}
}

const controlPlane = commandPath + "?controlPlane=true"

// Each format except kubeconfig must contain the key, which must appear nowhere else.
func TestControlPlaneJoinCommandHasKey(t *testing.T) {
	up := newUpload()
	up.Replaced = true
	s, uploads := uploading(t, up, nil)
	s.start(t)
	for _, format := range []string{api.FormatText, api.FormatJSON, api.FormatYAML, api.FormatScript, api.FormatCloudConfig, api.FormatIgnition} {
		before := s.ids(t)
		got := s.do(t, "POST", controlPlane+"&format="+format, adminBearer, "", "")
		body := got.body
		if format == api.FormatCloudConfig || format == api.FormatIgnition {
			body = scriptIn(t, body)
		}
		if got.status != 200 || !strings.Contains(body, up.Key.Reveal()) || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %s", format, got.status, got.body)
		}
		if format == api.FormatScript && !strings.Contains(body, "\n    turns='"+s.Minting.Advertise+"'\n") {
			t.Errorf("the script waits for its turn elsewhere than at %s", s.Minting.Advertise)
		}
		if w := got.header.Get("Warning"); !strings.Contains(w, up.Expires.Format(time.RFC3339)) || !strings.Contains(w, "earlier certificate key no longer work") || strings.Contains(w, up.Key.Reveal()) {
			t.Errorf("%s: got Warning %s", format, w)
		}
		record := s.minted(t, before)
		if left, l := time.Until(record.Expires), record.Limits; l.MaxNodes != 1 || l.Role != tokens.RoleControlPlane || !slices.Equal(record.Groups, []string{tokens.DefaultGroup}) || left < 119*time.Minute || left > 121*time.Minute {
			t.Errorf("%s: got token %+v, want one for one control plane and 2h", format, record)
		}
	}
	before := s.ids(t)
	if got := s.do(t, "POST", commandPath, adminBearer, "application/json", `{"controlPlane":true,"maxNodes":3,"ttl":"1h"}`); got.status != 200 || !strings.HasSuffix(got.body, " --control-plane --certificate-key "+up.Key.Reveal()+"\n") {
		t.Errorf("in the body: %d %s", got.status, got.body)
	}
	if r := s.minted(t, before); r.Limits.MaxNodes != 3 || time.Until(r.Expires) > 61*time.Minute {
		t.Errorf("got %+v, want the limits of the request", r)
	}
	if got := s.do(t, "POST", commandPath+"?maxNodes=1&format=json&controlPlane=false", adminBearer, "", ""); got.status != 200 || strings.Contains(got.body, "certificateKey") || *uploads != 7 {
		t.Errorf("a worker: %d %s, %d uploads, want 7", got.status, got.body, *uploads)
	}
	log := s.logs.String()
	if strings.Contains(log, up.Key.Reveal()) {
		t.Error("the log has the certificate key")
	}
	if !regexp.MustCompile(`msg="uploaded the certificates of control planes" user=ada token=[a-z0-9]{6} owner=0wn3r0 expires=\S+ replaced_keys=true shared_key=false`).MatchString(log) {
		t.Errorf("the log has no line about the upload:\n%s", log)
	}
}

// scriptIn returns the compressed script in a document.
func scriptIn(t *testing.T, document string) string {
	t.Helper()
	encoded := regexp.MustCompile("H4sI[0-9A-Za-z+/=]+").FindString(document)
	script := must.Get(io.ReadAll(must.Get(gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(encoded))))))
	return string(script)
}

// Catches a missing check, an upload or a token after a refusal, and a refusal without the permission's name.
func TestControlPlaneJoinCommandNeedsItsPermission(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	needs := []string{"create tokens.kubejoin.io", "create tokens/controlplane.kubejoin.io", "create tokens/roles.kubejoin.io control-plane"}
	var may []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if slices.Contains(may, a.String()) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.start(t)
	for i, missing := range needs {
		may = slices.Delete(slices.Clone(needs), i, i+1)
		for _, path := range []string{controlPlane, controlPlane + "&format=kubeconfig", controlPlane + "&ttl=1h"} {
			if got := s.do(t, "POST", path, viewerBearer, "", ""); got.status != 403 && !(i == 2 && got.status == 400) || got.status == 403 && !strings.Contains(got.body, missing) {
				t.Errorf("%s without %s: %d %s", path, missing, got.status, got.body)
			}
		}
	}
	if *uploads > 0 || len(s.ids(t)) > 0 {
		t.Errorf("got %d uploads and tokens %v after refusals, want none", *uploads, s.ids(t))
	}
	may = needs
	if got := s.do(t, "POST", controlPlane, viewerBearer, "", ""); got.status != 200 || *uploads != 1 {
		t.Errorf("%d %s, %d uploads", got.status, got.body, *uploads)
	}
}

// Package operations tests each field. Catches an upload or a token after a refusal.
func TestControlPlaneJoinCommandRefuses(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	s.start(t)
	for path, want := range map[string]string{
		controlPlane + "&format=kubeconfig": `"field":"format"`,
		controlPlane + "&role=worker":       `"field":"role"`,
		commandPath + "?controlPlane=yes":   `"field":"controlPlane"`,
		"/v1/token?controlPlane=true":       `"field":"controlPlane"`, // without a join command
	} {
		if got := s.do(t, "POST", path, adminBearer, "", ""); got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %s, want %s", path, got.status, got.body, want)
		}
	}
	if *uploads > 0 || len(s.ids(t)) > 0 {
		t.Errorf("got %d uploads and tokens %v, want none", *uploads, s.ids(t))
	}
	without := newSite(t)
	without.start(t)
	if got := without.do(t, "POST", controlPlane, adminBearer, "", ""); got.status != 400 || !strings.Contains(got.body, "--pki-dir") {
		t.Errorf("without uploads: %d %s", got.status, got.body)
	}
}

// The token must be deleted. If an earlier key must expire first, the error must say when to retry, and name the
// command that helps at once.
func TestControlPlaneJoinCommandDeletesTokenOfFailedUpload(t *testing.T) {
	end := time.Now().Add(10 * time.Minute)
	for _, test := range []struct {
		err         error
		least, most int // bounds of Retry-After
		want        []string
	}{
		{errors.New("sa.key is missing"), 1, 10, []string{"certificates-not-uploaded"}},
		{fmt.Errorf("upload: %w", &joinformat.KeyEndsError{Expires: end}), 500, 601, []string{end.UTC().Format(time.RFC3339), "kubejoin certs delete"}},
	} {
		s, uploads := uploading(t, joinformat.Upload{}, test.err)
		s.start(t)
		got := s.do(t, "POST", controlPlane, adminBearer, "", "")
		if seconds, _ := strconv.Atoi(got.header.Get("Retry-After")); got.status != 503 || strings.Contains(got.body, "sa.key") || seconds < test.least || seconds > test.most {
			t.Errorf("%v: %d %v %s", test.err, got.status, got.header, got.body)
		}
		for _, want := range test.want {
			if !strings.Contains(got.body, want) {
				t.Errorf("got %s, want %s", got.body, want)
			}
		}
		if *uploads != 1 || len(s.ids(t)) > 0 || !strings.Contains(s.logs.String(), test.err.Error()) {
			t.Errorf("%d uploads, tokens %v, want the token deleted and the reason in the log:\n%s", *uploads, s.ids(t), s.logs)
		}
	}
}

// All users share one rate, in addition to their own rates.
func TestControlPlaneJoinCommandsHaveRate(t *testing.T) {
	s, uploads := uploading(t, newUpload(), nil)
	s.Limits.UserRate = server.Rate{QPS: 1000, Burst: 1000}
	s.Limits.UserTokens = -1
	s.start(t)
	for range 10 {
		if got := s.do(t, "POST", controlPlane, adminBearer, "", ""); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	before := s.ids(t)
	got := s.do(t, "POST", controlPlane, adminBearer, "", "")
	if got.status != 429 || got.header.Get("Retry-After") != "30" || *uploads != 10 || len(s.ids(t)) != len(before) {
		t.Errorf("%d %v %s, %d uploads", got.status, got.header, got.body, *uploads)
	}
	if got := s.do(t, "POST", commandPath+"?maxNodes=1", adminBearer, "", ""); got.status != 200 {
		t.Errorf("a worker: %d %s", got.status, got.body)
	}
	s.Limits.UserRate, s.Registerer = server.Rate{QPS: -1}, nil
	unlimited := s.Handler()
	for range 11 {
		if status, body := served(unlimited, asAdmin(newRequest("POST", controlPlane, ""))); status != 200 {
			t.Fatalf("without a rate: %d %s", status, body)
		}
	}
}

const turnPath = "/v1/controlplane/turn"

// A fakeTurns keeps the turn in memory. It never expires.
type fakeTurns struct {
	mu    sync.Mutex
	state controlplane.State
	// learner is the peer URL of a learner in etcd.
	learner string
	err     error
}

func (f *fakeTurns) Take(_ context.Context, m controlplane.Machine) (controlplane.State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var granted bool
	f.state, granted = f.state.Take(m, false, f.learner, time.Now().UTC().Truncate(time.Second))
	return f.state, granted, f.err
}

func (f *fakeTurns) GiveBack(_ context.Context, m controlplane.Machine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = f.state.GiveBack(m, time.Now())
	return f.err
}

func turnBody(node, digit string) string {
	return `{"node":"` + node + `","id":"` + strings.Repeat(digit, 32) + `"}`
}

func controlPlaneToken(t *testing.T, s *site) string {
	t.Helper()
	return s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Limits.Role = 1, tokens.RoleControlPlane })
}

func TestControlPlanesTakeTurns(t *testing.T) {
	s, turns := newSite(t), &fakeTurns{}
	s.Cluster.Turns = turns
	s.start(t)
	first, second := controlPlaneToken(t, s), controlPlaneToken(t, s)
	got := s.do(t, "POST", turnPath, first, "application/json", turnBody("control-2", "2"))
	var made api.Turn
	if err := json.Unmarshal([]byte(got.body), &made); got.status != 200 || err != nil || made.Kind != api.KindTurn || made.Node != "control-2" || made.Since.IsZero() || made.RenewSeconds != 10 {
		t.Errorf("%d %s, %v", got.status, got.body, err)
	}
	// Another machine requests the turn, with its own token or with the same token.
	for _, token := range []string{second, first} {
		got := s.do(t, "POST", turnPath, token, "application/json", turnBody("control-3", "3"))
		if got.status != 409 || !strings.Contains(got.body, "/"+api.ProblemTurnTaken) || !strings.Contains(got.body, "control-2 has been joining as a control plane since ") ||
			!strings.Contains(got.body, "control-3 waits") || got.header.Get("Retry-After") != "5" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	if got := s.do(t, "DELETE", turnPath, first, "application/json", turnBody("control-2", "2")); got.status != 200 || strings.Contains(got.body, "since") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	turns.state, turns.learner = controlplane.State{}, "https://192.0.2.9:2380"
	if got := s.do(t, "POST", turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 409 || !strings.Contains(got.body, "the etcd member https://192.0.2.9:2380 is still a learner; control-3 waits") {
		t.Errorf("%d %s", got.status, got.body)
	}
	turns.learner = ""
	if got := s.do(t, "POST", turnPath, second, "application/json", strings.Replace(turnBody("control-3", "3"), "}", `,"address":"192.0.2.3"}`, 1)); got.status != 200 || turns.state.Holder.Address != "192.0.2.3" {
		t.Errorf("%d %s, %+v", got.status, got.body, turns.state)
	}
	turns.err = errors.New("leaderless")
	for _, method := range []string{"POST", "DELETE"} {
		if got := s.do(t, method, turnPath, second, "application/json", turnBody("control-3", "3")); got.status != 503 || strings.Contains(got.body, "leaderless") || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
}

// Only a usable token for control planes may take or give back a turn. The reason of a refused token is only in the log.
func TestTurnNeedsControlPlaneToken(t *testing.T) {
	s, turns := newSite(t), &fakeTurns{}
	s.Cluster.Turns = turns
	var failure error // error of the store
	s.Tokens = storetest.Before(func() error { return failure }, "Store.Get").Store(storetest.Alter(func(r *tokens.Record) {
		if r.Description == "malformed limits" {
			r.Limits.Problem = errAway
		}
	}).Store(s.store))
	s.start(t)
	good := controlPlaneToken(t, s)
	for name, c := range map[string]struct {
		bearer string
		status int
	}{
		"nobody":           {"", 401},
		"administrator":    {adminBearer, 401},
		"worker":           {s.token(t, func(r *tokens.Record) { r.Limits.MaxNodes = 1 }), 403},
		"wrong secret":     {good[:7] + "0000000000000000", 401},
		"control plane":    {good, 200},
		"without any role": {s.token(t, func(r *tokens.Record) { r.Limits.NodeNames = []string{"control-2"} }), 403},
		"malformed limits": {s.token(t, func(r *tokens.Record) {
			r.Description, r.Limits.Role = "malformed limits", tokens.RoleControlPlane
		}), 403},
	} {
		for _, method := range []string{"POST", "DELETE"} {
			if got := s.do(t, method, turnPath, c.bearer, "application/json", turnBody("control-2", "2")); got.status != c.status || (c.bearer == "") != strings.Contains(got.body, "authentication required") {
				t.Errorf("%s: %s: got %d %s, want %d", name, method, got.status, got.body, c.status)
			}
			if c.status != 200 && turns.state.Holder != (controlplane.Machine{}) {
				t.Fatalf("%s took the turn", name)
			}
		}
	}
	failure = errAway
	if got := s.do(t, "POST", turnPath, good, "application/json", turnBody("control-2", "2")); got.status != 503 || !strings.Contains(got.body, "tokens-unavailable") {
		t.Errorf("without a store: got %d %s, want 503", got.status, got.body)
	}
}

func TestTurnRefusesMalformedRequests(t *testing.T) {
	s := newSite(t)
	s.start(t)
	token := controlPlaneToken(t, s)
	for body, want := range map[string]string{
		`{"node":"control-2"}`:     `"field":"id"`,
		turnBody("Control", "2"):   `"field":"node"`,
		turnBody("control-2", "G"): `"field":"id"`,
		turnBody("control-2", "A"): `"field":"id"`,
		`{"node":"a","id":"` + strings.Repeat("2", 32) + `","address":"a"}`:                                       `"field":"address"`,
		`{"node":"a","id":"` + strings.Repeat("2", 32) + `","address":"fe80::1%` + strings.Repeat("a", 58) + `"}`: `"field":"address"`,
		turnBody(strings.Repeat("a", 300), "2"):                                                                   `"field":"node"`,
	} {
		if got := s.do(t, "POST", turnPath, token, "application/json", body); got.status != 400 || !strings.Contains(got.body, want) {
			t.Errorf("%s: got %d %s, want %s", body, got.status, got.body, want)
		}
	}
	if got := s.do(t, "POST", turnPath, token, "application/json", turnBody("control-2", "2")); got.status != 404 || !strings.Contains(got.body, "no-turns") {
		t.Errorf("without a cluster: %d %s", got.status, got.body)
	}
}

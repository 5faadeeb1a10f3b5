package server_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// rotationMemory stores rotations in memory. A test can set its observations.
type rotationMemory struct {
	rotationtest.Memory
	seen []rotation.Observation // nil: only kubejoin, which follows the stage
	err  error                  // error of Get
}

func (m *rotationMemory) Get(ctx context.Context, ca rotation.CA) (rotation.Rotation, string, error) {
	if m.err != nil {
		return rotation.Rotation{}, "", m.err
	}
	return m.Memory.Get(ctx, ca)
}

// set stores a rotation of the cluster CA in a stage.
func (m *rotationMemory) set(t testing.TB, r rotation.Rotation, stage rotation.Stage) {
	t.Helper()
	r.Stage = stage
	_, version, err := m.Memory.Get(t.Context(), r.CA)
	must.OK(t, errors.Join(err, m.Memory.Put(t.Context(), r, version)))
}

func (m *rotationMemory) Observe(_ context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	if m.seen != nil {
		return m.seen, nil
	}
	o := rotation.Observation{Kind: rotation.KindServer, Name: "kubejoin", Trusts: &rotation.Trusted{Old: r.TrustsOld(), New: r.TrustsNew()}, From: rotation.FromOld}
	if r.SignsNew() {
		o.From = rotation.FromNew
	}
	return []rotation.Observation{o}, nil
}

// newRotation returns a rotation of the CA of a site.
func (s *site) newRotation(t testing.TB) rotation.Rotation {
	t.Helper()
	fresh := must.Value(signer.GenerateCA("kubernetes-2", time.Now(), 24*time.Hour))(t)
	cross := must.Value(s.ca.CrossSign(fresh.Certificate()))(t)
	return must.Value(rotation.New(rotation.Cluster, s.ca.Bundle(), fresh.Bundle(), cross, time.Now()))(t)
}

// rotating makes a site rotate CAs in memory.
func (s *site) rotating() *rotationMemory {
	m := &rotationMemory{}
	s.Rotations = &operations.Rotations{Desk: &rotation.Desk{
		Store: m, Keys: m, Observer: m, ExpireTokens: operations.ExpireTokens(&mint.Minter{Tokens: s.store, ClusterInfo: s.ClusterInfo}),
		Trusted: func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return s.ca.Bundle(), nil },
	}, Cross: func(_ rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error) { return s.ca.CrossSign(fresh) }}
	return m
}

// rotate sends a request to a route of the cluster CA's rotation, and fails the test unless it gets the status.
func rotate(t *testing.T, handler http.Handler, want int, step, body string) (api.CARotation, api.Problem) {
	t.Helper()
	method, path := "POST", "/v1/ca/cluster/rotation/"+step
	if step == "" {
		method, path = "GET", "/v1/ca/cluster/rotation"
	}
	r := asAdmin(newRequest(method, path, body))
	r.Header.Set("Content-Type", "application/json")
	status, answer := served(handler, r)
	if status != want {
		t.Fatalf("%s %s: got %d %s, want %d", step, body, status, answer, want)
	}
	var shown api.CARotation
	var p api.Problem
	if status < 300 {
		must.OK(t, json.Unmarshal([]byte(answer), &shown))
	} else {
		must.OK(t, json.Unmarshal([]byte(answer), &p))
	}
	return shown, p
}

// Catches a step whose route does something else, a certificate key that is lost or shown twice, and a dry run that
// changes something.
func TestRotatesCAThereAndBack(t *testing.T) {
	s := newSite(t)
	s.rotating()
	now := time.Now()
	s.Rotations.Desk.Now = func() time.Time { return now }
	handler := s.Handler()
	if none, _ := rotate(t, handler, 200, "", ""); none.ID != "" || none.CA != "cluster" || none.Next != "prepare" {
		t.Errorf("before: got %+v, want no rotation, and prepare next", none)
	}
	if dry, _ := rotate(t, handler, 200, "prepare", `{"dryRun":true}`); !dry.DryRun || dry.CertificateKey != "" || dry.Stage != "prepare" {
		t.Errorf("dry run: got %+v, want stage prepare without a certificate key", dry)
	}
	made, _ := rotate(t, handler, 200, "prepare", `{"lifetime":"3650d"}`)
	if len(made.CertificateKey) != 64 || len(made.Old) != 1 || len(made.New) != 1 || made.Old[0].Pin == made.New[0].Pin || made.New[0].NotAfter.Sub(made.New[0].NotBefore).Round(24*time.Hour) != 3650*24*time.Hour {
		t.Errorf("prepare: got %+v, want a certificate key, an old CA and a new one for 3650 days", made)
	}
	for _, test := range []struct {
		step, stage, signs, next string
		old, fresh               bool // which CAs are trusted
		aborting, ended          bool
		waits                    bool // the step waits until clients have re-read files
	}{
		{"trust", "trust", "old", "switch", true, true, false, false, false},
		{"switch", "switch", "new", "finish", true, true, false, false, false},
		{"finish", "finish", "new", "finish", false, true, false, false, false},
		{"abort", "switch", "new", "abort", true, true, true, false, false},
		{"abort", "trust", "old", "abort", true, true, true, false, true},
		{"abort", "prepare", "old", "abort", true, false, true, false, false},
		{"abort", "prepare", "old", "prepare", true, false, true, true, false},
	} {
		if test.waits {
			rotate(t, handler, 409, test.step, "")
			now = now.Add(time.Hour)
		}
		before, _ := rotate(t, handler, 200, "", "")
		dry, _ := rotate(t, handler, 200, test.step, `{"dryRun":true}`)
		if after, _ := rotate(t, handler, 200, "", ""); !dry.DryRun || dry.Stage != test.stage || after.Stage != before.Stage || !after.Ended.Equal(before.Ended) {
			t.Errorf("dry run of %s: got %+v, then %+v, want no change", test.step, dry, after)
		}
		got, _ := rotate(t, handler, 200, test.step, "")
		if got.ID != made.ID || got.Stage != test.stage || got.Signs != test.signs || got.Next != test.next || *got.Trusted != (api.CATrust{Old: test.old, New: test.fresh}) ||
			got.Aborting != test.aborting || got.Ended.IsZero() == test.ended || got.CertificateKey != "" {
			t.Errorf("%s: got %+v, want %+v", test.step, got, test)
		}
	}
	if again, _ := rotate(t, handler, 200, "prepare", ""); again.ID == made.ID {
		t.Errorf("the next rotation has the ID of the last one: %s", again.ID)
	}
	if strings.Contains(s.logs.String(), made.CertificateKey.Reveal()) {
		t.Error("the log has the certificate key")
	}
	if want := "newCA=" + made.New[0].Pin + " certified=true"; !strings.Contains(s.logs.String(), want) {
		t.Errorf("got log %s, want %s in it", s.logs, want)
	}
}

// Catches an error of a Desk that becomes another problem, and a response that shows a key.
func TestRotationProblems(t *testing.T) {
	const key = "-----BEGIN PRIVATE KEY-----\\nc2VjcmV0\\n-----END PRIVATE KEY-----\\n"
	behind := rotation.Observation{Kind: rotation.KindKubelet, Name: "192.0.2.4:10250", Node: "worker-4", Trusts: &rotation.Trusted{Old: true}, Next: "kubejoin ca apply"}
	in := func(stage rotation.Stage, seen ...rotation.Observation) func(*site, *rotationMemory) {
		return func(s *site, m *rotationMemory) { m.set(t, s.newRotation(t), stage); m.seen = seen }
	}
	for _, test := range []struct {
		set        func(*site, *rotationMemory)
		step, body string
		status     int
		want       string
	}{
		{nil, "prepare", `{"lifetime":"-1h"}`, 400, "lifetime: "},
		{nil, "prepare", `{"newCA":"x"}`, 400, "newCA: "},
		{nil, "prepare", `{"newKey":"` + key + `"}`, 400, "newKey: "},
		{func(s *site, _ *rotationMemory) { s.Rotations.Cross = nil }, "prepare", `{}`, 400, "noCrossSign: the old CA cannot certify the new one: the key of the old CA is not here; set it to do without"},
		{nil, "trust", ``, 409, "no-rotation"},
		{nil, "abort", ``, 409, "no-rotation"},
		{in(rotation.Prepare), "prepare", `{"noCrossSign":true}`, 409, "wrong-stage"},
		{in(rotation.Prepare), "switch", ``, 409, "wrong-stage"},
		{in(rotation.Trust, behind), "switch", ``, 409, "not-ready"},
		{in(rotation.Trust, behind), "switch", `{"leaveBehind":["worker-4"]}`, 200, ""},
		{in(rotation.Trust, behind), "switch", `{"leaveBehind":["worker-5"]}`, 400, "leaveBehind: "},
		{func(s *site, m *rotationMemory) {
			in(rotation.Prepare)(s, m)
			m.Before = func(string) error { return rotation.ErrConflict }
		}, "trust", ``, 409, "rotation-changed"},
		{func(_ *site, m *rotationMemory) { m.err = errAway }, "", ``, 503, "rotation-unavailable"},
		{func(s *site, _ *rotationMemory) { s.Rotations = nil }, "", ``, 404, "no-rotations"},
		{func(s *site, _ *rotationMemory) { s.Rotations = nil }, "prepare", `{}`, 404, "no-rotations"},
		{func(s *site, _ *rotationMemory) { s.Rotations = nil }, "trust", `{}`, 404, "no-rotations"},
	} {
		s := newSite(t)
		if m := s.rotating(); test.set != nil {
			test.set(s, m)
		}
		_, p := rotate(t, s.Handler(), test.status, test.step, test.body)
		if p.Type != api.ProblemType+test.want && !strings.HasPrefix(p.Detail, test.want) || strings.Contains(p.Detail, "away") || strings.Contains(p.Detail, "c2VjcmV0") {
			t.Errorf("%s %s: got %+v, want %s", test.step, test.body, p, test.want)
		}
		if p.Named(api.ProblemNotReady) && (len(p.Behind) != 1 || p.Behind[0].Node != "worker-4" || p.Behind[0].Next != behind.Next || !strings.Contains(p.Behind[0].Why, "does not trust the new CA")) {
			t.Errorf("%s: behind is %+v, want worker-4 with its next command", test.step, p.Behind)
		}
	}
	s := newSite(t)
	s.rotating()
	if status, body := served(s.Handler(), asAdmin(newRequest("GET", "/v1/ca/sa/rotation", ""))); status != 400 || !strings.Contains(body, `"field":"ca"`) {
		t.Errorf("unknown CA: got %d %s, want 400 for field ca", status, body)
	}
}

// Catches a caller who deletes tokens by a rotation without the permission.
func TestFinishExpiresTokens(t *testing.T) {
	s := newSite(t)
	m := s.rotating()
	id, _, _ := strings.Cut(s.token(t, nil), ".")
	m.set(t, s.newRotation(t), rotation.Switch)
	s.Rotations.Desk.Observer = observerFunc(func(ctx context.Context) (seen []rotation.Observation) {
		seen = append(seen, rotation.Observation{Kind: rotation.KindServer, Name: "kubejoin", From: rotation.FromNew})
		for _, token := range must.Value(s.store.List(ctx))(t) {
			seen = append(seen, rotation.Observation{Kind: rotation.KindToken, Name: token.Token.ID(), Trusts: &rotation.Trusted{Old: true}})
		}
		return seen
	})
	authorize := s.Callers.Authorize
	s.Callers.Authorize = deniesTokens
	if _, p := rotate(t, s.Handler(), 403, "finish", `{"expireTokens":true}`); !strings.Contains(p.Detail, "delete tokens") {
		t.Errorf("got %+v, want the permission delete tokens", p)
	}
	if _, p := rotate(t, s.Handler(), 409, "finish", `{}`); len(p.Behind) != 1 || p.Behind[0].Name != id {
		t.Errorf("got %+v, want token %s behind", p, id)
	}
	s.Callers.Authorize = authorize
	if got, _ := rotate(t, s.Handler(), 200, "finish", `{"expireTokens":true}`); got.Stage != "finish" || len(s.ids(t)) > 0 {
		t.Errorf("got %+v and tokens %q, want stage finish and no token", got, s.ids(t))
	}
}

type observerFunc func(context.Context) []rotation.Observation

func (f observerFunc) Observe(ctx context.Context, _ rotation.Rotation) ([]rotation.Observation, error) {
	return f(ctx), nil
}

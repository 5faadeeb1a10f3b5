package server_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

const machinePath = "/v1/machine"

func joinPath(node string) string { return machinePath + "/" + node + "/join" }

// add adds a machine with a new key.
func (s *site) add(t testing.TB, node string) machine {
	t.Helper()
	m := machine{node: node, key: csrtest.NewKey()}
	_, key := publicPEM(t, m.key)
	must.Get(s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{{Node: node, Key: key}}}))
	return m
}

// changeMachine changes the stored machine of a node.
func (s *site) changeMachine(t testing.TB, node string, change func(*tokens.Machine)) {
	t.Helper()
	must.Get(storetest.UpdateClaim(t.Context(), s.Claims, node, func(c *tokens.Claim) error { change(&c.Machine); return nil }))
}

// Only the handshake with the key of a machine gives it a token, and only for its own name.
func TestMachineJoinsWithItsKey(t *testing.T) {
	t.Parallel()
	type scene struct {
		*site
		m machine // of worker-1
	}
	own := func(t *testing.T, s scene) tls.Certificate { return s.m.selfSigned(t) }
	changed := func(change func(*tokens.Machine)) func(*testing.T, scene) tls.Certificate {
		return func(t *testing.T, s scene) tls.Certificate {
			s.changeMachine(t, "worker-1", change)
			return s.m.selfSigned(t)
		}
	}
	for name, test := range map[string]struct {
		status         int
		reason         string
		shown          func(t *testing.T, s scene) tls.Certificate
		path           string // node name; empty: worker-1
		bearer, result string
		pending        bool
	}{
		"known key":   {status: 200, shown: own, result: "granted"},
		"known words": {status: 200, shown: changed(func(m *tokens.Machine) { m.Key = tokens.Words(m.Key) }), result: "granted"},
		"not expired": {status: 200, shown: changed(func(m *tokens.Machine) { m.Expires = time.Now().Add(time.Hour).Truncate(time.Second) }), result: "granted"},

		"unknown key": {status: 401, pending: true, result: "unknown", shown: func(t *testing.T, s scene) tls.Certificate {
			return machine{node: "worker-1", key: csrtest.NewKey()}.selfSigned(t)
		}},
		"key of another machine": {status: 401, pending: true, result: "unknown", path: "worker-2", shown: func(t *testing.T, s scene) tls.Certificate {
			s.add(t, "worker-2")
			return machine{node: "worker-2", key: s.m.key}.selfSigned(t)
		}},
		"name without a machine": {status: 401, pending: true, result: "unknown", path: "worker-3", shown: func(t *testing.T, s scene) tls.Certificate {
			return machine{node: "worker-3", key: s.m.key}.selfSigned(t)
		}},
		"another name in the path": {status: 401, path: "worker-2", shown: own},
		"Authorization":            {status: 401, bearer: adminBearer, shown: own},
		"certificate of the CA":    {status: 401, shown: func(t *testing.T, s scene) tls.Certificate { return s.m.expired(t, s.ca, nil) }},
		"two certificates":         {status: 401, shown: func(t *testing.T, s scene) tls.Certificate { return chainOf(s.m.selfSigned(t), s.m.selfSigned(t)) }},
		"name of a user": {status: 401, path: "jane", shown: func(t *testing.T, s scene) tls.Certificate {
			c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "jane"}}
			return madeBy(t, c, c, s.m.key, s.m.key)
		}},

		"expired": {status: 403, reason: "MachineExpired", shown: changed(func(m *tokens.Machine) { m.Expires = time.Now().Add(-time.Second).Truncate(time.Second) })},
		"revoked": {status: 403, reason: "MachineRevoked", shown: changed(func(m *tokens.Machine) { m.Revoked = true })},
		"Node is Ready": {status: 403, reason: "NodeIsReady", shown: func(t *testing.T, s scene) tls.Certificate {
			nodes := s.Certificates.Authority.Nodes
			nodes.Node = func(context.Context, string) (string, error) { return "uid", nil }
			nodes.Ready = func(context.Context, string) (string, error) { return "since noon", nil }
			return changed(func(m *tokens.Machine) { m.Replace = true })(t, s)
		}},
		"another key with the same words": {status: 403, reason: "MachineKeyDiffers", shown: changed(func(m *tokens.Machine) {
			m.Key = m.Key[:len(m.Key)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(m.Key, "0")]
		})},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := certifying(t)
			base.start(t)
			s := scene{site: base, m: base.add(t, "worker-1")}
			shown, node := test.shown(t, s), cmp.Or(test.path, "worker-1")
			var events []string
			s.Certificates.RejoinEvent = func(node string, refused bool, reason, _ string) { events = append(events, node+" "+reason) }
			got, p := s.post(t, s.showing(t, shown), joinPath(node), test.bearer, "")
			if got.status != test.status || p.Reason != test.reason || got.status == 403 && !p.Named("machine-refused") {
				t.Fatalf("got %d %s, want %d %s", got.status, got.body, test.status, test.reason)
			}
			if reported := got.status == 403 && test.reason != "NodeIsReady"; reported != slices.Equal(events, []string{"worker-1 " + test.reason}) || !reported && len(events) > 0 {
				t.Errorf("got Events %q, want one: %t", events, reported)
			}
			pending := must.Get(s.by(adminBearer).ListPendingMachines(t.Context())).Items
			if test.pending != (len(pending) == 1) || test.pending && (pending[0].Node != node || pending[0].From != "127.0.0.1" || pending[0].Fingerprint != tokens.Words(pending[0].Key)) {
				t.Errorf("got pending machines %+v, want one of %s: %t", pending, node, test.pending)
			}
			if result := cmp.Or(test.result, test.reason); result != "" {
				if n := s.gauge(t, "kubejoin_machine_proofs_total", result); n != 1 {
					t.Errorf("got %g proofs with result %s, want 1", n, result)
				}
			}
			records := must.Get(s.store.List(t.Context()))
			if test.status != 200 {
				if len(records) > 0 {
					t.Errorf("got %d tokens after a refusal, want none", len(records))
				}
				return
			}
			r := records[0]
			if len(records) != 1 || r.Limits.MaxNodes != 1 || !slices.Equal(r.Limits.NodeNames, []string{"worker-1"}) || time.Until(r.Expires) > tokens.MachineTTL || !strings.Contains(got.body, r.Token.Reveal()) || !strings.Contains(got.body, "\nkind: JoinConfiguration\n") {
				t.Errorf("got %s and tokens %+v, want a JoinConfiguration with a token for worker-1", got.body, records)
			}
			_, key := publicPEM(t, s.m.key)
			if m := must.Get(s.by(adminBearer).GetMachine(t.Context(), "worker-1")); m.Key != key || m.Token != r.Token.ID() || m.AddedBy != "ada" {
				t.Errorf("got machine %+v, want its whole key, and the token", m)
			}
			must.Get(s.by(r.Token.Reveal()).Certificate(t.Context(), signing("", nodeCSR(t, "worker-1"))))

			// The next proof replaces the token.
			if again, _ := s.post(t, s.showing(t, shown), joinPath(node), "", ""); again.status != 200 {
				t.Errorf("got %d %s, want another token", again.status, again.body)
			}
			if ids := s.ids(t); len(ids) != 1 || ids[0] == r.Token.ID() {
				t.Errorf("got tokens %q after a second proof, want one that is not %s", ids, r.Token.ID())
			}
		})
	}
}

// A machine that proves the key of a Ready Node may be a copy. kubejoin creates the Event only after two minutes, because the Node of a
// reinstalled machine stays Ready for a while.
func TestReportsCopyOfMachine(t *testing.T) {
	s, _ := certifying(t)
	var events []string
	s.Certificates.RejoinEvent = func(node string, refused bool, reason, _ string) {
		events = append(events, fmt.Sprint(node, " ", refused, " ", reason))
	}
	nodes := s.Certificates.Authority.Nodes
	nodes.Node = func(context.Context, string) (string, error) { return "uid", nil }
	nodes.Ready = func(context.Context, string) (string, error) { return "since noon", nil }
	s.start(t)
	m := s.add(t, "worker-1")
	s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.Replace = true })
	shown := s.showing(t, m.selfSigned(t))
	for _, since := range []time.Duration{0, tokens.CloneAfter + time.Second} {
		if since > 0 {
			s.changeMachine(t, "worker-1", func(m *tokens.Machine) { m.RefusedSince = m.RefusedSince.Add(-since) })
		}
		if got, p := s.post(t, shown, joinPath("worker-1"), "", ""); got.status != 403 || p.Reason != "NodeIsReady" {
			t.Errorf("got %d %s, want NodeIsReady", got.status, got.body)
		}
		if want := map[bool][]string{true: {"worker-1 true NodeIsReady"}}[since > 0]; !slices.Equal(events, want) {
			t.Errorf("%s after the first proof: got Events %q, want %q", since, events, want)
		}
	}
	if n := s.gauge(t, "kubejoin_machine_proofs_total", "cloned"); n != 1 {
		t.Errorf("got %g proofs of copies, want 1", n)
	}
	if got := must.Get(s.by(adminBearer).ListMachines(t.Context())); len(got.Items) != 1 || got.Items[0].State != api.MachineCloned {
		t.Errorf("got %+v, want a cloned machine", got)
	}
}

// Catches a request whose query or body is ignored: it would get a token, and end the earlier one, with another meaning than asked.
func TestMachineJoinTakesNoFields(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.add(t, "worker-1")
	shown := s.showing(t, m.selfSigned(t))
	for _, asked := range []struct{ query, body, problem string }{
		{"?dryRun=true", "", "invalid-field"}, {"", `{"dryRun":true}`, "invalid-field"}, {"", "{", "invalid-body"}, {"?%", "", "invalid-query"},
	} {
		if got, p := s.post(t, shown, joinPath("worker-1")+asked.query, "", asked.body); got.status != 400 || !p.Named(asked.problem) {
			t.Errorf("%s %s: got %d %s, want %s", asked.query, asked.body, got.status, got.body, asked.problem)
		}
	}
	if got := must.Get(s.by(adminBearer).GetMachine(t.Context(), "worker-1")); got.Token != "" {
		t.Errorf("the machine got token %s", got.Token)
	}
}

// A machine with the role control-plane gets the control plane certificates, if kubejoin has them.
func TestMachineJoinsAsControlPlane(t *testing.T) {
	down := errors.New("down")
	for about, test := range map[string]struct {
		upload func(context.Context) (joinformat.Upload, error)
		store  error // of a new token
		want   string
		tokens int
	}{
		"uploaded":   {upload: func(context.Context) (joinformat.Upload, error) { return newUpload(), nil }, want: "certificateKey: ", tokens: 1},
		"no uploads": {want: "certificates-not-uploaded"},
		"upload fails": {
			upload: func(context.Context) (joinformat.Upload, error) { return joinformat.Upload{}, down }, want: "certificates-not-uploaded",
		},
		"no token": {upload: func(context.Context) (joinformat.Upload, error) { return newUpload(), nil }, store: down, want: "token-not-stored"},
	} {
		s, _ := certifying(t)
		s.Minting.UploadCertificates = test.upload
		if test.store != nil {
			s.Tokens = storetest.Fail(test.store, "Store.Create").Store(s.store)
		}
		s.start(t)
		m := s.add(t, "cp-1")
		s.changeMachine(t, "cp-1", func(m *tokens.Machine) { m.Role = tokens.RoleControlPlane })
		got, _ := s.post(t, s.showing(t, m.selfSigned(t)), joinPath("cp-1"), "", "")
		if !strings.Contains(got.body, test.want) || (got.status == 200) != (test.tokens == 1) || len(s.ids(t)) != test.tokens {
			t.Errorf("%s: got %d %s and tokens %q, want %s", about, got.status, got.body, s.ids(t), test.want)
		}
	}
}

// machineSpecs returns specs as a request.
func machineSpecs(t testing.TB, specs ...api.MachineSpec) string {
	return jsonOf(t, api.AddMachines{Items: specs})
}

var fingerprints = []string{"lusab-babad-gutih-tugad", "gutuk-bisog-mudof-sakat", "babab-babab-babab-babab"}

// A request with one invalid machine must add none. If a valid machine cannot be added, the others must be added nevertheless.
func TestAddsAllMachinesOrNone(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	names := func() (names []string) {
		for _, m := range must.Get(s.by(adminBearer).ListMachines(t.Context())).Items {
			names = append(names, m.Node)
		}
		return names
	}
	a, b := api.MachineSpec{Node: "a", Key: fingerprints[0]}, api.MachineSpec{Node: "b", Key: fingerprints[1]}
	for body, want := range map[string][]string{
		machineSpecs(t, a, api.MachineSpec{Node: "B", Key: fingerprints[1]}):                                                      {"items[1].node"},
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: "lusab"}):                                                              {"items[1].key"},
		machineSpecs(t, a, api.MachineSpec{Node: "a", Key: fingerprints[1]}):                                                      {"items[1].node"},
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: fingerprints[0]}):                                                      {"items[1].key"},
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: "sha256:7f0000013f54dcc1" + strings.Repeat("5e", 24)}):                 {"items[1].key"},
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: fingerprints[1], TTL: "1y"}, api.MachineSpec{Node: "c", Key: "lusab"}): {"items[1].ttl", "items[2].key"},
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: fingerprints[1], NodeLabels: []string{"a=b"}}):                         {"items[1].nodeLabels"}, // standalone
		machineSpecs(t, a, api.MachineSpec{Node: "b", Key: fingerprints[1], Role: "king"}):                                        {"items[1].role"},
		machineSpecs(t, a, api.MachineSpec{Node: "kubejoin", Key: fingerprints[1]}):                                               {"items[1].node"},
		machineSpecs(t, slices.Repeat([]api.MachineSpec{a}, api.MaxMachines+1)...):                                                {"items"},
		`{"items":[{"node":"a","key":"` + fingerprints[0] + `"},{"node":"b","key":"` + fingerprints[1] + `","nodeNames":["b"]}]}`: {"items[1].nodeNames"},
	} {
		got, p := s.ask(t, s.http, "POST", machinePath, adminBearer, body)
		var fields []string
		for _, e := range p.Errors {
			fields = append(fields, e.Field)
		}
		if got.status != 400 || !slices.Equal(fields, want) {
			t.Errorf("%s: got %d %s, want errors in %q", body, got.status, got.body, want)
		}
	}
	if added := names(); len(added) > 0 {
		t.Fatalf("got machines %q after invalid requests, want none", added)
	}

	results := func(list api.MachineList) (text string) {
		for _, m := range list.Items {
			text += m.Node + " " + m.Result + ", "
		}
		return text
	}
	add := func(specs ...api.MachineSpec) string {
		t.Helper()
		return results(must.Get(s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: specs})))
	}
	if dry := must.Get(s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{a}, DryRun: true})); results(dry) != "a added, " || len(names()) > 0 {
		t.Errorf("dry run: got %+v and machines %q, want none", dry, names())
	}
	token := s.token(t, once)
	must.Get(s.by(token).Certificate(t.Context(), signing("", nodeCSR(t, "held"))))
	held := api.MachineSpec{Node: "held", Key: fingerprints[2]}
	if got := add(a, held, b); got != "a added, held failed, b added, " {
		t.Errorf("got %s", got)
	}
	other := a
	other.Key = fingerprints[2]
	if got := add(a, b); got != "a unchanged, b unchanged, " {
		t.Errorf("repeated: got %s", got)
	}
	if got := add(other, b); got != "a failed, b unchanged, " {
		t.Errorf("another key: got %s", got)
	}
	for _, test := range []struct {
		spec    api.MachineSpec
		problem string
	}{{held, "name-in-use"}, {other, "machine-exists"}} {
		_, err := s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{test.spec}})
		wantProblem(t, err, 409, test.problem, "")
	}
	if held.Replace = true; add(held) != "held added, " {
		t.Error("held: got no machine with replace")
	}

	// If a request is repeated, its TTL counts from when the machine was first added.
	lasting := api.MachineSpec{Node: "c", Key: "zuzuz-zuzuz-zuzuz-zuzuz", TTL: "1h"}
	add(lasting)
	s.changeMachine(t, "c", func(m *tokens.Machine) { m.Added, m.Expires = m.Added.Add(-time.Minute), m.Expires.Add(-time.Minute) })
	if got := add(lasting); got != "c unchanged, " {
		t.Errorf("repeated with a TTL: got %s", got)
	}
	longer := lasting
	longer.TTL = "2h"
	expired := func(m *tokens.Machine) { m.Added, m.Expires = m.Added.Add(-time.Hour), m.Expires.Add(-time.Hour) }
	for what, change := range map[string]func(*tokens.Machine){"longer": nil, "expired": expired, "revoked": func(m *tokens.Machine) { m.Revoked = true }} {
		spec, before := lasting, must.Get(s.Claims.Get(t.Context(), "c", tokens.Live)).Machine
		if change == nil {
			spec = longer
		} else {
			s.changeMachine(t, "c", change)
		}
		_, err := s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{spec}})
		if p := (*api.Problem)(nil); !errors.As(err, &p) || !p.Named("machine-exists") {
			t.Errorf("%s: got %v, want machine-exists", what, err)
		}
		s.changeMachine(t, "c", func(m *tokens.Machine) { *m = before })
	}

	_, err := s.by(adminBearer).DeleteMachine(t.Context(), "nobody", api.DeleteMachine{})
	wantProblem(t, err, 404, "no-machine", "")
	if gone := must.Get(s.by(adminBearer).DeleteMachine(t.Context(), "held", api.DeleteMachine{})); len(gone.Warnings) != 1 || !strings.Contains(gone.Warnings[0], "certificates of node held stay valid") {
		t.Errorf("got %+v, want a warning about its certificates", gone)
	}
}

// A deleted machine must not keep its token.
func TestDeletedMachineKeepsNoToken(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.add(t, "worker-1")
	if got, _ := s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", ""); got.status != 200 || len(s.ids(t)) != 1 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	must.Get(s.by(adminBearer).DeleteMachine(t.Context(), "worker-1", api.DeleteMachine{DryRun: true}))
	if len(s.ids(t)) != 1 {
		t.Error("a dry run deleted the token")
	}
	must.Get(s.by(adminBearer).DeleteMachine(t.Context(), "worker-1", api.DeleteMachine{}))
	if ids := s.ids(t); len(ids) > 0 {
		t.Errorf("got tokens %q, want none", ids)
	}
	if got, _ := s.post(t, s.showing(t, m.selfSigned(t)), joinPath("worker-1"), "", ""); got.status != 401 {
		t.Errorf("got %d %s, want 401", got.status, got.body)
	}
}

// Each privilege of a machine needs a permission of its own. Without it, no machine of the request is added.
func TestEachMachinePrivilegeNeedsItsPermission(t *testing.T) {
	s, _ := certifying(t)
	var may []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if text := a.String(); text == "create machines.kubejoin.io" || text == "list machines.kubejoin.io" || slices.Contains(may, text) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.Cluster.Node = func(context.Context, string) (tokens.NodeRef, error) { return tokens.NodeRef{}, tokens.ErrNotFound }
	s.Cluster.NodeProperties = func(context.Context, string) error { return nil }
	s.start(t)
	plain := api.MachineSpec{Node: "a", Key: fingerprints[0], TTL: "168h"}
	with := func(change func(*api.MachineSpec)) api.MachineSpec {
		spec := api.MachineSpec{Node: "b", Key: fingerprints[1], TTL: "1h"}
		change(&spec)
		return spec
	}
	for name, test := range map[string]struct {
		spec  api.MachineSpec
		needs []string
	}{
		"plain":         {with(func(s *api.MachineSpec) { s.CertificateDuration, s.Rejoin = "1h", "deny" }), nil},
		"never expires": {with(func(s *api.MachineSpec) { s.TTL = "" }), []string{"unlimited.kubejoin.io"}},
		"TTL of 0":      {with(func(s *api.MachineSpec) { s.TTL = "0" }), []string{"unlimited.kubejoin.io"}},
		"long TTL":      {with(func(s *api.MachineSpec) { s.TTL = "168h1s" }), []string{"unlimited.kubejoin.io"}},
		"role":          {with(func(s *api.MachineSpec) { s.Role = "control-plane" }), []string{"roles.kubejoin.io control-plane", "controlplane.kubejoin.io"}},
		"replace":       {with(func(s *api.MachineSpec) { s.Replace = true }), []string{"replacements.kubejoin.io b"}},
		"labels":        {with(func(s *api.MachineSpec) { s.NodeLabels = []string{"a=b", "c.d/e=f"} }), []string{"labels.kubejoin.io a=b", "labels.kubejoin.io c.d/e=f"}},
		"taints":        {with(func(s *api.MachineSpec) { s.NodeTaints = []string{"a:NoSchedule"} }), []string{"taints.kubejoin.io a:NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			var needs []string
			for _, n := range test.needs {
				needs = append(needs, "create machines/"+n)
			}
			for i, missing := range needs {
				may = slices.Delete(slices.Clone(needs), i, i+1)
				got, p := s.ask(t, s.http, "POST", machinePath, viewerBearer, machineSpecs(t, plain, test.spec))
				if got.status != 403 || !p.Named("forbidden") || !strings.Contains(p.Detail, "may not "+missing) {
					t.Errorf("without %s: got %d %s", missing, got.status, got.body)
				}
			}
			if added := must.Get(s.by(viewerBearer).ListMachines(t.Context())); len(added.Items) > 0 {
				t.Errorf("got %+v after refusals, want no machine", added)
			}
			may = needs
			if got, _ := s.ask(t, s.http, "POST", machinePath+"?dryRun", viewerBearer, machineSpecs(t, plain, test.spec)); got.status != 200 {
				t.Errorf("with %q: got %d %s", needs, got.status, got.body)
			}
		})
	}
}

// unknownKey returns the request of a machine, with a new key in each call. It sets the fields that the TLS handshake would set.
func unknownKey(address, node string, n int) *http.Request {
	public := make(ed25519.PublicKey, ed25519.PublicKeySize)
	binary.BigEndian.PutUint64(public, uint64(n)+1)
	spki, _ := x509.MarshalPKIXPublicKey(public) // never fails for this type
	r := httptest.NewRequest("POST", joinPath(node), nil)
	r.RemoteAddr = address + ":1"
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Raw: spki, Subject: pkix.Name{CommonName: "system:node:" + node}, PublicKey: public, RawSubjectPublicKeyInfo: spki}}}
	return r
}

// Despite a flood of unknown keys, a machine with a known key must get its token, even from the address of the flood. The flood must
// not exceed the limit of the list of pending machines, nor hide a machine of another address.
func TestFloodOfUnknownKeysStopsNoMachine(t *testing.T) {
	s, _ := certifying(t)
	s.Logger, s.Limits.ClientRate, s.Limits.UserRate = nil, server.Rate{}, server.Rate{} // the default rates
	s.start(t)
	handler := must.Get(s.Server.Handler()) // of its own, and without the check against openapi.yaml
	m := s.add(t, "worker-1")
	known := m.selfSigned(t).Leaf
	pending := func() []api.PendingMachine {
		r := httptest.NewRequest("GET", "/v1/pending-machine", nil)
		r.Header.Set("Authorization", "Bearer "+adminBearer)
		_, body := served(handler, r)
		var list api.PendingMachineList
		must.OK(t, json.Unmarshal([]byte(body), &list))
		return list.Items
	}
	if status, body := served(handler, unknownKey("198.51.100.1", "waits", 0)); status != 401 || !strings.Contains(body, `"kubejoin knows no machine waits with this key: on the cluster, run: kubejoin machine add waits --key `) {
		t.Fatalf("got %d %s, want 401 with the next command", status, body)
	}
	address := func(i int) string { return fmt.Sprintf("192.0.%d.%d", i/250, i%250+1) }
	start := time.Now()
	for i := range 50_000 {
		from := address(i % 1000)
		r := unknownKey(from, "worker-1", i+1)
		if i%10 == 0 { // this address uses up its limit of rejected credentials
			from = address(0)
			r = httptest.NewRequest("GET", "/v1/pending-machine", nil)
			r.RemoteAddr = from + ":1"
			r.Header.Set("Authorization", "Bearer guess")
		}
		if status, body := served(handler, r); status != 401 && status != 429 {
			t.Fatalf("got %d %s, want 401 or 429", status, body)
		}
		if i%5000 != 0 || i == 0 { // before the flood, kubejoin would accept the key and cache that
			continue
		}
		if n := len(pending()); n > 1000 {
			t.Fatalf("got %d pending machines, want at most 1000", n)
		}
		r = httptest.NewRequest("POST", joinPath("worker-1"), nil)
		r.RemoteAddr, r.TLS = from+":1", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{known}}
		if status, body := served(handler, r); status != 200 {
			t.Fatalf("known key after %d others: got %d %s", i, status, body)
		}
	}
	t.Logf("the flood took %s", time.Since(start))

	// A flood from one address must not hide the machine of another address.
	s.Limits.ClientRate = server.Rate{QPS: -1}
	handler = must.Get(s.Server.Handler())
	served(handler, unknownKey("198.51.100.1", "waits", 0))
	for i := range 3000 {
		served(handler, unknownKey("203.0.113.1", "worker-1", i+1))
	}
	all := pending()
	if len(all) < 900 || len(all) > 1000 || !slices.ContainsFunc(all, func(p api.PendingMachine) bool { return p.Node == "waits" && p.From == "198.51.100.1" }) {
		t.Errorf("got %d pending machines after the flood of another address, want 900 to 1000 with the one that waits", len(all))
	}
}

func TestMachinesOfUserHaveALimit(t *testing.T) {
	s, _ := certifying(t)
	s.Limits.UserTokens = 1
	s.start(t)
	s.add(t, "worker-1")
	_, err := s.by(adminBearer).AddMachines(t.Context(), api.AddMachines{Items: []api.MachineSpec{{Node: "worker-2", Key: "lusab-babad-gutih-tugad"}}})
	if p := (*api.Problem)(nil); !errors.As(err, &p) || !p.Named("too-many-machines") || p.Status != 507 {
		t.Errorf("got %v, want too-many-machines", err)
	}
}

// The limit of rejected credentials does not count unknown keys. Catches a stranger who fills the log with them.
func TestSamplesLogOfUnknownMachines(t *testing.T) {
	s, _ := certifying(t)
	s.Limits.ClientRate = server.Rate{QPS: -1}
	s.start(t)
	handler := must.Get(s.Server.Handler())
	for i := range 300 {
		r := unknownKey("192.0.2.1", "worker-1", i)
		if i%2 == 0 { // nobody checks it
			r.Header.Set("Authorization", "Bearer guess")
		}
		if status, body := served(handler, r); status != 401 {
			t.Fatalf("got %d %s, want 401", status, body)
		}
	}
	if n := strings.Count(s.logs.String(), "level=INFO msg=request route=join-machine"); n == 0 || n > 110 {
		t.Errorf("got %d lines, want a sample", n)
	}
}

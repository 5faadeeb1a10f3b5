package mint_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

const (
	apiServer = "https://api.example.com:6443"
	endpoint  = "192.0.2.1:9443"
)

// site is a Minter with the file store.
type site struct {
	*mint.Minter
	store *boltstore.Store
	info  *clusterinfo.Computed
	cas   []*x509.Certificate
}

func newSite(t *testing.T) *site {
	t.Helper()
	store := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db")))(t)
	t.Cleanup(func() { _ = store.Close() })
	cas := []*x509.Certificate{certtest.CA(t, "kubernetes").Leaf}
	kubeconfig := must.Value(clusterinfo.Kubeconfig(apiServer, cas))(t)
	info := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	return &site{&mint.Minter{Tokens: store, ClusterInfo: info, Endpoint: endpoint, SignedBy: "the signer of the test"}, store, info, cas}
}

func newRecord(ttl time.Duration) tokens.Record {
	return tokens.NewRecord(tokens.Generate(), ttl, time.Now())
}

func (s *site) ids(t *testing.T) []string {
	t.Helper()
	records := must.Value(s.store.List(t.Context()))(t)
	var ids []string
	for _, r := range records {
		ids = append(ids, r.Token.ID())
	}
	return ids
}

func (s *site) record(t *testing.T, id string) tokens.Record {
	t.Helper()
	return must.Value(s.store.Get(t.Context(), id, tokens.Live))(t)
}

// both has Join and Create, each with the number of tokens that it leaves behind when no signature appears.
var both = []struct {
	name string
	kept int
	call func(ctx context.Context, s *site, r tokens.Record) (mint.Minted, error)
}{
	{"Join", 0, func(ctx context.Context, s *site, r tokens.Record) (mint.Minted, error) { return s.Join(ctx, r) }},
	{"Create", 1, func(ctx context.Context, s *site, r tokens.Record) (mint.Minted, error) {
		return s.Create(ctx, mint.Creation{Record: r, Wait: mint.DefaultSignTimeout})
	}},
}

// reason returns the reason of an error of a Minter, or "" without an error.
func reason(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *mint.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want a *mint.Error", err)
	}
	return e.Reason
}

func TestJoinsLeadToDiscovery(t *testing.T) {
	for _, how := range both {
		s := newSite(t)
		s.Warnings = func(context.Context, tokens.Record) []string { return []string{"no signer runs"} }
		record := newRecord(2 * time.Hour)
		record.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-7"}}
		made := must.Value(how.call(t.Context(), s, record))(t)
		stored := s.record(t, made.Record.Token.ID())
		j := made.Join
		if made.Existing || j.Endpoint != endpoint || j.Server != apiServer || !j.CAs[0].Equal(s.cas[0]) || j.Token != stored.Token || made.Record.UID != stored.UID || !stored.Limits.Equal(record.Limits) {
			t.Errorf("%s: got %+v", how.name, made)
		}
		if !slices.Equal(made.Warnings, []string{"no signer runs"}) {
			t.Errorf("%s: got warnings %q", how.name, made.Warnings)
		}
		data := must.Value(s.info.Data(t.Context()))(t)
		if err := clusterinfo.Verify([]byte(data[clusterinfo.KubeconfigKey]), data[clusterinfo.SignatureKey(j.Token.ID())], j.Token); err != nil {
			t.Errorf("%s: %v", how.name, err)
		}
		if how.name == "Join" && (!j.Expires.Equal(stored.Expires) || !slices.Equal(j.Warnings, made.Warnings)) {
			t.Errorf("got join data %+v, want its expiry and warnings", j)
		}
	}
}

// Catches data of an earlier kubeconfig, and a machine that is sent to kubejoin although nothing is advertised.
func TestJoinFollowsKubeconfig(t *testing.T) {
	s := newSite(t)
	s.Endpoint = ""
	for _, host := range []string{"a.example.com:6443", "b.example.com:6443"} {
		kubeconfig := must.Value(clusterinfo.Kubeconfig("https://"+host, s.cas))(t)
		s.ClusterInfo = fixed{config: kubeconfig}
		made, err := s.Join(t.Context(), newRecord(time.Hour))
		if err != nil || made.Join.Endpoint != host || made.Join.Server != "https://"+host {
			t.Errorf("got %+v, %v, want %s", made.Join, err, host)
		}
	}
}

// Catches an invalid record that reaches the store, which accepts records of earlier versions.
func TestRefusesInvalidRecords(t *testing.T) {
	many := newRecord(time.Hour)
	for range tokens.MaxNewGroups + 1 {
		many.Groups = append(many.Groups, tokens.DefaultGroup)
	}
	for _, how := range both {
		s := newSite(t)
		if _, err := how.call(t.Context(), s, many); err == nil || len(tokens.FieldErrors(err)) == 0 || len(s.ids(t)) > 0 {
			t.Errorf("%s: got error %v and tokens %v, want an error about groups", how.name, err, s.ids(t))
		}
	}
	for usage, change := range map[string]func(*tokens.Record){
		"signing":        func(r *tokens.Record) { r.Signing = false },
		"authentication": func(r *tokens.Record) { r.Authentication, r.Groups = false, nil },
	} {
		s, half := newSite(t), newRecord(time.Hour)
		change(&half)
		if _, err := s.Join(t.Context(), half); err == nil || !strings.HasPrefix(err.Error(), "usages: ") || len(s.ids(t)) > 0 {
			t.Errorf("a join command without usage %s: got error %v and tokens %v", usage, err, s.ids(t))
		}
	}
}

// A program may create a token from a stored token. Catches a new token that has the claims of its template, or that no
// machine can use because it has expired.
func TestTakesStoredRecordAsTemplate(t *testing.T) {
	calls := map[string]func(*site, tokens.Record) (tokens.Record, error){
		"Offline": func(s *site, r tokens.Record) (tokens.Record, error) {
			made, _, err := mint.Offline(r, s.info.Kubeconfig)
			return made.Record, err
		},
		"dry run": func(s *site, r tokens.Record) (tokens.Record, error) {
			made, err := s.Create(t.Context(), mint.Creation{Record: r, DryRun: true})
			return made.Record, err
		},
	}
	for _, how := range both {
		calls[how.name] = func(s *site, r tokens.Record) (tokens.Record, error) {
			made, err := how.call(t.Context(), s, r)
			return made.Record, err
		}
	}
	for name, call := range calls {
		s := newSite(t)
		template := newRecord(time.Hour)
		template.UID, template.Version, template.Created = "1", "2", time.Unix(3, 0)
		template.Nodes, template.Marks = []string{"a", "b"}, map[string]string{"a": "-"}
		made, err := call(s, template)
		if err != nil || made.UID == "1" || made.Version == "2" || made.Created.Equal(template.Created) || len(made.Nodes)+len(made.Marks) > 0 {
			t.Errorf("%s: got %+v, %v", name, made, err)
		}
		var field *tokens.FieldError
		if made, err := call(s, newRecord(-time.Second)); !errors.As(err, &field) || field.Field != "expires" {
			t.Errorf("%s: an expired record: got %+v, %v", name, made, err)
		}
	}
}

// Catches a join command for a token that cannot discover or authenticate.
func TestCreateReturnsJoinForBothUsages(t *testing.T) {
	for _, signing := range []bool{false, true} {
		for _, authentication := range []bool{false, true} {
			for _, wait := range []time.Duration{0, time.Minute} {
				for _, dryRun := range []bool{false, true} {
					s := newSite(t)
					r := newRecord(time.Hour)
					if r.Signing, r.Authentication = signing, authentication; !authentication {
						r.Groups = nil
					}
					made, err := s.Create(t.Context(), mint.Creation{Record: r, Wait: wait, DryRun: dryRun})
					if joins := made.Join.Token == r.Token; err != nil || joins != (signing && authentication) || made.Record.Token != r.Token {
						t.Errorf("signing %t, authentication %t, wait %s, dry run %t: got a join %t, %v", signing, authentication, wait, dryRun, joins, err)
					}
					if stored := len(s.ids(t)) > 0; stored == dryRun {
						t.Errorf("dry run %t: stored %t", dryRun, stored)
					}
				}
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	for want, change := range map[string]func(*tokens.Record){
		"":                                   func(*tokens.Record) {},
		"never expires":                      func(r *tokens.Record) { r.Expires = time.Time{} },
		"has no groups":                      func(r *tokens.Record) { r.Groups = nil },
		"cannot renew its certificate":       func(r *tokens.Record) { r.Limits.CertificateDuration = time.Hour },
		"certificates are valid for only 1h": func(r *tokens.Record) { r.Limits.CertificateDuration = time.Hour },
		"change these labels at any time: a, b.example/c; it cannot change labels with the prefix node-restriction.kubernetes.io/": func(r *tokens.Record) {
			r.Limits.Node.Labels = "a=b,b.example/c=d,node-restriction.kubernetes.io/e=f"
		},
	} {
		s := newSite(t)
		r := newRecord(time.Hour)
		change(&r)
		made, err := s.Create(t.Context(), mint.Creation{Record: r, DryRun: true})
		if text := strings.Join(made.Warnings, "\n"); err != nil || !strings.Contains(text, want) || want == "" && text != "" {
			t.Errorf("got warnings %q, %v, want %q", text, err, want)
		}
	}
}

// fixed is a cluster-info with the values that the test sets.
type fixed struct {
	config []byte
	signed []byte // result of WaitSigned; nil: config
	err    error
}

func (f fixed) Config(context.Context) ([]byte, error) { return f.config, f.err }

func (f fixed) WaitSigned(context.Context, tokens.Token) ([]byte, error) {
	if f.signed != nil {
		return f.signed, nil
	}
	return f.config, f.err
}

// Catches a token that stays in the store although no machine can join with it.
func TestDeletesTokenIfJoinFails(t *testing.T) {
	own := errors.New("no certificates")
	for name, test := range map[string]struct {
		info     mint.ClusterInfo
		complete error
		want     string
	}{
		"unreadable":          {fixed{err: own}, nil, mint.Failed},
		"no longer a v1 file": {fixed{signed: []byte("kind: Config")}, nil, mint.Malformed},
		"not completed":       {nil, own, mint.Failed},
	} {
		s := newSite(t)
		if test.info != nil {
			s.ClusterInfo = test.info
		}
		made, err := s.Join(t.Context(), newRecord(time.Hour), func(context.Context, *joinformat.Join) error { return test.complete })
		if reason(t, err) != test.want || !strings.Contains(err.Error(), "Token "+made.Record.Token.ID()+" was deleted, because no client received it") || test.want == mint.Failed && !errors.Is(err, own) {
			t.Errorf("%s: got error %v, want reason %s", name, err, test.want)
		}
		if ids := s.ids(t); len(ids) > 0 {
			t.Errorf("%s: tokens %v are left", name, ids)
		}
	}
}

// Catches slow warnings that leave no time to complete the join command.
func TestWarningsTakeNoTimeOfComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.ClusterInfo = &limited{ClusterInfo: s.info, capacity: 1, delay: 20 * time.Second, signed: map[string]bool{}}
		s.SignTimeout = 30 * time.Second
		s.Warnings = func(context.Context, tokens.Record) []string { time.Sleep(20 * time.Second); return nil }
		_, err := s.Join(t.Context(), newRecord(time.Hour), func(ctx context.Context, _ *joinformat.Join) error {
			if end, _ := ctx.Deadline(); time.Until(end) != 10*time.Second {
				return fmt.Errorf("complete has %s, want 10s", time.Until(end))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A cluster-info that no machine can use does not become usable by waiting. Catches tokens that remain after each
// attempt, and an error that blames the signer.
func TestCreatesNoTokenIfClusterInfoIsUnusable(t *testing.T) {
	s := newSite(t)
	good := string(s.info.Kubeconfig)
	edit := func(old, now string) []byte {
		edited := strings.Replace(good, old, now, 1)
		if edited == good {
			t.Fatalf("no %q in\n%s", old, good)
		}
		return []byte(edited)
	}
	cluster := func(field string) []byte { return edit("    server:", "    "+field+"\n    server:") }
	for name, test := range map[string]struct {
		config    []byte
		advertise string
		want      string
	}{
		"proxy":              {cluster("proxy-url: http://p"), endpoint, "clusters[0].proxy-url: "},
		"CA file":            {cluster("certificate-authority: /ca.crt"), endpoint, "clusters[0].certificate-authority: "},
		"not verified":       {cluster("insecure-skip-tls-verify: true"), "", "clusters[0].insecure-skip-tls-verify: "},
		"server name":        {cluster("tls-server-name: a"), "", "clusters[0].tls-server-name: "},
		"user":               {edit("users: null", "users: [{name: a, user: {token: hunter2}}]"), "", "users: 1 given"},
		"two clusters":       {edit("clusters:", "clusters:\n- {name: b, cluster: {server: 'https://b'}}"), "", "clusters: 2 given"},
		"named cluster":      {edit(`name: ""`, "name: a"), "", "clusters[0].name: "},
		"no CA":              {edit("certificate-authority-data", "x"), "", "clusters[0].certificate-authority-data: empty"},
		"http":               {edit("https:", "http:"), "", "clusters[0].server: "},
		"unusable server":    {edit(apiServer, "https://api_1.example.com:6443"), "", "--advertise"},
		"server with a path": {edit(apiServer, "https://lb.example.com/k8s/cluster"), "", `path "/k8s/cluster": want a server without a path; give --advertise`},
	} {
		store := storetest.Fail(tokens.ErrRefused, "Store.Create").Store(s.store) // so a call that stores a token returns another reason
		m := &mint.Minter{Tokens: store, ClusterInfo: fixed{config: test.config}, Endpoint: test.advertise}
		signs := newRecord(time.Hour)
		signs.Authentication, signs.Groups = false, nil
		for i, call := range []func() (mint.Minted, error){
			func() (mint.Minted, error) { return m.Join(t.Context(), newRecord(time.Hour)) },
			func() (mint.Minted, error) {
				return m.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour)})
			},
			func() (mint.Minted, error) {
				return m.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour), Chosen: true, DryRun: true})
			},
			func() (mint.Minted, error) {
				return m.Create(t.Context(), mint.Creation{Record: signs, Wait: time.Second})
			},
		} {
			_, err := call()
			if reason(t, err) != mint.Malformed || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "kubectl -n kube-public edit configmap cluster-info") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s, call %d: got %v, want %q", name, i, err, test.want)
			}
		}
		authenticates := newRecord(time.Hour)
		authenticates.Signing = false
		if _, err := m.Create(t.Context(), mint.Creation{Record: authenticates, DryRun: true}); err != nil {
			t.Errorf("%s: a token that does not sign: %v", name, err)
		}
	}
	// The signer may add a missing kubeconfig.
	for _, info := range []fixed{{}, {err: clusterinfo.ErrNotFound}, {err: errors.New("etcd is on fire")}} {
		m := &mint.Minter{Tokens: s.store, ClusterInfo: info}
		if _, err := m.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour), DryRun: true}); err != nil {
			t.Errorf("%+v: %v", info, err)
		}
	}
	// With an Endpoint, join commands do not name the server. kubeadm and kubectl can use it.
	m := &mint.Minter{Tokens: s.store, ClusterInfo: fixed{config: edit(apiServer, "https://api_1.example.com:6443")}, Endpoint: endpoint}
	made := must.Value(m.Join(t.Context(), newRecord(time.Hour)))(t)
	for _, format := range joinformat.Formats() {
		if _, err := made.Join.Write(format); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}

// Token IDs are public. Catches a new token that inherits the claims of a deleted one.
func TestRefusesIDOfDeletedTokenWithClaims(t *testing.T) {
	s := newSite(t)
	claims := s.store.Claims()
	s.Claims = claims
	record := newRecord(time.Hour)
	record.Limits.MaxNodes = 1
	old, err := s.store.Create(t.Context(), record)
	if err != nil {
		t.Fatal(err)
	}
	must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{Node: "worker-1", TokenID: old.Token.ID(), TokenUID: old.UID}))(t)
	if made, err := s.Create(t.Context(), mint.Creation{Record: record, Chosen: true}); err != nil || !made.Existing {
		t.Errorf("the token exists: got %+v, %v", made, err)
	}
	must.OK(t, s.store.Delete(t.Context(), s.record(t, old.Token.ID())))
	_, err = s.Create(t.Context(), mint.Creation{Record: record, Chosen: true})
	if reason(t, err) != mint.Exists || !strings.Contains(err.Error(), "still holds the name of node worker-1 (1 names in total)") || len(s.ids(t)) > 0 {
		t.Errorf("got %v", err)
	}
	s.Claims = storetest.Fail(errReset).Claims(claims)
	if _, err := s.Create(t.Context(), mint.Creation{Record: record, Chosen: true}); reason(t, err) != mint.Unavailable || len(s.ids(t)) > 0 {
		t.Errorf("claims cannot be read: got %v, want %q", err, mint.Unavailable)
	}
}

// Catches a signature that is awaited for an expired token, and an error that then blames the missing signer.
func testWaitEndsAtExpiry(t *testing.T, call func(context.Context, *site, tokens.Record) (mint.Minted, error), kept int) {
	s := newSite(t)
	s.ClusterInfo = pending{s.info}
	start := time.Now()
	_, err := call(t.Context(), s, newRecord(3*time.Second))
	if took := time.Since(start); took < 2*time.Second || took > 4*time.Second || len(s.ids(t)) != kept {
		t.Errorf("took %s and left tokens %v, want 3s and %d tokens", took, s.ids(t), kept)
	}
	if reason(t, err) != mint.NotSigned || !strings.Contains(err.Error(), "the new token expired at ") || strings.Contains(err.Error(), "signer of the test") {
		t.Errorf("got %v", err)
	}
	if kept > 0 && !strings.Contains(err.Error(), "was created nevertheless and expired at ") {
		t.Error(err)
	}
}

// pending is a cluster-info that never gets a signature.
type pending struct{ mint.ClusterInfo }

func (pending) WaitSigned(ctx context.Context, _ tokens.Token) ([]byte, error) {
	<-ctx.Done()
	return nil, errors.New("cluster-info has no signature of it")
}

// limited is a cluster-info with space for capacity signatures. It signs after delay.
type limited struct {
	mint.ClusterInfo
	capacity int
	delay    time.Duration

	mu     sync.Mutex
	signed map[string]bool
}

func (n *limited) Capacity() (free, signatures int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(0, n.capacity-len(n.signed)), len(n.signed)
}

func (n *limited) HasSignature(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.signed[id]
}

func (n *limited) WaitSigned(ctx context.Context, t tokens.Token) ([]byte, error) {
	select {
	case <-time.After(n.delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	n.mu.Lock()
	full := len(n.signed) >= n.capacity
	if !full {
		n.signed[t.ID()] = true
	}
	n.mu.Unlock()
	if full { // other tokens used the space
		<-ctx.Done()
		return nil, errors.Join(ctx.Err(), errors.New("not there"))
	}
	return n.ClusterInfo.WaitSigned(ctx, t)
}

func TestOffline(t *testing.T) {
	s := newSite(t)
	for _, usages := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		r := newRecord(time.Hour)
		if r.Signing, r.Authentication = usages[0], usages[1]; !r.Authentication {
			r.Groups = nil
		}
		made, data, err := mint.Offline(r, s.info.Kubeconfig)
		if err != nil || made.Record.Created.IsZero() || (made.Join.Token == r.Token) != (r.Signing && r.Authentication) || data[clusterinfo.KubeconfigKey] != string(s.info.Kubeconfig) {
			t.Errorf("usages %v: got %+v, %v", usages, made, err)
		}
		if err := clusterinfo.Verify(s.info.Kubeconfig, data[clusterinfo.SignatureKey(r.Token.ID())], r.Token); (err == nil) != r.Signing {
			t.Errorf("usages %v: signature: %v", usages, err)
		}
		if r.Signing && r.Authentication && (made.Join.Endpoint != "api.example.com:6443" || made.Join.Server != apiServer) {
			t.Errorf("got %+v", made.Join)
		}
	}
	many := newRecord(0)
	if made, _, err := mint.Offline(many, s.info.Kubeconfig); err != nil || !strings.Contains(strings.Join(made.Warnings, ""), "never expires") {
		t.Errorf("got %+v, %v", made, err)
	}
	many.Groups = []string{"system:masters"}
	if _, _, err := mint.Offline(many, s.info.Kubeconfig); len(tokens.FieldErrors(err)) == 0 {
		t.Errorf("a forbidden group: %v", err)
	}
	if _, _, err := mint.Offline(newRecord(time.Hour), []byte("kind: Config")); reason(t, err) != mint.Malformed {
		t.Errorf("a malformed kubeconfig: %v", err)
	}
}

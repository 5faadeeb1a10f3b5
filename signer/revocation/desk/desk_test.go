package desk_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

var errAway = errors.New("away")

// site is a Revoker and an Authority, with their stores in memory.
type site struct {
	*desk.Revoker
	db        *rowstore.Store
	authority *signer.Authority
	ca        *x509.Certificate
}

// config is the kubeconfig of cluster-info.
type config []byte

func (c config) Config(context.Context) ([]byte, error) { return c, nil }

func newSite(t *testing.T) *site {
	t.Helper()
	db := memdb.Open()
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle()))(t)
	guard, kept := &revocation.Guard{Store: rowlist.New(db.Revocations())}, rowrecord.New(db.Issued())
	return &site{
		db: db, ca: ca.Certificate(),
		authority: &signer.Authority{
			Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(signer.Fixed(ca), 12*time.Hour))), Facts: signer.Standalone{Claims: db.Claims()},
			Nodes: &admission.Nodes{Tokens: slowest().Store(db), Claims: db.Claims()}, Revocations: guard, Record: kept,
		},
		Revoker: &desk.Revoker{Guard: guard, Tokens: db, Claims: db.Claims(), ClusterInfo: config(kubeconfig), IssuanceRecord: kept},
	}
}

// slowest makes a replica see changes of tokens as late as [tokens.MaxAge] allows.
func slowest() storetest.Faulty {
	type seen struct {
		record tokens.Record
		at     time.Time
	}
	var mu sync.Mutex
	known := map[string]seen{}
	return func(c *storetest.Call, do func() error) error {
		if c.Method != "Store.Get.cached" && c.Method != "Store.Get.recent" {
			return do()
		}
		mu.Lock()
		defer mu.Unlock()
		if k, found := known[c.Method+c.Key]; found && time.Since(k.at) < tokens.MaxAge {
			c.Records = []tokens.Record{k.record.Clone()}
			return nil
		}
		err := do()
		if err == nil {
			known[c.Method+c.Key] = seen{c.Records[0].Clone(), time.Now()}
		}
		return err
	}
}

// token stores a token.
func (s *site) token(t *testing.T, limits tokens.Limits) tokens.Token {
	t.Helper()
	r := tokens.NewRecord(tokens.Generate(), 100*time.Hour, time.Now())
	r.Limits = limits
	must.Value(s.db.Create(t.Context(), r))(t)
	return r.Token
}

// request returns the request of a machine that joins.
func request(t *testing.T, token tokens.Token, node string) approval.Request {
	t.Helper()
	return approval.Request{
		SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: tokens.BootstrapUserPrefix + token.ID(), Groups: []string{tokens.BootstrappersGroup, tokens.DefaultGroup},
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil),
	}
}

// join issues the certificate of a machine that joins.
func (s *site) join(t *testing.T, token tokens.Token, node string) *x509.Certificate {
	t.Helper()
	chain, err := s.authority.Issue(t.Context(), request(t, token, node))
	if err != nil || len(chain) == 0 {
		t.Fatalf("%s joins: %v", node, err)
	}
	return pemfile.Presented(chain)[0]
}

// wantRevoked fails the test unless a certificate is revoked as wanted.
func (s *site) wantRevoked(t *testing.T, cert *x509.Certificate, want bool) {
	t.Helper()
	if e, err := s.Guard.RevokedCertificate(t.Context(), cert); err != nil || (e != nil) != want {
		t.Errorf("certificate of %s: got %+v, %v, want revoked %t", cert.Subject.CommonName, e, err, want)
	}
}

// wantToken fails the test unless a token exists as wanted.
func (s *site) wantToken(t *testing.T, token tokens.Token, want bool) {
	t.Helper()
	if _, err := s.db.Get(t.Context(), token.ID(), tokens.Live); err == nil != want || err != nil && !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("the token: got %v, want it to exist: %t", err, want)
	}
}

func keys(r desk.Result) string {
	var all []string
	for _, e := range r.Entries {
		all = append(all, e.Key().String())
	}
	return strings.Join(all, " ")
}

// A replica has cached the token when it is revoked, and issues certificates until the token has settled. Catches a
// machine that joins in this time and is not revoked. The token has no limits, so there are no claims.
func TestRevokeTokenFindsNodesOfCachedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Claims = nil
		token := s.token(t, tokens.Limits{})
		first := s.join(t, token, "worker-1") // the authority caches the token
		var result desk.Result
		var err error
		var done time.Time
		var revoking sync.WaitGroup
		revoking.Go(func() {
			result, err = s.Revoke(t.Context(), desk.Order{TokenID: token.ID(), Reason: "leaked"})
			done = time.Now()
		})
		synctest.Wait()
		began := time.Now()
		s.wantRevoked(t, first, true) // at once
		time.Sleep(admission.MaxAge - time.Millisecond)
		var admitted []*signer.Admission
		for _, node := range []string{"worker-1", "worker-2"} {
			a, err := s.authority.Decide(t.Context(), request(t, token, node))
			if err != nil {
				t.Fatalf("%s: got %v, want it admitted by the cached token", node, err)
			}
			admitted = append(admitted, a)
		}
		time.Sleep(admission.MaxAge - time.Millisecond)
		var late []*x509.Certificate
		for _, a := range admitted {
			chain, err := s.authority.SignAdmitted(t.Context(), a)
			if err != nil {
				t.Fatalf("got %v, want a certificate of the admission", err)
			}
			late = append(late, pemfile.Presented(chain)[0])
		}
		s.wantRevoked(t, late[0], false) // the entry of the node allows it
		revoking.Wait()
		if err != nil || keys(result) != "worker-1 worker-2" || result.Entries[0].Reason != "leaked" || result.Entries[0].TokenID != token.ID() {
			t.Errorf("got %+v, %v, want both nodes", result, err)
		}
		for _, cert := range append(late, first) {
			s.wantRevoked(t, cert, true)
		}
		s.wantToken(t, token, false)
		if took := done.Sub(began); took > 7*time.Second {
			t.Errorf("took %s", took)
		}
		_, err = s.authority.Issue(t.Context(), request(t, token, "worker-3"))
		if refused := approval.Refused(err); refused == nil || refused.Reason != admission.ReasonTokenRevoked {
			t.Errorf("after the revocation: got %v, want reason %s", err, admission.ReasonTokenRevoked)
		}
	})
}

// Catches an entry that is written again although nothing was issued since: a token may have admitted thousands of nodes.
func TestRevokeTokenWritesEachNodeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 5})
		for _, node := range []string{"worker-1", "worker-2"} {
			s.join(t, token, node)
		}
		store := &counting{Store: s.Guard.Store}
		s.Guard.Store = store
		result, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()})
		if err != nil || keys(result) != "worker-1 worker-2" || store.updates != 2 {
			t.Errorf("got %+v, %v, %d writes, want two nodes with a write each", result, err, store.updates)
		}
	})
}

type counting struct {
	revocation.Store
	updates int
}

func (s *counting) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	s.updates++
	return s.Store.Update(ctx, key, change)
}

// Catches a node that is not revoked with its token, and a token that can still be used. A node that has moved to
// another token must not be revoked as a whole.
func TestRevokeToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		stolen, good := s.token(t, tokens.Limits{MaxNodes: 5}), s.token(t, tokens.Limits{MaxNodes: 5})
		one, two, other := s.join(t, stolen, "worker-1"), s.join(t, stolen, "worker-2"), s.join(t, good, "worker-3")
		dry, err := s.Revoke(t.Context(), desk.Order{TokenID: stolen.ID(), DryRun: true})
		if err != nil || keys(dry) != "worker-1 worker-2" {
			t.Errorf("dry run: got %+v, %v, want two nodes", dry, err)
		}
		s.wantToken(t, stolen, true)
		s.wantRevoked(t, one, false)
		// Another token takes the name worker-2.
		if _, _, err := (tokens.Releaser{Tokens: s.Tokens, Claims: s.Claims}).Release(t.Context(), "worker-2", false); err != nil {
			t.Fatal(err)
		}
		moved := s.join(t, good, "worker-2")
		result, err := s.Revoke(t.Context(), desk.Order{TokenID: stolen.ID()})
		if want := revocation.FingerprintOf(two).String() + " worker-1"; err != nil || keys(result) != want {
			t.Errorf("got %s, %v, want %s", keys(result), err, want)
		}
		for cert, revoked := range map[*x509.Certificate]bool{one: true, two: true, other: false, moved: false} {
			s.wantRevoked(t, cert, revoked)
		}
		s.wantToken(t, stolen, false)
		if again, err := s.Revoke(t.Context(), desk.Order{TokenID: stolen.ID()}); err != nil || len(again.Entries) != 2 {
			t.Errorf("again: got %+v, %v, want what the record has", again, err)
		}
		unused := s.token(t, tokens.Limits{})
		if result, err := s.Revoke(t.Context(), desk.Order{TokenID: unused.ID()}); err != nil || len(result.Entries) > 0 || !strings.Contains(fmt.Sprint(result.Warnings), "knows no certificate that was issued on token "+unused.ID()) {
			t.Errorf("unused: got %+v, %v, want a warning", result, err)
		}
		s.wantToken(t, unused, false)
	})
}

// During the revocation, a node moves to another token and the list becomes full. Catches a stored entry that is missing
// in the result.
func TestRevokeTokenReturnsAllThatItStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		stolen, good := s.token(t, tokens.Limits{MaxNodes: 5}), s.token(t, tokens.Limits{MaxNodes: 5})
		s.join(t, stolen, "worker-1")
		two := s.join(t, stolen, "worker-2")
		s.Guard.Store = lackingSpace{s.Guard.Store, "worker-4"}
		began := time.Now()
		s.Requested = func(context.Context) (all []revocation.Certificate, err error) {
			for i, node := range []string{"worker-3", "worker-4"} {
				if time.Now().After(began) {
					all = append(all, revocation.Certificate{TokenID: stolen.ID(), Node: node, Fingerprint: revocationtest.Fingerprint(i), NotAfter: began.Add(time.Hour)})
				}
			}
			return all, nil
		}
		time.AfterFunc(time.Second, func() {
			if _, _, err := (tokens.Releaser{Tokens: s.Tokens, Claims: s.Claims}).Release(t.Context(), "worker-2", false); err != nil {
				t.Error(err)
			}
			s.join(t, good, "worker-2")
		})
		result, err := s.Revoke(t.Context(), desk.Order{TokenID: stolen.ID()})
		if want := revocation.FingerprintOf(two).String() + " worker-1 worker-2 worker-3"; !errors.As(err, new(*desk.Incomplete)) || keys(result) != want {
			t.Errorf("got %s, %v, want %s and an Incomplete", keys(result), err, want)
		}
	})
}

// Replicas may still have cached a token that was deleted a moment before. Catches a machine that joins in this time
// and is not revoked, and a misspelt ID without an immediate error.
func TestRevokeDeletedTokenWaitsUntilItSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{})
		s.join(t, token, "worker-1")
		record, err := s.db.Get(t.Context(), token.ID(), tokens.Live)
		if err == nil {
			err = s.db.Delete(t.Context(), record)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(admission.MaxAge-time.Millisecond, func() { s.join(t, token, "worker-2") })
		if result, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}); err != nil || keys(result) != "worker-1 worker-2" {
			t.Errorf("got %s, %v, want both nodes", keys(result), err)
		}
		began := time.Now()
		if _, err := s.Revoke(t.Context(), desk.Order{TokenID: "qwertz"}); err == nil || time.Since(began) > 0 {
			t.Errorf("misspelt: got %v after %s, want an error at once", err, time.Since(began))
		}
	})
}

// Catches an endless loop while other writers change the token all the time.
func TestRevokeTokenGivesUpOnChangingToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{})
		s.Tokens = storetest.Fail(tokens.ErrConflict, "Store.Delete").Store(s.Tokens)
		if _, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}); err == nil || !strings.Contains(err.Error(), "changed during each of 20 attempts") {
			t.Errorf("got %v", err)
		}
	})
}

// A node that joined with a token without limits has no claim of the token, but an identity.
func TestRevokeTokenFindsNodesByIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.authority.Nodes.RejoinWindow, s.IssuanceRecord = time.Hour, nil
		token := s.token(t, tokens.Limits{})
		cert := s.join(t, token, "worker-1")
		if result, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}); err != nil || keys(result) != "worker-1" {
			t.Errorf("got %+v, %v, want worker-1", result, err)
		}
		s.wantRevoked(t, cert, true)
	})
}

// Catches a certificate that is not revoked with its token, and an unneeded entry.
func TestRevokeTokenUsesWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		id, now := "qwertz", time.Now().UTC().Truncate(time.Second)
		print := revocationtest.Fingerprint
		s.Requested = func(context.Context) ([]revocation.Certificate, error) {
			return []revocation.Certificate{
				{TokenID: id, Node: "worker-1", Fingerprint: print(1), NotAfter: now.Add(time.Hour)},
				{TokenID: id, Node: "worker-2", Fingerprint: print(2), NotAfter: now.Add(-time.Hour)},
				{TokenID: "abcde2", Node: "worker-3", Fingerprint: print(3), NotAfter: now.Add(time.Hour)},
				{TokenID: id, Fingerprint: print(4), NotAfter: now.Add(time.Hour)},
			}, nil
		}
		for _, e := range []issuance.Entry{
			{TokenID: id, Node: "worker-5", Serial: "5", Fingerprint: string(print(5)), NotAfter: now.Add(time.Hour), Outcome: issuance.Issued},
			{TokenID: id, Node: "Worker 6", Serial: "6", Fingerprint: string(print(6)), NotAfter: now.Add(time.Hour), Outcome: issuance.Issued},
			{TokenID: id, Node: "worker-7", Outcome: issuance.Refused},
		} {
			e.Time = now
			must.OK(t, s.IssuanceRecord.Append(t.Context(), e))
		}
		must.Value(storetest.CreateClaim(t.Context(), s.Claims, tokens.Claim{Node: "worker-1", Past: tokens.ReleasedClaim{Until: now.Add(time.Hour)}}))(t)
		result, err := s.Revoke(t.Context(), desk.Order{TokenID: id})
		if want := print(4).String() + " " + print(6).String() + " worker-1 worker-5"; err != nil || keys(result) != want {
			t.Errorf("got %s, %v, want %s", keys(result), err, want)
		}
	})
}

// While the token settles, a certificate appears that outlasts all CAs. Catches a revocation that ends before this
// certificate.
func TestRevocationOfTokenEndsAfterTheLastCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1})
		s.join(t, token, "worker-1")
		began, late := time.Now(), time.Now().Add(48*time.Hour).UTC().Truncate(time.Second)
		s.Requested = func(context.Context) (all []revocation.Certificate, err error) {
			if time.Now().After(began) {
				all = append(all, revocation.Certificate{TokenID: token.ID(), Node: "worker-1", Fingerprint: revocationtest.Fingerprint(1), NotAfter: late})
			}
			return all, nil
		}
		if result, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}); err != nil || keys(result) != "worker-1" || !result.Entries[0].Until.Equal(late) {
			t.Errorf("got %+v, %v, want worker-1 until %s", result, err, late)
		}
	})
}

// Catches a stolen token that still works after its revocation has failed, and a retry that does not find its nodes.
func TestRevokeTokenMakesItUnusableFirst(t *testing.T) {
	full := fmt.Errorf("%w: ConfigMap kubejoin-revocation-0", revocation.ErrFull)
	for name, test := range map[string]struct {
		fail func(*site)
		want string
	}{
		"the list is full":              {func(s *site) { s.Guard.Store = noResponse(full) }, desk.Full},
		"the list cannot be read":       {func(s *site) { s.Guard.Store = noResponse(errAway) }, desk.Unavailable},
		"the list cannot be written":    {func(s *site) { s.Guard.Store = noResponse(tokens.ErrRefused) }, desk.Refused},
		"the requests cannot be read":   {func(s *site) { s.Requested = failedRequested }, desk.NoRequests},
		"the record cannot be read":     {func(s *site) { s.IssuanceRecord = noRecord{} }, desk.NoRecord},
		"the claims cannot be read":     {func(s *site) { s.Claims = storetest.Fail(errAway).Claims(s.Claims) }, mint.Unavailable},
		"the token cannot be deleted":   {func(s *site) { s.Tokens = storetest.Fail(errAway, "Store.Delete").Store(s.Tokens) }, mint.Unavailable},
		"a node of two cannot be saved": {func(s *site) { s.Guard.Store = lackingSpace{s.Guard.Store, "worker-1"} }, desk.Full},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			token := s.token(t, tokens.Limits{MaxNodes: 5})
			one, two := s.join(t, token, "worker-1"), s.join(t, token, "worker-2")
			works, guard := *s.Revoker, s.Guard.Store
			test.fail(s)
			_, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()})
			var incomplete *desk.Incomplete
			var failed *tokens.Refusal
			if !errors.As(err, &incomplete) || !strings.HasPrefix(err.Error(), "token "+token.ID()+" can no longer be used") ||
				!errors.As(err, &failed) || failed.Reason != test.want {
				t.Errorf("%s: got %v, want reason %q and what was done", name, err, test.want)
			}
			*s.Revoker, s.Guard.Store = works, guard
			time.Sleep(admission.MaxAge)
			if _, err := s.authority.Issue(t.Context(), request(t, token, "worker-3")); approval.Refused(err) == nil {
				t.Errorf("%s: a machine with the token: got %v, want it denied", name, err)
			}
			s.wantRevoked(t, two, name == "the token cannot be deleted" || name == "a node of two cannot be saved")
			result, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()})
			if err != nil || keys(result) != "worker-1 worker-2" {
				t.Errorf("%s: retry: got %+v, %v, want two nodes", name, result, err)
			}
			s.wantRevoked(t, one, true)
			s.wantRevoked(t, two, true)
			s.wantToken(t, token, false)
		})
	}
}

// Catches a revocation that is reported as done although the caller disconnected before the token had settled.
func TestRevokeTokenOfCanceledCallIsIncomplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 5})
		cert := s.join(t, token, "worker-1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		result, err := s.Revoke(ctx, desk.Order{TokenID: token.ID()})
		if !errors.As(err, new(*desk.Incomplete)) || keys(result) != "worker-1" {
			t.Errorf("got %+v, %v, want worker-1 and an Incomplete", result, err)
		}
		s.wantRevoked(t, cert, true)
		s.wantToken(t, token, true)
	})
}

// failedRequested is Requested without a response of the API server.
func failedRequested(context.Context) ([]revocation.Certificate, error) { return nil, errAway }

// noRecord is an issuance record that does not respond.
type noRecord struct{ issuance.Store }

func (noRecord) Get(context.Context, string) (issuance.Entry, error) {
	return issuance.Entry{}, errAway
}

func (noRecord) List(context.Context, issuance.Query) (issuance.Page, error) {
	return issuance.Page{}, errAway
}

// lackingSpace is a store without space for one entry.
type lackingSpace struct {
	revocation.Store
	key revocation.Key
}

func (s lackingSpace) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	if key == s.key {
		return nil, revocation.ErrFull
	}
	return s.Store.Update(ctx, key, change)
}

// noResponse returns a store whose calls fail.
func noResponse(err error) revocation.Store {
	return revocationtest.Before(nil, func(string, revocation.Key) error { return err })
}

// Catches a malformed token that Kubernetes accepts and that cannot be changed: a failed revocation must delete it,
// too.
func TestRevokeMalformedTokenDeletesItFirst(t *testing.T) {
	for name, change := range map[string]func(*tokens.Record){
		"a published example":           func(r *tokens.Record) { r.Problem = tokens.ErrPublicExample },
		"a description of another tool": func(r *tokens.Record) { r.Description = "rack 7\n" },
		"limits that exclude each other": func(r *tokens.Record) {
			r.Limits = tokens.Limits{MaxNodes: 5, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u"}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			token := s.token(t, tokens.Limits{})
			s.join(t, token, "worker-1")
			s.Tokens, s.Guard.Store = storetest.Alter(change).Store(s.Tokens), noResponse(errAway)
			if _, err := s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}); !errors.Is(err, errAway) {
				t.Errorf("%s: got %v, want %v", name, err, errAway)
			}
			s.wantToken(t, token, false)
		})
	}
}

// Catches a certificate that still works after it was revoked by serial number or fingerprint, and another certificate
// that is revoked by mistake.
func TestRevokeCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{})
		one, two, three := s.join(t, token, "worker-1"), s.join(t, token, "worker-1"), s.join(t, token, "worker-1")
		// The revocation of a user's certificate ends when the certificate expires. The revocation of a node's
		// certificate lasts longer, because the node could rejoin with it.
		s.RejoinWindow = time.Hour
		s.Requested = func(context.Context) ([]revocation.Certificate, error) {
			return []revocation.Certificate{{Serial: "abc", Fingerprint: revocationtest.Fingerprint(1), NotAfter: one.NotAfter}}, nil
		}
		for _, test := range []struct {
			request desk.Order
			want    revocation.Fingerprint
			until   time.Time
		}{
			{desk.Order{Serial: strings.ToUpper(one.SerialNumber.Text(16))}, revocation.FingerprintOf(one), s.ca.NotAfter.Add(time.Hour)},
			{desk.Order{Fingerprint: revocation.FingerprintOf(two).String()}, revocation.FingerprintOf(two), s.ca.NotAfter.Add(time.Hour)},
			{desk.Order{Serial: "0ABC"}, revocationtest.Fingerprint(1), one.NotAfter},
		} {
			result, err := s.Revoke(t.Context(), test.request)
			if err != nil || len(result.Entries) != 1 || result.Entries[0].Fingerprint != test.want || !result.Entries[0].Until.Equal(test.until) {
				t.Errorf("%+v: got %+v, %v, want certificate %s until %s", test.request, result, err, test.want, test.until)
			}
		}
		for cert, revoked := range map[*x509.Certificate]bool{one: true, two: true, three: false} {
			s.wantRevoked(t, cert, revoked)
		}
	})
}

// Catches an undo that removes nothing, a dry run that removes an entry, and a list with wrong entries.
func TestListAndUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		for _, node := range []string{"worker-2", "worker-1"} {
			must.Value(s.Revoke(t.Context(), desk.Order{Node: node, By: "ada"}))(t)
		}
		for _, step := range []struct {
			dryRun bool
			left   int
			want   string
		}{{true, 2, ""}, {false, 1, ""}, {true, 1, desk.NotRevoked}, {false, 1, desk.NotRevoked}} {
			e, err := s.Undo(t.Context(), "worker-1", step.dryRun)
			var failed *tokens.Refusal
			if errors.As(err, &failed); step.want == "" && (err != nil || e.By != "ada") || step.want != "" && (failed == nil || failed.Reason != step.want) {
				t.Errorf("%+v: got %+v, %v", step, e, err)
			}
			if left, err := s.List(t.Context()); err != nil || len(left) != step.left {
				t.Errorf("%+v: got list %+v, %v", step, left, err)
			}
		}
		s.Guard.Store = noResponse(errAway)
		_, undone := s.Undo(t.Context(), "worker-1", false)
		_, tried := s.Undo(t.Context(), "worker-1", true)
		_, listed := s.List(t.Context())
		for _, err := range []error{undone, tried, listed} {
			var failed *tokens.Refusal
			if !errors.As(err, &failed) || failed.Reason != desk.Unavailable || !errors.Is(err, errAway) {
				t.Errorf("got %v, want reason %s", err, desk.Unavailable)
			}
		}
	})
}

// Catches a revocation that ends while kube-apiserver still accepts the node. Catches a revocation with an end although
// kubejoin could not determine when the last certificate expires.
func TestRevocationEndsAfterTheLastCertificate(t *testing.T) {
	never, late := time.Time{}, time.Now().Add(48*time.Hour).UTC().Truncate(time.Second)
	cas := func(end time.Time) func(context.Context) ([]*x509.Certificate, error) {
		return func(context.Context) ([]*x509.Certificate, error) { return []*x509.Certificate{{NotAfter: end}}, nil }
	}
	seen := func(context.Context) ([]revocation.Certificate, error) {
		return []revocation.Certificate{{Node: "worker-1", Fingerprint: revocationtest.Fingerprint(1), NotAfter: late}, {Node: "worker-2", Fingerprint: revocationtest.Fingerprint(2), NotAfter: late.Add(time.Hour)}}, nil
	}
	ofCA := func(s *site) time.Time { return s.ca.NotAfter }
	at := func(end time.Time) func(*site) time.Time { return func(*site) time.Time { return end } }
	for name, test := range map[string]struct {
		set  func(*site)
		want func(*site) time.Time
	}{
		"cluster-info":                    {func(*site) {}, ofCA},
		"an API server's CA ends earlier": {func(s *site) { s.ClientCAs = cas(time.Now()) }, ofCA},
		"an API server's CA ends later":   {func(s *site) { s.ClientCAs = cas(late) }, at(late)},
		"nodes may rejoin":                {func(s *site) { s.ClientCAs, s.RejoinWindow = cas(late), time.Hour }, at(late.Add(time.Hour))},
		"a certificate ends later":        {func(s *site) { s.Requested = seen }, at(late)},
		"the signers end earlier":         {func(s *site) { s.Lifetime = func() time.Duration { return time.Hour } }, ofCA},
		"the CAs cannot be read": {func(s *site) {
			s.ClientCAs = func(context.Context) ([]*x509.Certificate, error) { return nil, errAway }
		}, at(never)},
		"the CAs never come": {func(s *site) {
			s.ClientCAs = func(ctx context.Context) ([]*x509.Certificate, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, at(never)},
		"cluster-info is malformed": {func(s *site) { s.ClusterInfo = config("kind: Config") }, at(never)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				test.set(s)
				result, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"})
				if err != nil || keys(result) != "worker-1" {
					t.Fatalf("got %+v, %v, want worker-1", result, err)
				}
				want := test.want(s)
				unknown := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "when the last certificate ends") })
				if !result.Entries[0].Until.Equal(want) || unknown != want.IsZero() || (result.EndUnknown != nil) != want.IsZero() {
					t.Errorf("got until %s, warnings %q, unknown: %v, want %s, and a warning only if it is unknown", result.Entries[0].Until, result.Warnings, result.EndUnknown, want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.Lifetime = func() time.Duration { return 72 * time.Hour }
		if result, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"}); err != nil || result.Entries[0].Until.Before(time.Now().Add(71*time.Hour)) {
			t.Errorf("the signers end later: got %+v, %v, want 72 h", result, err)
		}
	})
}

// Catches a missing warning about a misspelt node name, or about a token that a stolen machine can use again.
func TestRevokeNodeWarns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		free, rack, spent := s.token(t, tokens.Limits{}), s.token(t, tokens.Limits{MaxNodes: 2}), s.token(t, tokens.Limits{MaxNodes: 1})
		s.join(t, free, "worker-1")
		s.join(t, rack, "worker-2")
		s.join(t, spent, "worker-3")
		works := func(token tokens.Token) string {
			return fmt.Sprintf("token %[1]s, which admitted the node, still works, and the machine may have it; run: kubejoin token delete %[1]s;", token.ID())
		}
		warns := func(what, node, want string) {
			t.Helper()
			result, err := s.Revoke(t.Context(), desk.Order{Node: node})
			if got := strings.Join(result.Warnings, "; "); err != nil || (got != "") != (want != "") || !strings.Contains(got, want) {
				t.Errorf("%s, %s: got warnings %q, %v, want %q", what, node, got, err, want)
			}
		}
		warns("unlimited", "worker-1", works(free))
		warns("free slot", "worker-2", works(rack))
		warns("unused certificate", "worker-3", works(spent))
		must.Value(storetest.UpdateClaim(t.Context(), s.db.Claims(), "worker-3", func(c *tokens.Claim) error { c.NodeUID = tokens.ByCertificate; return nil }))(t)
		warns("spent", "worker-3", "")
		s.Tokens = storetest.Fail(errAway, "Store.List").Store(s.db)
		warns("tokens away", "worker-2", "cannot read now which tokens admitted the node")
		s.Tokens = s.db
		kept := s.IssuanceRecord
		s.join(t, free, "worker-4")
		s.IssuanceRecord = noRecord{}
		warns("record away", "worker-4", "cannot read now which tokens admitted the node")
		s.IssuanceRecord = nil
		guess := "does not know which token admitted the node; it may be one of: "
		warns("not recorded", "worker-1", guess+free.ID()+";")
		warns("not recorded", "worker-2", works(rack))
		var ids []string
		for range 6 {
			ids = append(ids, s.token(t, tokens.Limits{NodeNames: []string{"many-*"}}).ID())
		}
		slices.Sort(ids)
		must.OK(t, s.db.Delete(t.Context(), must.Value(s.db.Get(t.Context(), free.ID(), tokens.Live))(t)))
		warns("only other names", "worker-1", "")
		warns("six tokens", "many-1", guess+strings.Join(ids[:5], ", ")+";")
		s.IssuanceRecord, ids = kept, append(ids, rack.ID())
		for _, id := range ids {
			must.OK(t, s.db.Delete(t.Context(), must.Value(s.db.Get(t.Context(), id, tokens.Live))(t)))
		}
		warns("without a cluster", "worker-1", "")
		warns("without a cluster", "worker-2", "")
		warns("without a cluster", "wroker-1", "kubejoin has no claim and no certificate of node wroker-1")
		s.Node = func(_ context.Context, name string) (tokens.NodeRef, error) {
			if name == "worker-1" {
				return tokens.NodeRef{Name: name}, nil
			}
			return tokens.NodeRef{}, tokens.ErrNotFound
		}
		warns("in a cluster", "worker-1", "")
		warns("in a cluster", "worker-2", "there is no Node worker-2")
	})
}

// Catches a release that frees a slot of the token of a stolen machine, and a release that is refused without this
// reason.
func TestCheckRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		first, second := s.token(t, tokens.Limits{MaxNodes: 2}), s.token(t, tokens.Limits{MaxNodes: 2})
		s.join(t, first, "worker-1")
		check := func(what string, refused bool) {
			t.Helper()
			err := s.CheckRelease(t.Context(), "worker-1")
			if r := (*tokens.Refusal)(nil); (err != nil) != refused || refused && (!errors.As(err, &r) || r.Reason != desk.TokenWorks || !strings.Contains(r.Message, "run: kubejoin token delete "+first.ID())) {
				t.Errorf("%s: got %v, want it refused: %t", what, err, refused)
			}
		}
		release := func() {
			t.Helper()
			_, _, err := tokens.Releaser{Tokens: s.db, Claims: s.Claims}.Release(t.Context(), "worker-1", false)
			must.OK(t, err)
		}
		check("not revoked", false)
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		check("revoked", true)
		var stored []byte
		write := func(value []byte) {
			must.OK(t, s.db.Revocations().Update(t.Context(), "worker-1", func(before []byte) ([]byte, error) { stored = before; return value, nil }))
		}
		write([]byte("{"))
		check("malformed", true)
		write(stored)
		s.Tokens = storetest.Fail(errAway, "Store.List").Store(s.db)
		if err := s.CheckRelease(t.Context(), "worker-1"); !errors.Is(err, errAway) {
			t.Errorf("tokens away: got %v, want %v", err, errAway)
		}
		s.Tokens = s.db
		claim := must.Value(s.Claims.Get(t.Context(), "worker-1", tokens.Live))(t)
		must.OK(t, storetest.DeleteClaim(t.Context(), s.Claims, claim))
		check("without a claim, counted", true)
		release()
		check("released", false)
		stale := must.Value(s.db.List(t.Context()))(t)
		s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
			err := do()
			if c.Method == "Store.List" {
				c.Records = stale
			}
			return err
		}).Store(s.db)
		s.join(t, first, "worker-1")
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		check("revoked again", true)
		must.OK(t, s.db.Delete(t.Context(), must.Value(s.db.Get(t.Context(), first.ID(), tokens.Live))(t)))
		check("token deleted, and still in a list", false)
		release()
		time.Sleep(time.Second)
		s.join(t, second, "worker-1")
		check("came back with another token", false)
		if err := s.CheckRelease(t.Context(), "Worker_1"); err != nil {
			t.Errorf("invalid name: got %v, want nil, because the release refuses it", err)
		}
	})
}

// Catches a stored revocation for an invalid request.
func TestRevokeRefuses(t *testing.T) {
	s := newSite(t)
	for _, test := range []struct {
		request desk.Order
		field   string
	}{
		{desk.Order{}, "node"},
		{desk.Order{Node: "worker-1", Serial: "ab"}, "node"},
		{desk.Order{Node: "Worker_1"}, "node"},
		{desk.Order{Fingerprint: "ab"}, "fingerprint"},
		{desk.Order{Serial: "xyz"}, "serial"},
		{desk.Order{TokenID: "x"}, "tokenID"},
		{desk.Order{Node: "a", Reason: strings.Repeat("x", 257)}, "reason"},
	} {
		_, err := s.Revoke(t.Context(), test.request)
		var field *tokens.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("%+v: got %v, want an error of field %s", test.request, err, test.field)
		}
	}
	for want, r := range map[string]desk.Order{desk.NotIssued: {Serial: "abcdef"}, desk.NoToken: {TokenID: "qwertz"}} {
		_, err := s.Revoke(t.Context(), r)
		var failed *tokens.Refusal
		if !errors.As(err, &failed) || failed.Reason != want {
			t.Errorf("%+v: got %v, want reason %s", r, err, want)
		}
	}
	if left, err := s.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("got %+v, %v, want no entry", left, err)
	}
}

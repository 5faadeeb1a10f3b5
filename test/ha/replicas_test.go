package ha

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
)

// inFlight is how many clients send requests at once.
const inFlight = 40

// A service is several kubejoin replicas with the same CA, operators and etcd.
type service struct {
	dir    datadir.Dir // the CA and the operators
	bearer api.Secret
	flags  []string // flags of each replica
	all    []*harness.Program
	http   *http.Client
}

// newService starts n replicas on an etcd cluster.
func newService(t *testing.T, c *etcd.Cluster, n int, flags ...string) *service {
	t.Helper()
	s := &service{dir: datadir.Dir(filepath.Join(t.TempDir(), "shared"))}
	must.OK(t, s.dir.Open())
	must.Value(s.dir.MakeCA(time.Now()))(t)
	ca := must.Value(signer.LoadCA(s.dir.Path(datadir.CA), s.dir.Path(datadir.CA)))(t)
	bundle, _, err := ca.PEM()
	must.OK(t, err)
	must.OK(t, os.WriteFile(s.dir.Path(datadir.Bundle), bundle, 0o600))
	bearer := must.Value(s.dir.AdminBearer("kubejoin:admins"))(t)
	s.bearer = api.Secret(bearer)
	must.OK(t, s.dir.WriteCurlrc("", bearer))
	files := must.Value(c.User("kubejoin"))(t)
	s.flags = append([]string{
		"--token-store=etcd", "--etcd-cafile=" + files.CA, "--etcd-certfile=" + files.Cert, "--etcd-keyfile=" + files.Key,
		"--cluster-signing-cert-file=" + s.dir.Path(datadir.CA), "--cluster-signing-key-file=" + s.dir.Path(datadir.CA),
		"--token-auth-file=" + s.dir.Path(datadir.Operators), "--user-qps=0", "--user-tokens=0",
	}, flags...)
	for range n {
		s.all = append(s.all, s.start(t, c.Endpoints()))
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: inFlight}
	t.Cleanup(transport.CloseIdleConnections)
	// The timeout is longer than the 10 s for which a replica retries a write.
	s.http = &http.Client{Transport: transport, Timeout: 30 * time.Second}
	return s
}

// start starts another replica, with its own data folder and these etcd members.
func (s *service) start(t *testing.T, servers []string, flags ...string) *harness.Program {
	t.Helper()
	own := []string{"--data-dir=" + filepath.Join(t.TempDir(), "data"), "--etcd-servers=" + strings.Join(servers, ",")}
	flags = slices.Concat(own, s.flags, flags)
	return harness.Serve(t, t.TempDir(), s.dir.Path(datadir.Bundle), s.dir.Path(datadir.Curlrc), flags...)
}

// at returns a client of one replica, with the bearer token of an operator or a bootstrap token.
func (s *service) at(i int, bearer api.Secret) *client.Client {
	return &client.Client{URL: "https://" + s.all[i].Endpoint, Bearer: bearer, HTTP: s.http}
}

// readyz returns the status and the body of a replica's /readyz.
func (s *service) readyz(t *testing.T, i int) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	status, body, err := s.all[i].Get(ctx, "/readyz?verbose", string(s.bearer))
	must.OK(t, err)
	return status, body
}

// newToken creates a token at a replica. A retry with the same token returns the same result.
func (s *service) newToken(ctx context.Context, i int, token tokens.Token, expires time.Time, spec api.TokenSpec) error {
	spec.Expires = expires.UTC().Format(time.RFC3339)
	_, err := s.at(i, s.bearer).CreateToken(ctx, api.CreateToken{Token: api.Secret(token.Reveal()), TokenSpec: spec})
	return err
}

// TestClientsNoticeNoLostReplica kills or pauses each kind of member of etcd under load, separates a replica from the
// leader, and kills each replica. It catches an acknowledged token that is lost, writes that do not resume in time, and an
// error that a retrying client sees.
func TestClientsNoticeNoLostReplica(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{Members: 3})
	s := newService(t, c, 0)
	var networks []*etcd.Network
	for range 3 {
		network := must.Value(c.Network())(t)
		t.Cleanup(network.Close)
		networks, s.all = append(networks, network), append(s.all, s.start(t, network.Endpoints()))
	}
	expires := time.Now().Add(time.Hour)
	known := make(chan tokens.Token, 100000)
	f := &failover{targets: 3}
	f.start = func() func(context.Context, int) error {
		token := tokens.Generate() // the same in each retry
		return func(ctx context.Context, i int) error {
			err := s.newToken(ctx, i, token, expires, api.TokenSpec{})
			if err == nil {
				known <- token
			}
			return err
		}
	}
	leader := func() int {
		t.Helper()
		return must.Value(c.Leader(t.Context()))(t)
	}
	back := func(member int, heal func() error) {
		t.Helper()
		must.OK(t, heal())
		must.OK(t, c.WaitReady(t.Context(), member))
	}
	lost := leader()
	f.during(t, "leader of etcd killed", func() { c.Kill(lost) })
	back(lost, func() error { return c.Launch(lost) })
	lost = (leader() + 1) % 3
	f.during(t, "follower killed", func() { c.Kill(lost) })
	back(lost, func() error { return c.Launch(lost) })
	lost = leader()
	f.during(t, "leader paused", func() { must.OK(t, c.Pause(lost)) })
	back(lost, func() error { return c.Resume(lost) })
	f.during(t, "one replica separated from the leader", func() { networks[0].Drop(leader()) })
	networks[0].Heal()
	for i := range s.all {
		f.during(t, "a replica killed", func() { s.all[i].Kill(t) })
		s.all[i] = s.start(t, networks[i].Endpoints())
	}
	close(known)
	n := 0
	for token := range known {
		n++
		for i := range s.all {
			if _, err := s.at(i, s.bearer).GetToken(t.Context(), token.ID()); err != nil {
				t.Errorf("token %s at replica %d: %v", token.ID(), i, err)
			}
		}
	}
	t.Logf("%d tokens were created, and each replica has them", n)
}

// TestAnotherReplicaDeletesExpiredTokens kills the replica that deletes expired tokens. It catches tokens that no other
// replica deletes then.
func TestAnotherReplicaDeletesExpiredTokens(t *testing.T) {
	harness.Parallel(t)
	s := newService(t, etcd.ForTest(t, etcd.Options{}), 3)
	leaders := func() (all []int) {
		for i, p := range s.all {
			if harness.Metric(t, p.Metrics(t), "kubejoin_leader") == 1 {
				all = append(all, i)
			}
		}
		return all
	}
	var first []int
	harness.Wait(t, "one leader", func() error {
		if first = leaders(); len(first) != 1 {
			return fmt.Errorf("replicas %v lead, want one", first)
		}
		return nil
	})
	s.all[first[0]].Kill(t)
	killed := time.Now()
	s.all = slices.Delete(s.all, first[0], first[0]+1)
	token := tokens.Generate()
	must.OK(t, s.newToken(t.Context(), 0, token, time.Now().Add(10*time.Second), api.TokenSpec{}))
	harness.Wait(t, "the token to be deleted", func() error {
		_, err := s.at(1, s.bearer).GetToken(t.Context(), token.ID())
		if err == nil {
			return errors.New("it exists")
		}
		return gone(err)
	})
	t.Logf("%s after the leader was killed, another one had deleted a token that expired after 10 s", time.Since(killed).Round(time.Millisecond))
	if now := leaders(); len(now) != 1 {
		t.Errorf("replicas %v lead, want one", now)
	}
}

// TestReadinessReportsEtcd takes away the majority of etcd, and then its disk space. It catches a replica that still
// reports ready, a replica that needs a restart afterwards, and an error that does not name etcd.
func TestReadinessReportsEtcd(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{Members: 3, Quota: 4 << 20})
	s := newService(t, c, 2)
	ctx, expires := t.Context(), time.Now().Add(time.Hour)
	token := tokens.Generate()
	must.OK(t, s.newToken(ctx, 0, token, expires, api.TokenSpec{}))

	must.OK(t, c.FillSpace(ctx))
	refused := s.newToken(ctx, 0, tokens.Generate(), expires, api.TokenSpec{})
	t.Logf("without space, a caller sees: %v", refused)
	if refused == nil || !strings.Contains(refused.Error(), "refused") || !strings.Contains(s.all[0].Log(), "NOSPACE") || !strings.Contains(s.all[0].Log(), "etcdctl alarm disarm") {
		t.Errorf("without space: got error %v, and the log has no NOSPACE with its remedy", refused)
	}
	if status, body := s.readyz(t, 0); status != http.StatusOK || !strings.Contains(body, "etcd refuses writes") {
		t.Errorf("without space: readyz is %d %s, want 200 with a notice", status, body)
	}
	if _, err := s.at(1, s.bearer).DeleteToken(ctx, token.ID(), api.DeleteToken{}); err != nil {
		t.Errorf("deleting a token without space: %v", err)
	}
	must.OK(t, c.ClearSpace(ctx))
	harness.Wait(t, "a token after the alarm", func() error { return s.newToken(ctx, 0, tokens.Generate(), expires, api.TokenSpec{}) })

	c.Kill(0)
	c.Kill(1)
	for i := range s.all {
		harness.Wait(t, "readiness without a quorum", func() error {
			if status, body := s.readyz(t, i); status == http.StatusOK || !strings.Contains(body, "etcd") {
				return &api.Problem{Status: status, Detail: body}
			}
			return nil
		})
		refused := s.newToken(ctx, i, tokens.Generate(), expires, api.TokenSpec{})
		t.Logf("without a quorum, a caller sees: %v", refused)
		if refused == nil {
			t.Error("a token was created without a quorum")
		}
		// Reads that may lag still work, because they come from memory.
		if status, _, err := s.all[i].Get(ctx, harness.ClusterInfoPath, ""); err != nil || status != http.StatusOK {
			t.Errorf("cluster-info without a quorum: %d %v, want 200", status, err)
		}
		// The replica must report that it is alive: after a restart, it could not start without etcd.
		if status, _, err := s.all[i].Get(ctx, "/healthz", ""); err != nil || status != http.StatusOK {
			t.Errorf("healthz without a quorum: %d %v, want 200", status, err)
		}
	}
	must.OK(t, c.Launch(0))
	must.OK(t, c.Launch(1))
	for i := range s.all {
		harness.Wait(t, "readiness with a quorum", func() error {
			if status, body := s.readyz(t, i); status != http.StatusOK {
				return &api.Problem{Status: status, Detail: body}
			}
			return nil
		})
		created := tokens.Generate()
		must.OK(t, s.newToken(ctx, i, created, expires, api.TokenSpec{}))
		harness.Wait(t, "the token in the cache of the other replica", func() error {
			_, body, err := s.all[1-i].Get(ctx, harness.ClusterInfoPath, "")
			if err == nil && !strings.Contains(body, clusterinfo.SignatureKey(created.ID())) {
				err = errors.New("cluster-info has no signature of it")
			}
			return err
		})
	}
}

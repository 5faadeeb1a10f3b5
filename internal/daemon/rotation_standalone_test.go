package daemon

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/tokens"
)

// openStandalone opens the stores of a standalone kubejoin, in a folder with a CA.
func openStandalone(t *testing.T, data datadir.Dir, o Options) *standalone {
	t.Helper()
	o.DataDir, o.Listen = string(data), "127.0.0.1:9443"
	service := newService(o, slog.New(slog.DiscardHandler), nil)
	s := must.Value(service.openStandalone())(t)
	t.Cleanup(s.close)
	return s
}

// servesNothing returns a serving certificate that no CA of the rotation has issued.
func servesNothing(t *testing.T) servingCertificate {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certtest.CA(t, "other"), nil }
}

func newData(t *testing.T) datadir.Dir {
	t.Helper()
	data := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	must.OK(t, data.Open())
	must.Value(data.MakeCA(time.Now()))(t)
	return data
}

// A kubejoin was killed after it stored a stage, but before it changed the CA files. Catches a kubejoin that does not resume
// when it starts, with a CA in its folder or in the operator's files.
func TestStandaloneResumesRotation(t *testing.T) {
	data := newData(t)
	file := data.Path(datadir.CA)
	old := must.Value(signer.LoadCA(file, file))(t)
	given := filepath.Join(t.TempDir(), "ca.pem")
	must.OK(t, os.WriteFile(given, must.Value(os.ReadFile(file))(t), 0o600))
	s := openStandalone(t, data, Options{CA: CA{Duration: time.Hour}})
	fresh := certtest.CA(t, "new")
	r := must.Value(rotation.New(rotation.Cluster, old.Bundle(), []*x509.Certificate{fresh.Leaf}, nil, time.Now()))(t)
	must.Value(s.follower.PutKey(t.Context(), r, fresh.PrivateKey.(crypto.Signer)))(t)
	r.Stage, r.HasKey = rotation.Trust, true
	must.OK(t, s.follower.Store.Put(t.Context(), r, ""))
	s.close()

	s = openStandalone(t, data, Options{CA: CA{CertFile: given, KeyFile: given, Duration: time.Hour}})
	if s.follower.failure.Load() != nil || len(s.ca.Get().Bundle()) != 2 {
		t.Errorf("files of the operator: got %d trusted CAs, want both", len(s.ca.Get().Bundle()))
	}
	s.close()
	s = openStandalone(t, data, Options{CA: CA{Duration: time.Hour, RotationQPS: 20}})
	if s.follower.failure.Load() != nil || len(s.ca.Get().Bundle()) != 2 {
		t.Errorf("got %d trusted CAs, want both", len(s.ca.Get().Bundle()))
	}
	s.rotations(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Leaf: s.ca.Get().Certificate()}, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range s.background {
		running.Go(func() { _ = run(ctx) })
	}
	scraped := func() string {
		page := httptest.NewRecorder()
		s.status().Metrics.ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		return page.Body.String()
	}
	const stage = `kubejoin_ca_rotation_stage{ca="cluster",stage="trust"} 1`
	wait.Until(t, "the metrics have "+stage, func() bool { return strings.Contains(scraped(), stage) })
	stop()
	running.Wait()
	if got := s.trust.rotation.maxLifetime(old.Certificate(), "worker-1"); got != rotation.ShortLifetime("worker-1", 0, 20) {
		t.Errorf("in stage trust, kubelets get certificates for %s", got)
	}
	s.close()

	// If somebody changes the file, kubejoin must serve with it, report the change, and refuse the next step.
	good := must.Value(os.ReadFile(file))(t)
	edited := append([]byte(rotationtest.PEM(certtest.CA(t, "mine").Leaf)), good...)
	must.OK(t, os.WriteFile(file, edited, 0o600))
	s = openStandalone(t, data, Options{CA: CA{Duration: time.Hour}})
	desk := s.rotations(servesNothing(t)).Desk
	check := s.checks[len(s.checks)-1]
	var notice api.Notice
	if err := check.Ready(t.Context()); check.Name != "ca-rotation" || !errors.As(err, &notice) {
		t.Errorf("check %s: got %v, want a notice", check.Name, err)
	}
	var behind *rotation.NotReady
	if _, err := desk.Advance(t.Context(), rotation.Cluster, rotation.Switch, rotation.Options{}); !errors.As(err, &behind) || !strings.Contains(err.Error(), rowstate.ErrEdited.Error()) {
		t.Errorf("the next step: got %v, want %v", err, rowstate.ErrEdited)
	}
	if now := must.Value(os.ReadFile(file))(t); !bytes.Equal(now, edited) {
		t.Error("kubejoin wrote over the edited file")
	}
	must.OK(t, os.WriteFile(file, good, 0o600))
	must.Value(s.follower.follow(t.Context()))(t)
	if err := check.Ready(t.Context()); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	left := fmt.Errorf("ca.pem: %w", rowstate.ErrLeftBehind)
	s.follower.failure.Store(&left)
	if err := check.Ready(t.Context()); err == nil || errors.As(err, &notice) {
		t.Errorf("with a CA that no client trusts any more: got %v, want that it is not ready", err)
	}
}

// Catches a prepare that begins a rotation although kubejoin or a replica cannot change its files. Also catches a prepare
// that refuses a CA whose key the operator provides.
func TestPrepareRefusesCAThatItCannotWrite(t *testing.T) {
	data := newData(t)
	readOnly := filepath.Join(t.TempDir(), "missing", "ca.pem")
	s := openStandalone(t, data, Options{CA: CA{Duration: time.Hour}})
	desk := s.rotations(servesNothing(t)).Desk
	prepare := func(certificates ...*x509.Certificate) error {
		_, err := desk.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, DryRun: true, Certificates: certificates})
		return err
	}
	must.OK(t, prepare())
	for why, files := range map[string]rowstate.Files{
		readOnly:               {Cert: s.follower.Cert, Key: readOnly},
		"the key is encrypted": ownFiles(CA{PassphraseFile: "x"}),
		"the signer process of --cluster-signing": ownFiles(CA{Remote: remote.Config{URL: "unix:///x"}}),
	} {
		good := s.follower.Files
		s.follower.Files = files
		var behind *rotation.NotReady
		if err := prepare(); !errors.As(err, &behind) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, want a refusal", why, err)
		}
		must.OK(t, prepare(certtest.CA(t, "brought").Leaf))
		s.follower.Files = good
	}
	must.OK(t, s.follower.Report(t.Context(), rowstate.Replica{Name: "join-2-9443", Time: time.Now(), Fixed: "kubejoin cannot replace /etc/kubejoin/ca.crt"}))
	if err := prepare(); err == nil || !strings.Contains(err.Error(), "on join-2-9443: kubejoin cannot replace /etc/kubejoin/ca.crt") {
		t.Errorf("a replica that cannot write: got %v, want a refusal that names it", err)
	}
	ended := must.Value(rotation.New(rotation.Cluster, s.ca.Get().Bundle(), []*x509.Certificate{certtest.CA(t, "new").Leaf}, nil, time.Now()))(t)
	ended.Stage, ended.Ended = rotation.Finish, time.Now()
	must.OK(t, s.follower.Store.Put(t.Context(), ended, ""))
	if err := prepare(); err == nil || !strings.Contains(err.Error(), rowstate.ErrLeftBehind.Error()) {
		t.Errorf("with the CA from before the last rotation: got %v, want a refusal", err)
	}
}

// The operator provides the key of the new CA. Catches a kubejoin that writes the files itself, or does not say what
// the operator must write.
func TestStatusSaysWhatToWriteWithoutKey(t *testing.T) {
	data := newData(t)
	s := openStandalone(t, data, Options{CA: CA{Duration: time.Hour}})
	before := must.Value(os.ReadFile(s.follower.Cert))(t)
	desk := s.rotations(servesNothing(t)).Desk
	must.Value(desk.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, Certificates: []*x509.Certificate{certtest.CA(t, "brought").Leaf}, Cross: s.ca.Get().CrossSign}))(t)
	must.Value(desk.Advance(t.Context(), rotation.Cluster, rotation.Trust, rotation.Options{}))(t)
	_, err := desk.Advance(t.Context(), rotation.Cluster, rotation.Switch, rotation.Options{})
	if err == nil || !strings.Contains(err.Error(), "next: write the certificates that stage trust trusts to "+s.follower.Cert) {
		t.Errorf("got %v, want what to write", err)
	}
	if after := must.Value(os.ReadFile(s.follower.Cert))(t); !bytes.Equal(after, before) {
		t.Error("kubejoin wrote the CA file")
	}
}

func TestReplicaName(t *testing.T) {
	name := replicaName("[::]:9443")
	if err := tokens.CheckNodeName(name); err != nil || !strings.HasSuffix(name, "-9443") {
		t.Errorf("got %q, %v, want a node name with the port", name, err)
	}
}

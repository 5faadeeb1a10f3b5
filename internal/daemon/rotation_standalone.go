package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/kube/caobserver"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/rowstate"
	"github.com/kubejoin/kubejoin/tokens"
)

// A caFollower updates the CA files of a standalone kubejoin to match the stage of the stored rotation.
type caFollower struct {
	rowstate.Store
	claims tokens.Claims
	log    *slog.Logger

	mu sync.Mutex // held during follow
	// failure is the reason why the CA files do not match the stage; nil if they match.
	failure atomic.Pointer[error]
	// state is the rotation in use.
	state atomic.Pointer[rotating]
}

// An ownRotation rotates the CA of a standalone kubejoin. This kubejoin and its replicas are the only hosts.
type ownRotation struct {
	*caFollower
	name        func() string // of this replica, available once it listens; empty without etcd
	ca          *clusterCA
	certificate servingCertificate
	info        *clusterinfo.Computed
	others      rotation.Observer // observes certificates and tokens

	// Only the loop uses these fields.
	reported rowstate.Replica
	checked  time.Time // when the files were last found writable
}

// resumeRotation updates the CA files to the stored stage, because kubejoin may have been killed or stopped before it
// could. Call it before the CA is loaded. After a failure, kubejoin still serves with the present files.
func (s *service) resumeRotation(own stores, files CA) *caFollower {
	f := &caFollower{Store: rowstate.Store{Rows: own.rotationRows, Files: ownFiles(files)}, claims: own.claims, log: s.log}
	f.state.Store(&rotating{})
	if own.etcd == nil {
		f.Files.Rows = datadir.Dir(s.options.DataDir).Path(datadir.Store)
	}
	ctx, cancel := context.WithTimeout(context.Background(), followTimeout)
	defer cancel()
	if _, err := f.follow(ctx); err != nil {
		s.log.Warn("cannot read the CA rotation before the CA is loaded; retrying", "error", err)
	}
	return f
}

// ownFiles returns the CA files, and the reason if kubejoin cannot replace them.
func ownFiles(c CA) rowstate.Files {
	files := rowstate.Files{Cert: c.CertFile, Key: c.KeyFile}
	switch {
	case c.Remote.URL != "":
		files.Fixed = "the signer process of --cluster-signing-key-url has the key, and kubejoin cannot replace it"
	case c.PassphraseFile != "":
		files.Fixed = "the key is encrypted, and kubejoin would write a plain one"
	}
	return files
}

// replicaName returns a name for the replica at an address of this host: the host name and the port, as a node name.
func replicaName(listen string) string {
	host, _ := os.Hostname() // if the host has no name, the port is enough
	_, port, _ := net.SplitHostPort(listen)
	host = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' {
			return c
		}
		return '-'
	}, strings.ToLower(host))
	name := strings.Trim(host, "-.") + "-" + port
	if tokens.CheckNodeName(name) != nil {
		return "kubejoin-" + port
	}
	return name
}

// rotations returns the CA rotations for the HTTPS API, and starts the loop that follows the rotation.
func (s *standalone) rotations(certificate servingCertificate) *operations.Rotations {
	own := &ownRotation{
		caFollower: s.follower, ca: s.ca, certificate: certificate, info: s.info,
		others: &caobserver.Observer{Tokens: s.tokens.List, Record: s.record, Revocations: s.trust.revocations},
	}
	own.name = func() string { return "" }
	if s.etcd != nil {
		own.name = func() string { return replicaName(s.options.Listen) }
	}
	rotations := &operations.Rotations{
		Desk: &rotation.Desk{
			Store: own, Keys: own, Observer: own,
			ExpireTokens: operations.ExpireTokens(&mint.Minter{Tokens: s.tokens, ClusterInfo: s.info}),
			Trusted:      func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return s.ca.Get().Bundle(), nil },
			Check: func(_ rotation.CA, fresh []*x509.Certificate) error {
				return signer.CheckTrust(fresh[0], fresh, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, sampleHosts(s.options.Serving.Scope))
			},
		},
		Cross: func(_ rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error) {
			return s.ca.Get().CrossSign(fresh)
		},
	}
	s.goBackground(func(ctx context.Context) error {
		return loop.Loop{Name: "ca-file", Hint: own.Watch(ctx), Gap: followGap, Sweep: followEvery, Logger: s.log, Registerer: s.registry, Step: own.followAndReport}.Run(ctx)
	})
	s.goBackground(caobserver.Watch{
		Get: func(ctx context.Context, ca rotation.CA) (rotation.Rotation, error) {
			if ca != rotation.Cluster {
				return rotation.Rotation{}, nil
			}
			r, _, err := own.Get(ctx, ca)
			return r, err
		},
		Status: rotations.Desk.Status, Logger: s.log, Registerer: s.registry,
	}.Run)
	s.check("ca-rotation", func(context.Context) error {
		switch err := own.failure.Load(); {
		case err == nil:
			return nil
		case errors.Is(*err, rowstate.ErrLeftBehind):
			return errors.New("the CA files are from before the end of a CA rotation; copy those of another replica")
		}
		return api.Notice("the CA files are not those of the stage of the CA rotation; see the log")
	})
	return rotations
}

const (
	// followEvery is how often kubejoin checks that the CA files match the stage. While they do not, it checks after
	// followSoon.
	followEvery = 10 * time.Second
	followSoon  = 2 * time.Second
	// followGap is the minimum time between checks that reports of other replicas trigger.
	followGap = 500 * time.Millisecond
)

// checkEvery is how often kubejoin checks that it can still write the CA files. Each check creates a temporary file in
// their folder.
const checkEvery = 5 * time.Minute

// followAndReport follows the rotation, and reports to the other replicas.
func (o *ownRotation) followAndReport(ctx context.Context) (next time.Time, err error) {
	r, err := o.follow(ctx)
	if err != nil {
		return next, err
	}
	seen, err := o.own(ctx, r)
	if err != nil {
		return next, err
	}
	if r.InProgress() && !asStaged(r, seen) {
		next = time.Now().Add(followSoon)
	}
	if o.name() == "" {
		return next, nil
	}
	return next, o.report(ctx, r, seen)
}

// report stores the report of this replica if it has changed or is due.
func (o *ownRotation) report(ctx context.Context, r rotation.Rotation, seen []rotation.Observation) error {
	now := time.Now().UTC()
	p := rowstate.Replica{Name: o.name(), ID: r.ID, Since: r.Since, Seen: seen}
	if now.Sub(o.checked) > checkEvery {
		if err := o.Writable(); err != nil {
			p.Fixed = safetext.Text(err.Error(), safetext.MaxMessage)
		} else {
			o.checked = now
		}
	}
	p.Time = o.reported.Time
	if now.Sub(p.Time) < rowstate.Beat && reflect.DeepEqual(p, o.reported) {
		return nil
	}
	if o.reported.Time.IsZero() { // the first report after a start
		if err := o.Forget(ctx, now); err != nil {
			return err
		}
	}
	p.Time = now
	if err := o.Report(ctx, p); err != nil {
		return err
	}
	o.reported = p
	return nil
}

// follow changes the CA files if they do not match the stage, and returns the stored rotation. It logs each failure to
// change them once. The error means that the rotation could not be read.
func (o *caFollower) follow(ctx context.Context) (rotation.Rotation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, err := o.use(ctx) // use first: when the CA files change, the serving certificate needs the new state
	if err != nil {
		return r, err
	}
	changed, err := o.Follow(ctx, r)
	if changed {
		o.log.Info("changed the CA files for the stage of the CA rotation", "file", o.Cert)
	}
	if err == nil {
		o.failure.Store(nil)
		return r, nil
	}
	if before := o.failure.Swap(&err); before == nil || (*before).Error() != err.Error() {
		o.log.Error("cannot change the CA files for the stage of the CA rotation", "error", err)
	}
	return r, nil
}

// use reads the stored rotation into o.state. It counts the claims, because each node with a claim renews its
// certificates early.
func (o *caFollower) use(ctx context.Context) (rotation.Rotation, error) {
	r, _, err := o.Get(ctx, rotation.Cluster)
	if err != nil {
		return r, err
	}
	now := newRotating(r)
	if len(now.leaving) > 0 {
		now.nodes = o.state.Load().nodes
		if claims, err := o.claims.List(ctx); err == nil { // after an error, keep the last count
			now.nodes = len(claims)
		}
	}
	o.state.Store(&now)
	return r, nil
}

// followTimeout is how long a step waits until kubejoin uses the CA files of the stage. kubejoin checks the files
// every reload.Interval.
const followTimeout = 15 * time.Second

// Put implements [rotation.Store]. It returns when this kubejoin trusts and signs as the stage requires, or after
// followTimeout. After a timeout, the next step returns NotReady.
func (o *ownRotation) Put(ctx context.Context, r rotation.Rotation, version string) error {
	if err := o.Store.Put(ctx, r, version); err != nil {
		return err
	}
	if _, err := o.follow(ctx); err != nil || o.failure.Load() != nil || !r.HasKey {
		return nil // the loop retries
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	check := time.NewTicker(50 * time.Millisecond)
	defer check.Stop()
	for {
		if seen, err := o.own(ctx, r); err == nil && asStaged(r, seen) {
			return nil
		}
		select {
		case <-check.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// asStaged reports whether all observations fit the stage.
func asStaged(r rotation.Rotation, seen []rotation.Observation) bool {
	return !slices.ContainsFunc(seen, func(o rotation.Observation) bool { return !r.Fits(o) })
}

// Observe implements [rotation.Observer]. It returns a [*rotation.NotReady] if r is a new rotation and a replica cannot
// change its CA files.
func (o *ownRotation) Observe(ctx context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	if !r.InProgress() {
		return nil, nil // replicas finish their files without an operator
	}
	stored, err := o.follow(ctx)
	if err != nil {
		return nil, err
	}
	replicas, err := o.Replicas(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	// This replica observes itself below.
	replicas = slices.DeleteFunc(replicas, func(p rowstate.Replica) bool { return p.Name == o.name() })
	if stored.ID != r.ID && r.HasKey {
		behind := rowstate.Cannot(replicas, time.Now())
		if err := o.failure.Load(); err != nil {
			behind = append(behind, rowstate.Fixed(o.name(), safetext.Text((*err).Error(), safetext.MaxMessage)))
		} else if err := o.Writable(); err != nil {
			behind = append(behind, rowstate.Fixed(o.name(), safetext.Text(err.Error(), safetext.MaxMessage)))
		}
		if len(behind) > 0 {
			return nil, &rotation.NotReady{Doing: string(rotation.Prepare), Behind: behind}
		}
	}
	own, err := o.own(ctx, r)
	if err != nil {
		return nil, err
	}
	others, err := o.others.Observe(ctx, r)
	return slices.Concat(own, rowstate.Observe(r, replicas, time.Now()), others), err
}

// own observes the CAs that this kubejoin trusts and signs with, and its serving certificate.
func (o *ownRotation) own(ctx context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	if !r.InProgress() {
		return nil, nil
	}
	ca := o.ca.Get()
	trusts := r.In(ca.Bundle())
	chain, err := o.certificate(&tls.ClientHelloInfo{})
	if err != nil {
		return nil, err
	}
	kubeconfig, err := o.info.Config(ctx)
	if err != nil {
		return nil, err
	}
	_, pinned, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	info := r.In(pinned)
	seen := []rotation.Observation{
		{Kind: rotation.KindFile, Name: o.Cert},
		{Kind: rotation.KindServer, Name: "CA in " + o.Cert, Trusts: &trusts},
		{Kind: rotation.KindServer, Name: "key of " + o.Cert, From: r.Find([]*x509.Certificate{ca.Certificate()})},
		{Kind: rotation.KindServer, Name: "serving certificate", From: r.Find([]*x509.Certificate{chain.Leaf})},
		{Kind: rotation.KindClusterInfo, Name: clusterinfo.Name, Trusts: &info},
	}
	if err := o.failure.Load(); err != nil {
		seen[0].Unseen = safetext.Text((*err).Error(), safetext.MaxMessage)
	}
	name := o.name()
	for i := range seen {
		if seen[i].Node = name; name != "" {
			seen[i].Name += " on " + name
		}
	}
	if !r.HasKey && !asStaged(r, seen[1:3]) {
		key := cmp.Or(o.Key, "the signer process")
		seen[1].Next = rowstate.On(name, fmt.Sprintf("write the certificates that stage %s trusts to %s", r.Stage, o.Cert))
		seen[2].Next = rowstate.On(name, fmt.Sprintf("give %s the key that signs in stage %s", key, r.Stage))
	}
	return seen, nil
}

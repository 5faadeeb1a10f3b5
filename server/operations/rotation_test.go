package operations_test

import (
	"context"
	"crypto/x509"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// observer counts observations, which wait until release is closed.
type observer struct {
	began   int
	release chan struct{}
}

func (o *observer) Observe(context.Context, rotation.Rotation) ([]rotation.Observation, error) {
	o.began++
	<-o.release
	return []rotation.Observation{{Kind: rotation.KindKubelet, Name: "worker-1"}}, nil
}

// Each observation connects to all hosts, so a client with many requests must not cause one for each.
func TestConcurrentRequestsShareObservation(t *testing.T) {
	r := rotationtest.New(t, rotation.Cluster)
	synctest.Test(t, func(t *testing.T) {
		store, seen := &rotationtest.Memory{}, &observer{release: make(chan struct{})}
		must.OK(t, store.Put(t.Context(), r, ""))
		rotations := &operations.Rotations{Desk: &rotation.Desk{Store: store, Keys: store, Observer: seen}}
		ended := make(chan int)
		for range 20 {
			go func() {
				got, err := rotations.CARotation(t.Context(), "cluster")
				if err != nil {
					t.Error(err)
				}
				ended <- len(got.Observations)
			}()
		}
		synctest.Wait()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if got, err := rotations.CARotation(canceled, "cluster"); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that has gone: got %+v, %v, want %v", got, err, context.Canceled)
		}
		close(seen.release)
		for range 20 {
			if n := <-ended; n != 1 {
				t.Errorf("%d observations in a response, want 1", n)
			}
		}
		if seen.began > 2 {
			t.Errorf("looked %d times for 20 requests, want at most twice", seen.began)
		}
	})
}

// observed is an observer that always returns the same observations.
type observed []rotation.Observation

func (o observed) Observe(context.Context, rotation.Rotation) ([]rotation.Observation, error) {
	return o, nil
}

// CARotation must count only certificates in the issuance record, and only certificates of the two CAs.
func TestCountsCertificatesOfEachCA(t *testing.T) {
	const certificate = rotation.KindCertificate
	others := observed{{Kind: rotation.KindKubelet, From: rotation.FromOld}, {Kind: rotation.KindKubelet, From: rotation.FromNew}, {Kind: certificate, From: rotation.FromOther}, {Kind: certificate}}
	old, fresh := rotation.Observation{Kind: certificate, From: rotation.FromOld}, rotation.Observation{Kind: certificate, From: rotation.FromNew}
	for _, test := range []struct {
		seen observed
		want *api.CACertificates
	}{
		{nil, nil},
		{others, nil},
		{observed{old}, &api.CACertificates{Old: 1}},
		{append(observed{fresh, old, fresh, fresh, old}, others...), &api.CACertificates{Old: 2, New: 3}},
	} {
		store := &rotationtest.Memory{}
		must.OK(t, store.Put(t.Context(), rotationtest.New(t, rotation.Cluster), ""))
		rotations := &operations.Rotations{Desk: &rotation.Desk{Store: store, Keys: store, Observer: test.seen}}
		if got := must.Value(rotations.CARotation(t.Context(), "cluster"))(t); !reflect.DeepEqual(got.Certificates, test.want) {
			t.Errorf("%+v: got %+v, want %+v", test.seen, got.Certificates, test.want)
		}
	}
}

// Catches a lifetime that prepare ignores: the new CA would have the default.
func TestPrepareRefusesInvalidLifetime(t *testing.T) {
	store := &rotationtest.Memory{}
	trusted := func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return nil, errNode }
	rotations := &operations.Rotations{Desk: &rotation.Desk{Store: store, Keys: store, Trusted: trusted}}
	for _, lifetime := range []string{"5x", "0s", "-24h"} {
		_, err := rotations.PrepareCA(t.Context(), "cluster", api.PrepareCA{Lifetime: lifetime})
		var invalid api.InvalidFields
		if !errors.As(err, &invalid) || invalid[0].Field != "lifetime" {
			t.Errorf("%s: got %v, want an invalid lifetime", lifetime, err)
		}
	}
}

func TestExpireTokensDeletesTokens(t *testing.T) {
	store := memdb.Open()
	var ids []string
	for range 2 {
		r := must.Value(store.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
		ids = append(ids, r.Token.ID())
	}
	failing := &mint.Minter{Tokens: storetest.Fail(errNode, "Store.Delete").Store(store)}
	if err := operations.ExpireTokens(failing)(t.Context(), ids); !errors.Is(err, errNode) || !strings.Contains(err.Error(), ids[0]) {
		t.Errorf("got %v, want %v for token %s", err, errNode, ids[0])
	}
	for range 2 { // the request can be repeated
		if err := operations.ExpireTokens(&mint.Minter{Tokens: store})(t.Context(), ids); err != nil || len(must.Value(store.List(t.Context()))(t)) > 0 {
			t.Errorf("got %v, want no token left", err)
		}
	}
}

package operations_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/rotation"
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

// observed is an observer that always sees the same.
type observed []rotation.Observation

func (o observed) Observe(context.Context, rotation.Rotation) ([]rotation.Observation, error) {
	return o, nil
}

// Only certificates in the issuance record count, and only those of the two CAs.
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

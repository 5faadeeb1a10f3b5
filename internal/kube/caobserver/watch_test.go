package caobserver

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestWatchObservesOnlyRotationsInProgress catches a leader that connects to all kubelets while there is no rotation, or in each
// step of its loop.
func TestWatchObservesOnlyRotationsInProgress(t *testing.T) {
	r := begun(t, rotation.Trust, certtest.CA(t, "old"), certtest.CA(t, "new"))
	var current rotation.Rotation
	var broken error
	observed := 0
	registry := prometheus.NewRegistry()
	step := Watch{
		Get: func(_ context.Context, ca rotation.CA) (rotation.Rotation, error) {
			if ca != rotation.Cluster {
				return rotation.Rotation{}, nil
			}
			return current, nil
		},
		Status: func(_ context.Context, ca rotation.CA) (rotation.Status, error) {
			observed++
			behind := func(kind rotation.Kind) rotation.Behind {
				return rotation.Behind{Observation: rotation.Observation{Kind: kind}}
			}
			certificate := func(from rotation.From) rotation.Observation {
				return rotation.Observation{Kind: rotation.KindCertificate, From: from}
			}
			return rotation.Status{
				Rotation: current, Next: "switch",
				Seen:   []rotation.Observation{certificate(rotation.FromOld), certificate(rotation.FromNew), certificate(rotation.FromNew), {Kind: rotation.KindKubelet, From: rotation.FromOld}, {Kind: rotation.KindFile}},
				Behind: []rotation.Behind{behind(rotation.KindKubelet), behind(rotation.KindToken), behind(rotation.KindKubelet)},
			}, broken
		},
		Logger: slog.New(slog.DiscardHandler), Registerer: registry,
	}.observing()
	expect := func(observations int, behind string, stages string) {
		t.Helper()
		if observed != observations {
			t.Errorf("%d observations, want %d", observed, observations)
		}
		certificates := ""
		if behind != "" {
			certificates = `
# HELP kubejoin_ca_rotation_certificates Certificates seen in a rotation of a CA in progress, by the kind of thing that has them and the CA that they are from.
# TYPE kubejoin_ca_rotation_certificates gauge
kubejoin_ca_rotation_certificates{ca="cluster",from="new",kind="certificate"} 2
kubejoin_ca_rotation_certificates{ca="cluster",from="old",kind="certificate"} 1
kubejoin_ca_rotation_certificates{ca="cluster",from="old",kind="kubelet"} 1
`
			behind = "# HELP kubejoin_ca_rotation_behind Things that keep the next step of a rotation of a CA from success, by kind.\n# TYPE kubejoin_ca_rotation_behind gauge\n" + behind
		}
		must.OK(t, testutil.GatherAndCompare(registry, strings.NewReader(behind), "kubejoin_ca_rotation_behind"))
		must.OK(t, testutil.GatherAndCompare(registry, strings.NewReader(certificates), "kubejoin_ca_rotation_certificates"))
		got := ""
		for _, family := range must.Value(registry.Gather())(t) {
			for _, m := range family.GetMetric() {
				if family.GetName() == "kubejoin_ca_rotation_stage" && m.GetGauge().GetValue() != 0 {
					got += m.GetLabel()[0].GetValue() + " " + m.GetLabel()[1].GetValue()
				}
			}
		}
		since := 0
		if stages != "" {
			since = 1
		}
		if n := must.Value(testutil.GatherAndCount(registry, "kubejoin_ca_rotation_stage_timestamp_seconds"))(t); n != since {
			t.Errorf("%d times of stages, want %d", n, since)
		}
		if got != stages {
			t.Errorf("stages are %q, want %q", got, stages)
		}
	}
	run := func() { must.Value(step(t.Context()))(t) }
	const both = "kubejoin_ca_rotation_behind{ca=\"cluster\",kind=\"kubelet\"} 2\nkubejoin_ca_rotation_behind{ca=\"cluster\",kind=\"token\"} 1\n"

	run()
	expect(0, "", "")
	current = r
	run()
	expect(1, both, "cluster trust")
	run() // no observation: the last one was a moment ago
	expect(1, both, "cluster trust")
	current.Stage, current.Since = rotation.Switch, time.Now()
	run()
	expect(2, both, "cluster switch")
	current.Since, broken = time.Now().Add(time.Second), errors.New("API server is away")
	if _, err := step(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	broken = nil
	run() // an observation at once, because the last one failed
	expect(4, both, "cluster switch")
	current.Ended = time.Now()
	run()
	expect(4, "", "")
}

// TestWatchReportsEachChangeOnce catches a change that is never reported after a failure, and a leader that reports an old
// change at each start.
func TestWatchReportsEachChangeOnce(t *testing.T) {
	r := begun(t, rotation.Trust, certtest.CA(t, "old"), certtest.CA(t, "new"))
	synctest.Test(t, func(t *testing.T) {
		var broken error
		var reported []string
		w := Watch{
			Get: func(_ context.Context, ca rotation.CA) (rotation.Rotation, error) {
				if ca != rotation.Cluster {
					return rotation.Rotation{}, nil
				}
				return r, nil
			},
			Status: func(context.Context, rotation.CA) (rotation.Status, error) { return rotation.Status{}, nil },
			Event: func(_ context.Context, r rotation.Rotation) error {
				reported = append(reported, map[bool]string{true: string(r.Stage), false: "ended"}[r.InProgress()])
				return broken
			},
			Logger: slog.New(slog.DiscardHandler),
		}
		step := w.observing()
		expect := func(what string, failure error, want ...string) {
			t.Helper()
			if _, err := step(t.Context()); !errors.Is(err, failure) {
				t.Errorf("%s: got %v", what, err)
			}
			if !slices.Equal(reported, want) {
				t.Errorf("%s: reported %q, want %q", what, reported, want)
			}
			reported = nil
		}
		r.Since = time.Now().Add(-reportedFor)
		expect("an hour ago", nil)
		r.Since, broken = time.Now(), errors.New("API server is away")
		expect("a failure", broken, "trust")
		broken = nil
		expect("the next attempt", nil, "trust")
		expect("no change", nil)
		r.Since = time.Now().Add(time.Second)
		expect("back to the same stage", nil, "trust")
		r.Ended = time.Now().Add(2 * time.Second)
		expect("the end", nil, "ended")
		expect("after the end", nil)
		step = w.observing()
		expect("the next leader", nil, "ended")
	})
}

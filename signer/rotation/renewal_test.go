package rotation_test

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// withCross returns a rotation with a cross certificate, and the CAs.
func withCross(t *testing.T, now time.Time) (r rotation.Rotation, old, fresh, cross *x509.Certificate) {
	t.Helper()
	oldCA, newCA := certtest.CA(t, "old"), certtest.CA(t, "new")
	cross = certtest.Cross(t, oldCA.Leaf, newCA.Leaf, oldCA.PrivateKey)
	r = must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{oldCA.Leaf}, []*x509.Certificate{newCA.Leaf}, cross, now))(t)
	return r, oldCA.Leaf, newCA.Leaf, cross
}

func TestRenewsEarlyWhatTheLeavingCASigned(t *testing.T) {
	now := time.Now()
	r, old, fresh, cross := withCross(t, now)
	for _, test := range []struct {
		stage           rotation.Stage
		aborting, ended bool
		leaving, cross  *x509.Certificate
	}{
		{rotation.Prepare, false, false, nil, cross},
		{rotation.Trust, false, false, old, cross},
		{rotation.Switch, false, false, old, cross}, // a replica may still have the old key
		{rotation.Finish, false, false, old, nil},
		{rotation.Switch, true, false, fresh, cross},
		{rotation.Trust, true, false, fresh, cross},
		{rotation.Prepare, true, false, fresh, cross},
		{rotation.Finish, false, true, nil, nil},
		{rotation.Prepare, true, true, nil, nil},
	} {
		r := r
		r.Stage, r.Aborting = test.stage, test.aborting
		if test.ended {
			r.Ended = now
		}
		got := r.Leaving()
		if test.leaving == nil && len(got) != 0 || test.leaving != nil && (len(got) != 1 || !got[0].Equal(test.leaving)) {
			t.Errorf("%s, aborting %t, ended %t: %d certificates", test.stage, test.aborting, test.ended, len(got))
		}
		if c := r.CrossCert(); (c == nil) != (test.cross == nil) || c != nil && !c.Equal(cross) {
			t.Errorf("%s, aborting %t, ended %t: cross certificate %t", test.stage, test.aborting, test.ended, c != nil)
		}
	}
	for name, none := range map[string]rotation.Rotation{"none": {}, "no cross certificate": func() rotation.Rotation { r := r; r.Cross = nil; return r }()} {
		if none.CrossCert() != nil {
			t.Errorf("%s: got a cross certificate", name)
		}
	}
}

func TestShortLifetime(t *testing.T) {
	for _, test := range []struct {
		nodes     int
		perSecond float64
		longest   time.Duration // longest lifetime of all nodes
	}{
		{0, 20, time.Hour},
		{1, 20, time.Hour},
		{700, 20, time.Hour + 100*time.Second},
		{7000, 20, time.Hour + 1000*time.Second},
		{7000, 2, time.Hour + 10000*time.Second},
		{1_000_000_000, 1e-9, time.Hour + 365*24*time.Hour},
	} {
		shortest, longest, seen := 100*365*24*time.Hour, time.Duration(0), map[time.Duration]bool{}
		for i := range 2000 {
			d := rotation.ShortLifetime(fmt.Sprintf("worker-%d", i), test.nodes, test.perSecond)
			shortest, longest, seen[d] = min(shortest, d), max(longest, d), true
		}
		spread := test.longest - time.Hour
		if shortest < time.Hour || shortest > time.Hour+spread/100 || longest > test.longest || longest < test.longest-spread/100-time.Second {
			t.Errorf("%d nodes, %g a second: lifetimes %s to %s, want 1h to %s", test.nodes, test.perSecond, shortest, longest, test.longest)
		}
		if want := min(1000, int(spread.Seconds())/2); len(seen) < want {
			t.Errorf("%d nodes, %g a second: %d different lifetimes, want %d", test.nodes, test.perSecond, len(seen), want)
		}
	}
	if a, b := rotation.ShortLifetime("worker-1", 7000, 20), rotation.ShortLifetime("worker-1", 7000, 20); a != b {
		t.Errorf("lifetimes %s and %s of one node", a, b)
	}
}

// kubeletRenews returns when a kubelet renews a certificate: after 70 to 90 percent of its validity, which begins five
// minutes before its issuance (k8s.io/client-go/util/certificate, nextRotationDeadline).
func kubeletRenews(issued time.Time, lifetime time.Duration, jitter float64) time.Time {
	begin := issued.Add(-5 * time.Minute)
	return begin.Add(time.Duration(float64(lifetime+5*time.Minute) * (0.7 + 0.2*jitter)))
}

// Both certificates of 10,000 nodes are issued at one moment, as after a restart of everything. From then on, renewals
// must stay within the rate, before and after the switch. The last renewal must come soon after it.
func TestRenewalsOf10000NodesStayWithinTheRate(t *testing.T) {
	const nodes, perSecond, window = 10_000, 20.0, 60 // seconds: the jitter of kubelets is random
	random := rand.New(rand.NewPCG(1, 2))
	for _, trusted := range []time.Duration{30 * time.Minute, 50 * time.Minute, 3 * time.Hour} {
		start := time.Unix(1e9, 0)
		switched := start.Add(trusted)
		counts, last := map[int64]int{}, start
		for i := range nodes {
			lifetime := rotation.ShortLifetime(fmt.Sprintf("worker-%d", i), nodes, perSecond)
			for range 2 {
				for at := start; !at.After(switched); {
					end := at.Add(lifetime)
					if at = kubeletRenews(at, lifetime, random.Float64()); !at.Before(end.Add(-5 * time.Minute)) {
						t.Fatalf("renewed at %s, %s before the end", at, end.Sub(at))
					}
					counts[at.Unix()/window]++
					last = latest(last, at)
				}
			}
		}
		var all []int
		for _, n := range counts {
			all = append(all, n)
		}
		if most := slices.Max(all); float64(most) > perSecond*window {
			t.Errorf("switch after %s: %.1f renewals a second in a minute, want at most %g", trusted, float64(most)/window, perSecond)
		} else {
			t.Logf("switch after %s: at most %.1f renewals a second in a minute, the last one %s after the switch", trusted, float64(most)/window, last.Sub(switched))
		}
		if last.Sub(switched) > 90*time.Minute {
			t.Errorf("switch after %s: the last renewal came %s after it", trusted, last.Sub(switched))
		}
	}
}

// 10,000 hosts see the stage at one moment. Each renews two certificates and restarts its kubelet.
func TestStartsOf10000NodesStayWithinTheRate(t *testing.T) {
	const nodes, perSecond, window = 10_000, 20.0, 60
	r := rotation.Rotation{Nodes: nodes, Since: time.Unix(1e9, 0)}
	counts, last := map[int64]int{}, r.Since
	for i := range nodes {
		at := r.Start(fmt.Sprintf("worker-%d", i), perSecond)
		counts[int64(at.Sub(r.Since)/time.Second)/window] += 2
		last = latest(last, at)
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	if wave := r.Wave(perSecond); float64(most) > perSecond*window || last.Sub(r.Since) > wave || wave > 25*time.Minute {
		t.Errorf("%.1f renewals a second in a minute, want at most %g; the last one %s after the beginning, want at most %s", float64(most)/window, perSecond, last.Sub(r.Since), wave)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func TestPinsOnlyOld(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	r, _, _, _ := withCross(t, now)
	if !r.PinsOnlyOld(now) {
		t.Error("in stage prepare: join commands pin the new CA")
	}
	seen := []rotation.Observation{{Kind: rotation.KindServer, Name: "kubejoin", Trusts: &rotation.Trusted{Old: true, New: true}}}
	r = must.Value(r.Advance(rotation.Trust, seen, now))(t)
	r = must.Value(r.Advance(rotation.Switch, seen, now.Add(time.Hour)))(t)
	for after, want := range map[time.Duration]bool{-time.Second: true, 0: true, 59 * time.Second: true, time.Minute: false, time.Hour: false} {
		if got := r.PinsOnlyOld(now.Add(after)); got != want {
			t.Errorf("token created %s after stage trust began: %t, want %t", after, got, want)
		}
	}
	if !r.PinsOnlyOld(time.Time{}) {
		t.Error("a token of unknown age pins the new CA")
	}
}

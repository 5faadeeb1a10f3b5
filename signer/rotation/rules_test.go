package rotation_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

var (
	both    = &rotation.Trusted{Old: true, New: true}
	onlyOld = &rotation.Trusted{Old: true}
	onlyNew = &rotation.Trusted{New: true}
)

// kubelet returns an observation of the kubelet of worker-1.
func kubelet(trusts *rotation.Trusted, from rotation.From) rotation.Observation {
	return rotation.Observation{Kind: rotation.KindKubelet, Name: "worker-1", Node: "worker-1", Trusts: trusts, From: from}
}

func off(o rotation.Observation) rotation.Observation {
	o.Off = true
	return o
}

func unseen(o rotation.Observation) rotation.Observation {
	o.Trusts, o.From, o.Unseen, o.Next = nil, "", "connection refused", "curl it"
	return o
}

func optional(o rotation.Observation) rotation.Observation {
	o.Optional = true
	return o
}

func token(trusts *rotation.Trusted) rotation.Observation {
	return rotation.Observation{Kind: rotation.KindToken, Name: "abcdef", Trusts: trusts}
}

var (
	otherSigner = rotation.Observation{Kind: rotation.KindSigner, Name: "kube-controller-manager", Unseen: "signs, too"}
	process     = rotation.Observation{Kind: rotation.KindProcess, Name: "kubelet on worker-1", Node: "worker-1", Next: "restart it on worker-1"}
)

// at returns a rotation in a stage.
func at(t testing.TB, stage rotation.Stage, aborting bool) rotation.Rotation {
	r := rotationtest.New(t, rotation.Cluster)
	r.Stage, r.Aborting, r.Settled = stage, aborting, r.Since.Add(-time.Hour)
	return r
}

// isWrongStep reports whether an error refuses a step that is not possible in the current stage.
func isWrongStep(err error) bool {
	var refused *tokens.Refusal
	return errors.As(err, &refused) && refused.Reason == rotation.WrongStep
}

// Each precondition of each step is violated once. Without the violation, the step succeeds.
func TestEachPrecondition(t *testing.T) {
	const lacksOld, lacksNew = "kubelet worker-1 does not trust the old CA", "kubelet worker-1 does not trust the new CA"
	const notReady = "node worker-1 is not ready, so it cannot be seen (next: bring it back, or if it is gone for good: kubejoin ca %s --leave-behind worker-1)"
	const notSeen = "kubelet worker-1 was not seen: connection refused (next: curl it)"
	const notRead = "process kubelet on worker-1 has not read its changed files (next: restart it on worker-1)"
	const signs = "other-signer kube-controller-manager signs, too"
	type violation struct {
		seen rotation.Observation
		want string // the error; empty if the step succeeds nevertheless
	}
	for _, step := range []struct {
		stage    rotation.Stage
		aborting bool
		to       rotation.Stage // empty aborts
		good     rotation.Observation
		bad      []violation
	}{
		{rotation.Prepare, false, rotation.Trust, kubelet(onlyOld, rotation.FromOld), []violation{
			{otherSigner, signs},
			{unseen(kubelet(nil, "")), ""}, {off(kubelet(onlyOld, rotation.FromOld)), ""}, {token(onlyOld), ""}, {process, ""},
			{optional(otherSigner), ""},
		}},
		{rotation.Trust, false, rotation.Switch, kubelet(both, rotation.FromOld), []violation{
			{otherSigner, signs},
			{kubelet(onlyOld, rotation.FromOld), lacksNew},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(onlyOld, rotation.FromOld)), ""}, {token(onlyOld), ""},
		}},
		{rotation.Switch, false, rotation.Finish, kubelet(both, rotation.FromNew), []violation{
			{otherSigner, signs},
			{kubelet(onlyOld, rotation.FromNew), lacksNew},
			{kubelet(both, rotation.FromOld), "kubelet worker-1 is still from the old CA"},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(both, rotation.FromNew)), fmt.Sprintf(notReady, "finish")},
			{token(onlyOld), "the join command of token abcdef pins only the old CA (next: if no machine still joins with it: kubejoin ca finish --expire-tokens)"},
			{token(both), ""}, {token(nil), ""}, {kubelet(both, rotation.FromOther), ""}, {kubelet(nil, ""), ""},
			{optional(unseen(kubelet(nil, ""))), ""},
		}},
		{rotation.Finish, false, rotation.Finish, kubelet(onlyNew, rotation.FromNew), []violation{
			{kubelet(both, rotation.FromNew), "kubelet worker-1 still trusts the old CA"},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(onlyNew, rotation.FromNew)), fmt.Sprintf(notReady, "finish")},
			{otherSigner, ""},
		}},
		{rotation.Finish, false, "", kubelet(onlyNew, rotation.FromNew), []violation{
			{kubelet(onlyOld, rotation.FromOld), ""}, {unseen(kubelet(nil, "")), ""}, {off(kubelet(both, rotation.FromOld)), ""}, {otherSigner, ""}, {process, ""}, {token(onlyNew), ""},
		}},
		{rotation.Switch, true, "", kubelet(both, rotation.FromNew), []violation{
			{kubelet(onlyNew, rotation.FromNew), lacksOld},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(both, rotation.FromNew)), fmt.Sprintf(notReady, "abort")},
			{token(onlyNew), ""}, {otherSigner, ""},
		}},
		{rotation.Switch, false, "", kubelet(both, rotation.FromNew), []violation{ // hosts cannot have been in stage finish
			{kubelet(onlyNew, rotation.FromNew), lacksOld},
			{unseen(kubelet(nil, "")), ""}, {process, ""}, {off(kubelet(nil, "")), ""},
		}},
		{rotation.Trust, true, "", kubelet(both, rotation.FromOld), []violation{
			{kubelet(both, rotation.FromNew), "kubelet worker-1 is from the new CA"},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(both, rotation.FromOld)), fmt.Sprintf(notReady, "abort")},
			{token(onlyNew), "the join command of token abcdef pins only the new CA (next: if no machine still joins with it: kubejoin ca abort --expire-tokens)"},
			{token(both), ""}, {otherSigner, ""},
		}},
		{rotation.Trust, false, "", kubelet(both, rotation.FromOld), []violation{ // hosts cannot have been in stage switch
			{kubelet(both, rotation.FromNew), "kubelet worker-1 is from the new CA"},
			{token(onlyNew), "the join command of token abcdef pins only the new CA (next: if no machine still joins with it: kubejoin ca abort --expire-tokens)"},
			{unseen(kubelet(nil, "")), ""}, {process, ""}, {off(kubelet(nil, "")), ""},
		}},
		{rotation.Prepare, true, "", kubelet(onlyOld, rotation.FromOld), []violation{
			{kubelet(both, rotation.FromOld), "kubelet worker-1 still trusts the new CA"},
			{unseen(kubelet(nil, "")), notSeen},
			{process, notRead},
			{off(kubelet(onlyOld, rotation.FromOld)), fmt.Sprintf(notReady, "abort")},
			{token(onlyNew), ""},
		}},
		{rotation.Prepare, false, "", kubelet(onlyOld, rotation.FromOld), []violation{ // hosts cannot have been in stage trust
			{kubelet(both, rotation.FromOld), "kubelet worker-1 still trusts the new CA"},
			{unseen(kubelet(nil, "")), ""}, {process, ""},
		}},
	} {
		do := func(r rotation.Rotation, seen ...rotation.Observation) (rotation.Rotation, error) {
			if step.to == "" {
				return r.Abort(seen, r.Since.Add(time.Minute))
			}
			return r.Advance(step.to, seen, r.Since.Add(time.Minute))
		}
		doing := string(step.to)
		if step.to == "" {
			doing = "abort"
		}
		before := at(t, step.stage, step.aborting)
		after, err := do(before, step.good)
		if err != nil || reflect.DeepEqual(after, before) {
			t.Errorf("%s in stage %s: got %v, want success", doing, step.stage, err)
		}
		for _, v := range step.bad {
			name := fmt.Sprintf("%s in stage %s (aborting: %t) with %+v", doing, step.stage, step.aborting, v.seen)
			got, err := do(before, step.good, v.seen)
			if v.want == "" {
				if err != nil || !reflect.DeepEqual(got, after) {
					t.Errorf("%s: got %v, want success", name, err)
				}
				continue
			}
			var behind *rotation.NotReady
			if !errors.As(err, &behind) || err.Error() != "not ready to "+doing+": "+v.want || !reflect.DeepEqual(got, before) {
				t.Errorf("%s:\n got %v\nwant %s", name, err, v.want)
			}
			if v.seen.Node == "" {
				continue
			}
			before := before
			before.LeftBehind = []string{v.seen.Node}
			if _, err := do(before, step.good, v.seen); err != nil {
				t.Errorf("%s: got %v although the node was left behind", name, err)
			}
		}
		if len(step.bad) > 0 && !(step.stage == rotation.Finish && step.to == "") {
			if _, err := do(before); err == nil || !strings.Contains(err.Error(), "nothing was observed") {
				t.Errorf("%s in stage %s without observations: got %v, want a refusal", doing, step.stage, err)
			}
		}
	}
}

// If the kubelet of a control plane is down, its controllers may not trust the new CA, whose certificate the API server
// presents. Without a cross certificate, this applies to each node.
func TestSwitchNeedsNodesThatWouldBreak(t *testing.T) {
	server := func(kind rotation.Kind, node string) rotation.Observation {
		return rotation.Observation{Kind: kind, Name: node, Node: node, Trusts: both, From: rotation.FromOld}
	}
	down := off(kubelet(nil, ""))
	for _, test := range []struct {
		seen    []rotation.Observation
		cross   bool
		refused bool
	}{
		{[]rotation.Observation{down, server(rotation.KindAPIServer, "worker-1")}, true, true},
		{[]rotation.Observation{down, server(rotation.KindEtcd, "worker-1")}, true, true},
		{[]rotation.Observation{down, server(rotation.KindAPIServer, "cp-1")}, true, false},
		{[]rotation.Observation{down}, false, true},
	} {
		r := at(t, rotation.Trust, false)
		if !test.cross {
			r.Cross = nil
		}
		_, err := r.Advance(rotation.Switch, test.seen, r.Since)
		if refused := err != nil && strings.Contains(err.Error(), "node worker-1 is not ready"); refused != test.refused || !refused && err != nil {
			t.Errorf("%+v, cross certificate: %t: got %v, want refused: %t", test.seen, test.cross, err, test.refused)
		}
		r.LeftBehind = []string{"worker-1"}
		if _, err := r.Advance(rotation.Switch, test.seen, r.Since); err != nil {
			t.Errorf("%+v, left behind: got %v", test.seen, err)
		}
	}
}

// Each step that is not possible in the stage is refused, and the error names the possible step.
func TestStagesFollowEachOther(t *testing.T) {
	seen := []rotation.Observation{{Kind: rotation.KindServer, Name: "self"}}
	now := time.Now().UTC()
	all := []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish}
	next := []string{"trust", "switch", "finish", "finish"}
	for i, stage := range all {
		r := at(t, stage, false)
		if got := r.Next(); got != next[i] {
			t.Errorf("%s: next is %q, want %q", stage, got, next[i])
		}
		if r.TrustsOld() != (i < 3) || r.TrustsNew() != (i > 0) || r.SignsNew() != (i > 1) {
			t.Errorf("%s: trusts old %t, new %t, signs new %t", stage, r.TrustsOld(), r.TrustsNew(), r.SignsNew())
		}
		for j, to := range all {
			got, err := r.Advance(to, seen, now)
			switch {
			case j == i && i < 3:
				if err != nil || !reflect.DeepEqual(got, r) {
					t.Errorf("%s to %s: got %v, want no change", stage, to, err)
				}
			case j == i || j == i+1:
				want := r
				if want.Stage, want.Since, want.Settled = to, now, (time.Time{}); j == i {
					want.Ended, want.Since, want.Settled = now, r.Since, r.Settled
				}
				if to == rotation.Trust {
					want.Trusting = now
				}
				if to == rotation.Finish && j > i {
					want.Finishing = now
				}
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("%s to %s: got %+v, %v", stage, to, got, err)
				}
			default:
				want := fmt.Sprintf("cannot %s: the rotation is in stage %s; next: kubejoin ca %s", to, stage, next[i])
				if !isWrongStep(err) || err.Error() != want || !reflect.DeepEqual(got, r) {
					t.Errorf("%s to %s: got %v, want %q", stage, to, err, want)
				}
			}
			r := r
			r.Aborting = true
			if got, err := r.Advance(to, seen, now); !isWrongStep(err) || !strings.HasSuffix(err.Error(), "is being aborted; next: kubejoin ca abort") || !reflect.DeepEqual(got, r) {
				t.Errorf("%s to %s while aborting: got %v", stage, to, err)
			}
		}
		for _, aborting := range []bool{false, true} {
			r.Aborting = aborting
			got, err := r.Abort(seen, now)
			want := r
			want.Aborting = true
			if i == 0 {
				want.Ended = now
			} else {
				want.Stage, want.Since, want.Settled = all[i-1], now, time.Time{}
			}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("abort in %s: got %+v, %v", stage, got, err)
			}
			if i > 0 && got.Next() != "abort" {
				t.Errorf("after an abort in %s: next is %q", stage, got.Next())
			}
		}
	}
	ended := at(t, rotation.Finish, false)
	ended.Ended = now
	for _, r := range []rotation.Rotation{{}, ended} {
		_, advance := r.Advance(rotation.Trust, seen, now)
		_, abort := r.Abort(seen, now)
		if !errors.Is(advance, rotation.ErrNone) || !errors.Is(abort, rotation.ErrNone) || r.Next() != "prepare" || r.Pending(seen) != nil {
			t.Errorf("without a rotation: got %v, %v, next %q, want %v", advance, abort, r.Next(), rotation.ErrNone)
		}
	}
}

// Clients that have not re-read a changed file see certificates from a CA that they do not trust, unless a cross
// certificate helps.
func TestWaitsForClientsWithoutCrossCertificate(t *testing.T) {
	seen := []rotation.Observation{kubelet(both, rotation.FromOld)}
	for _, test := range []struct {
		stage    rotation.Stage
		aborting bool
		cross    bool
		to       rotation.Stage // empty aborts
		waits    bool
	}{
		{rotation.Trust, false, false, rotation.Switch, true},
		{rotation.Trust, false, true, rotation.Switch, false},
		{rotation.Prepare, false, false, rotation.Trust, false},
		{rotation.Switch, true, true, "", true}, // hosts may have been in stage finish; no cross certificate helps in this direction
		{rotation.Switch, false, false, "", false},
		{rotation.Trust, true, false, "", false},
	} {
		before := at(t, test.stage, test.aborting)
		before.Settled = time.Time{}
		if !test.cross {
			before.Cross = nil
		}
		do := func(r rotation.Rotation, after time.Duration, seen []rotation.Observation) (rotation.Rotation, error) {
			if test.to == "" {
				return r.Abort(seen, r.Since.Add(after))
			}
			return r.Advance(test.to, seen, r.Since.Add(after))
		}
		name := fmt.Sprintf("%s to %q (aborting: %t, cross: %t)", test.stage, test.to, test.aborting, test.cross)
		if _, err := do(before, time.Hour, append(slices.Clone(seen), token(onlyOld))); test.to == rotation.Switch && (err != nil && strings.Contains(err.Error(), "pins only the old CA")) != test.waits {
			t.Errorf("%s: got %v for a join command of the old CA, want it refused: %t", name, err, test.waits)
		}
		got, err := do(before, time.Hour, seen)
		if !test.waits {
			if err != nil || got.Stage == before.Stage {
				t.Errorf("%s: got %v, want success at once", name, err)
			}
			continue
		}
		waits := before
		waits.Settled = before.Since.Add(time.Hour)
		if err == nil || !strings.Contains(err.Error(), "clients need until "+waits.Settled.Add(7*time.Minute).Format(time.RFC3339)) || !reflect.DeepEqual(got, waits) {
			t.Errorf("%s: got %+v, %v, want to wait", name, got, err)
		}
		if got, err := do(waits, time.Hour+7*time.Minute-1, seen); err == nil || !reflect.DeepEqual(got, waits) {
			t.Errorf("%s, too early: got %v, want to wait", name, err)
		}
		if got, err := do(waits, time.Hour+7*time.Minute, seen); err != nil || got.Stage == before.Stage || !got.Settled.IsZero() {
			t.Errorf("%s, later: got %+v, %v, want success", name, got, err)
		}
		if got, err := do(before, time.Hour, []rotation.Observation{kubelet(&rotation.Trusted{}, "")}); err == nil || !got.Settled.IsZero() {
			t.Errorf("%s: got %+v, %v, want the wait to begin when everything is ready", name, got, err)
		}
	}
}

func TestNotReadyNamesAFew(t *testing.T) {
	var seen []rotation.Observation
	for i := range 8 {
		name := fmt.Sprintf("worker-%d", i)
		for range 3 { // a node that is off is named once
			seen = append(seen, rotation.Observation{Kind: rotation.KindKubelet, Name: name, Node: name, Off: true})
		}
	}
	_, err := at(t, rotation.Switch, false).Advance(rotation.Finish, seen, time.Now())
	if err == nil || strings.Count(err.Error(), "node worker-") != 5 || !strings.HasSuffix(err.Error(), "; and 3 more, which the status shows") {
		t.Errorf("got %v, want five nodes and the number of others", err)
	}
}

// The next commands for another CA must not act on the cluster CA.
func TestNextCommandsNameCA(t *testing.T) {
	r := at(t, rotation.Switch, false)
	r.CA = rotation.Etcd
	_, notReady := r.Advance(rotation.Finish, []rotation.Observation{off(kubelet(both, rotation.FromNew))}, time.Now())
	_, wrong := r.Advance(rotation.Trust, nil, time.Now())
	for _, err := range []error{notReady, wrong} {
		if err == nil || !strings.Contains(err.Error(), "kubejoin ca finish --ca etcd") {
			t.Errorf("got %v, want --ca etcd", err)
		}
	}
	if got := r.FromReport("worker-1", "")[0].Next; got != "on worker-1: kubejoin ca apply --ca etcd" {
		t.Errorf("without a report: next is %q", got)
	}
}

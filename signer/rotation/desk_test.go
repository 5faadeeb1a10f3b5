package rotation_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// desk is a Desk with a cluster that follows each stage at once.
type desk struct {
	rotation.Desk
	*rotationtest.Memory
	old     *tls.Certificate
	extra   []rotation.Observation // additional observations
	expired []string
	failure error // error of Observe
}

func newDesk(t *testing.T) *desk {
	d := &desk{Memory: &rotationtest.Memory{}, old: certtest.CA(t, "kubernetes")}
	d.Desk = rotation.Desk{
		Store: d.Memory, Keys: d.Memory, Observer: d,
		Trusted: func(context.Context, rotation.CA) ([]*x509.Certificate, error) {
			return []*x509.Certificate{d.old.Leaf}, nil
		},
		ExpireTokens: func(_ context.Context, ids []string) error {
			d.expired = append(d.expired, ids...)
			d.extra = slices.DeleteFunc(d.extra, func(o rotation.Observation) bool { return slices.Contains(ids, o.Name) })
			return nil
		},
	}
	return d
}

func (d *desk) Observe(_ context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	from := rotation.FromOld
	if r.SignsNew() {
		from = rotation.FromNew
	}
	return append([]rotation.Observation{kubelet(&rotation.Trusted{Old: r.TrustsOld(), New: r.TrustsNew()}, from)}, d.extra...), d.failure
}

func (d *desk) cross(t *testing.T) func(*x509.Certificate) (*x509.Certificate, error) {
	return func(fresh *x509.Certificate) (*x509.Certificate, error) {
		return rotationtest.Cross(t, d.old, fresh), nil
	}
}

func (d *desk) state(t *testing.T) rotation.Rotation {
	t.Helper()
	r, _, err := d.Get(t.Context(), rotation.Cluster)
	must.OK(t, err)
	return r
}

// do carries out the step of that name.
func (d *desk) do(t *testing.T, step string, o rotation.Options) (rotation.Status, error) {
	t.Helper()
	switch step {
	case "prepare":
		p, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, Cross: d.cross(t), DryRun: o.DryRun})
		return p.Status, err
	case "abort":
		return d.Abort(t.Context(), rotation.Cluster, o)
	}
	return d.Advance(t.Context(), rotation.Cluster, rotation.Stage(step), o)
}

func TestThereAndBack(t *testing.T) {
	there := []string{"prepare", "trust", "switch", "finish", "finish"}
	for turn := range there { // abort after turn steps; the last value never aborts
		d := newDesk(t)
		for i, step := range there[:turn+1] {
			before := d.state(t)
			if dry, err := d.do(t, step, rotation.Options{DryRun: true}); err != nil || !reflect.DeepEqual(d.state(t), before) || dry.Rotation.Stage != rotation.Stage(step) {
				t.Errorf("%s, dry run: got %+v, %v, want the status after it and no change", step, dry, err)
			}
			s, err := d.do(t, step, rotation.Options{})
			if err != nil || !reflect.DeepEqual(s.Rotation, d.state(t)) || s.Rotation.Stage != rotation.Stage(step) {
				t.Fatalf("%s: got %+v, %v", step, s, err)
			}
			if want := there[(i+1)%5]; s.Next != want || s.Rotation.InProgress() != (i < 4) {
				t.Errorf("%s: next is %s, want %s", step, s.Next, want)
			}
			if again, err := d.Status(t.Context(), rotation.Cluster); err != nil || !reflect.DeepEqual(again.Rotation, s.Rotation) || again.Next != s.Next || len(again.Behind) > 0 || len(again.Seen) == 0 {
				t.Errorf("status after %s: got %+v, %v, want %+v and nothing behind", step, again, err, s)
			}
			if want := map[bool][]string{true: {s.Rotation.ID}}[i < 4]; !slices.Equal(d.IDs(rotation.Cluster), want) {
				t.Errorf("after %s the keys %q are stored, want %q", step, d.IDs(rotation.Cluster), want)
			}
			if step != "prepare" && step != "finish" { // the same step again changes nothing
				if again, err := d.do(t, step, rotation.Options{}); err != nil || !reflect.DeepEqual(again.Rotation, s.Rotation) {
					t.Errorf("%s again: got %+v, %v", step, again, err)
				}
			}
		}
		for i := turn; i >= 0 && turn < 4; i-- {
			if i == 2 && turn > 2 { // clients need time
				if _, err := d.do(t, "abort", rotation.Options{}); err == nil {
					t.Error("abort of switch after finish does not wait")
				}
				d.Now = func() time.Time { return time.Now().Add(time.Hour) }
			}
			s, err := d.do(t, "abort", rotation.Options{})
			if err != nil || !s.Rotation.Aborting || s.Rotation.InProgress() != (i > 0) || i > 0 && string(s.Rotation.Stage) != there[i-1] {
				t.Fatalf("abort of %s: got %+v, %v", there[i], s, err)
			}
		}
		if ids := d.IDs(rotation.Cluster); len(ids) > 0 {
			t.Errorf("after the end the keys %q are stored", ids)
		}
		end := map[bool]string{true: "finish", false: "abort"}[turn == 4]
		before := d.state(t)
		if s, err := d.do(t, end, rotation.Options{}); err != nil || !reflect.DeepEqual(s.Rotation, before) || s.Next != "prepare" {
			t.Errorf("%s after the end: got %+v, %v, want no change", end, s, err)
		}
		for _, step := range []string{"trust", "switch", "finish", "abort"} {
			if step == end {
				continue
			}
			if _, err := d.do(t, step, rotation.Options{}); !errors.Is(err, rotation.ErrNone) {
				t.Errorf("%s after the end: got %v, want %v", step, err, rotation.ErrNone)
			}
		}
		if s, err := d.do(t, "prepare", rotation.Options{}); err != nil || s.Rotation.ID == before.ID {
			t.Errorf("prepare after the end: got %+v, %v", s, err)
		}
	}
}

// Catches a stage that begins with the number of nodes of an earlier stage, or that counts a node twice.
func TestEachStageCountsItsNodes(t *testing.T) {
	d := newDesk(t)
	for i, step := range []string{"prepare", "trust", "switch", "abort"} {
		for _, file := range []string{"pki/ca.crt", "kubelet.conf"} {
			d.extra = append(d.extra, rotation.Observation{Kind: rotation.KindFile, Name: file, Node: fmt.Sprint("other-", i)})
		}
		if _, err := d.do(t, step, rotation.Options{}); err != nil || d.state(t).Nodes != i+2 { // and the node of the kubelet
			t.Errorf("%s: %d nodes, %v, want %d", step, d.state(t).Nodes, err, i+2)
		}
	}
}

// Each write fails once, before or after it took effect, as if the process was killed there. Repeating the step must
// complete it. If nobody has the key after a prepare, the rotation is aborted.
func TestEachStepIsCompletedAfterAKill(t *testing.T) {
	killed := errors.New("killed")
	for _, after := range []bool{false, true} {
		for _, lost := range []bool{false, true} { // the process continues, or its result is lost
			for _, method := range []string{"PutKey", "Put", "KeepKey"} {
				for _, steps := range [][]string{{"prepare", "trust", "switch", "finish", "finish"}, {"prepare", "trust", "abort", "abort"}} {
					d := newDesk(t)
					for i, step := range steps {
						ctx, cancel := context.WithCancel(t.Context())
						fail := func(m string) error {
							if m != method {
								return nil
							}
							if lost {
								cancel()
							}
							return killed
						}
						if after {
							d.Memory.After = fail
						} else {
							d.Memory.Before = fail
						}
						run := func(ctx context.Context) error {
							switch step {
							case "prepare":
								_, err := d.Prepare(ctx, rotation.PrepareRequest{CA: rotation.Cluster, Cross: d.cross(t)})
								return err
							case "abort":
								_, err := d.Abort(ctx, rotation.Cluster, rotation.Options{})
								return err
							}
							_, err := d.Advance(ctx, rotation.Cluster, rotation.Stage(step), rotation.Options{})
							return err
						}
						before := d.state(t)
						err := run(ctx)
						cancel()
						d.Memory.Before, d.Memory.After = nil, nil
						name := fmt.Sprintf("%s failed in %s (step %d, after the write: %t, lost: %t)", step, method, i, after, lost)
						wrote := !reflect.DeepEqual(d.state(t), before)
						if err != nil && step == "abort" && wrote && d.state(t).InProgress() {
							err = nil // the next abort continues from here
						}
						if err != nil && step == "prepare" && wrote {
							must.Value(d.Abort(t.Context(), rotation.Cluster, rotation.Options{}))(t)
						}
						if err != nil {
							must.OK(t, wrap(name, run(t.Context())))
						}
						r := d.state(t)
						if step != "abort" && r.Stage != rotation.Stage(step) {
							t.Fatalf("%s: got stage %s", name, r.Stage)
						}
						if r.InProgress() && d.Key(r) == nil {
							t.Fatalf("%s: the key is not stored", name)
						}
					}
					if r := d.state(t); r.InProgress() || len(d.IDs(rotation.Cluster)) > 0 {
						t.Errorf("%s fails (after: %t): got %+v and keys %q at the end", method, after, r, d.IDs(rotation.Cluster))
					}
				}
			}
		}
	}
}

func wrap(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Catches an orphan key that stays, and a key that another prepare replaced.
func TestKeysOfTwoPreparesDoNotMix(t *testing.T) {
	d := newDesk(t)
	first := true
	d.Memory.Before = func(method string) error {
		if method == "Put" && first {
			first = false
			_, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster})
			return err
		}
		return nil
	}
	_, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster})
	if !isWrongStep(err) || !strings.Contains(err.Error(), "cannot prepare: rotation "+d.state(t).ID+" is in stage prepare; next: kubejoin ca trust") {
		t.Errorf("the second prepare: got %v, want a refusal", err)
	}
	r := d.state(t)
	if len(d.IDs(rotation.Cluster)) != 2 || !rotation.Matches(d.Key(r), r.New[0]) {
		t.Errorf("the keys %q are stored, want two and the right one", d.IDs(rotation.Cluster))
	}
	must.Value(d.do(t, "trust", rotation.Options{}))(t)
	if ids := d.IDs(rotation.Cluster); !slices.Equal(ids, []string{r.ID}) {
		t.Errorf("after the next step the keys %q are stored, want one", ids)
	}
}

// Another writer is faster, a few times or always.
func TestStepRetriesConflict(t *testing.T) {
	for _, test := range []struct {
		conflicts int
		want      error
		steps     []string
	}{
		{5, nil, []string{"prepare", "trust"}},
		{6, rotation.ErrConflict, []string{"prepare", "trust"}},
		{1, rotation.ErrConflict, []string{"abort"}}, // the other writer may already have gone back a stage
	} {
		for _, step := range test.steps {
			d := newDesk(t)
			if step != "prepare" {
				must.Value(d.do(t, "prepare", rotation.Options{}))(t)
			}
			n := 0
			d.Memory.Before = func(method string) error {
				if n++; method == "Put" && n <= 100 {
					if test.conflicts--; test.conflicts >= 0 {
						return rotation.ErrConflict
					}
				}
				return nil
			}
			conflicts := test.conflicts
			if _, err := d.do(t, step, rotation.Options{}); !errors.Is(err, test.want) {
				t.Errorf("%s with %d conflicts: got %v, want %v", step, conflicts, err, test.want)
			}
			test.conflicts = conflicts
		}
	}
}

// halfway stores a rotation, but fails to publish it, a number of times.
type halfway struct {
	*rotationtest.Memory
	fails     int
	published rotation.Stage
}

func (h *halfway) Put(ctx context.Context, r rotation.Rotation, version string) error {
	if err := h.Memory.Put(ctx, r, version); err != nil {
		return err
	}
	_, err := h.Publish(ctx)
	return err
}

func (h *halfway) Check(context.Context) error { return nil }

func (h *halfway) Publish(ctx context.Context) (wrong, err error) {
	r, _, err := h.Get(ctx, rotation.Cluster)
	if h.fails--; h.fails >= 0 && err == nil {
		err = errors.New("not published")
	}
	if err == nil {
		h.published = r.Stage
	}
	return nil, err
}

// A step must not succeed before hosts can read its stage. The next step must publish it first, even if that step is
// refused or the rotation has ended.
func TestStepPublishesItsStage(t *testing.T) {
	d := newDesk(t)
	h := &halfway{Memory: d.Memory}
	d.Store, d.Copy = h, h
	for _, step := range []string{"prepare", "trust", "switch", "finish", "finish"} {
		must.Value(d.do(t, step, rotation.Options{}))(t)
		if r := d.state(t); h.published != r.Stage {
			t.Errorf("%s: hosts read stage %q, want %q", step, h.published, r.Stage)
		}
		if step == "prepare" {
			continue
		}
		h.fails, h.published = 1, ""
		if _, err := d.do(t, step, rotation.Options{}); err == nil || h.published != "" {
			t.Errorf("%s: got %v, want the failure", step, err)
		}
		d.extra = []rotation.Observation{kubelet(&rotation.Trusted{Old: true}, rotation.FromOld)} // blocks each next step
		_, _ = d.do(t, "finish", rotation.Options{})
		d.extra = nil
		if r := d.state(t); h.published != r.Stage {
			t.Errorf("%s, then a refused step: hosts read stage %q, want %q", step, h.published, r.Stage)
		}
	}
	d = newDesk(t)
	h = &halfway{Memory: d.Memory, fails: 1}
	d.Store = h
	must.Value(d.do(t, "prepare", rotation.Options{}))(t) // the second Put completes the first one
	h.fails = 2
	if _, err := d.do(t, "trust", rotation.Options{}); err == nil {
		t.Error("got no error for a stage that hosts do not read")
	}
}

func TestKeyThatSomebodyDeletedIsNoticed(t *testing.T) {
	d := newDesk(t)
	must.Value(d.do(t, "prepare", rotation.Options{}))(t)
	must.Value(d.KeepKey(t.Context(), rotation.Cluster, ""))(t)
	if s, err := d.do(t, "trust", rotation.Options{}); !isWrongStep(err) || err.Error() != "the key of the new CA is not stored any more; next: kubejoin ca abort" || s.Rotation.Stage != rotation.Prepare || d.state(t).Stage != rotation.Prepare {
		t.Errorf("got %+v, %v, want a refusal", s, err)
	}
	must.Value(d.do(t, "abort", rotation.Options{}))(t)
}

func TestLeaveBehind(t *testing.T) {
	d := newDesk(t)
	for _, step := range []string{"prepare", "trust", "switch"} {
		must.Value(d.do(t, step, rotation.Options{}))(t)
	}
	d.extra = []rotation.Observation{{Kind: rotation.KindKubelet, Name: "worker-2", Node: "worker-2", Off: true}, token(both)}
	for _, name := range []string{"worker-3", "", "abcdef"} {
		var field *tokens.FieldError
		if _, err := d.do(t, "finish", rotation.Options{LeaveBehind: []string{"worker-2", name}}); !errors.As(err, &field) || field.Field != "leaveBehind" || !strings.Contains(err.Error(), fmt.Sprintf("there is no node %q", name)) {
			t.Errorf("%q: got %v, want an error about the field", name, err)
		}
	}
	d.extra = append(d.extra, rotation.Observation{Kind: rotation.KindFile, Name: "mine/x on worker-2", Node: "worker-2", File: "mine/x", Off: true})
	for _, name := range []string{"worker-2:", "worker-2", "worker-2:mine", ""} { // no file name may mean all files of a node
		var field *tokens.FieldError
		if _, err := d.do(t, "finish", rotation.Options{LeaveBehindFiles: []string{"worker-2:mine/x", name}}); !errors.As(err, &field) || field.Field != "leaveBehindFiles" || !strings.Contains(err.Error(), fmt.Sprintf("there is no file %q", name)) {
			t.Errorf("%q: got %v, want an error about the field", name, err)
		}
	}
	if _, err := d.do(t, "finish", rotation.Options{}); err == nil || len(d.state(t).LeftBehind) > 0 {
		t.Errorf("without the node: got %v, want not ready", err)
	}
	for range 2 { // the first call begins the stage, the second ends the rotation
		if s, err := d.do(t, "finish", rotation.Options{LeaveBehind: []string{"worker-2", "worker-2"}}); err != nil || !slices.Equal(s.Rotation.LeftBehind, []string{"worker-2"}) || !slices.Equal(d.state(t).LeftBehind, []string{"worker-2"}) {
			t.Errorf("got %+v, %v, want worker-2 left behind", s, err)
		}
	}
}

func TestExpiresTokensOnlyIfNothingElseIsBehind(t *testing.T) {
	d := newDesk(t)
	for _, step := range []string{"prepare", "trust", "switch"} {
		must.Value(d.do(t, step, rotation.Options{}))(t)
	}
	late := kubelet(both, rotation.FromOld)
	expire := rotation.Options{ExpireTokens: true}
	d.extra = []rotation.Observation{token(onlyOld), late}
	if _, err := d.do(t, "finish", expire); err == nil || !strings.Contains(err.Error(), "token abcdef") || len(d.expired) > 0 {
		t.Errorf("with a late kubelet: got %v and %q expired, want none", err, d.expired)
	}
	d.extra = []rotation.Observation{token(onlyOld)}
	if _, err := d.do(t, "finish", rotation.Options{}); err == nil || len(d.expired) > 0 {
		t.Errorf("without the option: got %v and %q expired, want none", err, d.expired)
	}
	if s, err := d.do(t, "finish", rotation.Options{ExpireTokens: true, DryRun: true}); err != nil || s.Rotation.Stage != rotation.Finish || len(d.expired) > 0 {
		t.Errorf("dry run: got %+v, %v and %q expired, want none", s, err, d.expired)
	}
	expireTokens := d.Desk.ExpireTokens
	d.Desk.ExpireTokens = func(context.Context, []string) error { return errors.New("no") }
	if _, err := d.do(t, "finish", expire); err == nil || err.Error() != "token abcdef: no" {
		t.Errorf("failure: got %v", err)
	}
	d.Desk.ExpireTokens = func(context.Context, []string) error { return nil }
	if _, err := d.do(t, "finish", expire); err == nil || !strings.Contains(err.Error(), "token abcdef") {
		t.Errorf("a token that still lives: got %v, want not ready", err)
	}
	d.Desk.ExpireTokens = nil
	var field *tokens.FieldError
	if _, err := d.do(t, "finish", expire); !errors.As(err, &field) || field.Field != "expireTokens" {
		t.Errorf("without tokens: got %v, want an error about the field", err)
	}
	if r := d.state(t); r.Stage != rotation.Switch {
		t.Fatalf("got stage %s, want no change", r.Stage)
	}
	d.Desk.ExpireTokens = expireTokens
	if s, err := d.do(t, "finish", expire); err != nil || s.Rotation.Stage != rotation.Finish || !slices.Equal(d.expired, []string{"abcdef"}) {
		t.Errorf("got %+v, %v and %q expired, want abcdef", s, err, d.expired)
	}
}

// A refused step begins the wait, and no other replica begins it again.
func TestWaitIsStored(t *testing.T) {
	d := newDesk(t)
	now := time.Now()
	d.Now = func() time.Time { return now }
	must.Value(d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster}))(t)
	must.Value(d.do(t, "trust", rotation.Options{}))(t)
	before := d.state(t)
	if _, err := d.do(t, "switch", rotation.Options{DryRun: true}); err == nil || !reflect.DeepEqual(d.state(t), before) {
		t.Errorf("dry run: got %v, want to wait and no change", err)
	}
	for range 2 {
		s, err := d.do(t, "switch", rotation.Options{LeaveBehind: []string{"worker-1"}})
		want := before
		want.Settled = before.Since
		if err == nil || !reflect.DeepEqual(d.state(t), want) || !reflect.DeepEqual(s.Rotation, want) {
			t.Errorf("got %+v, %v, want to wait since %s", s.Rotation, err, want.Settled)
		}
		now = now.Add(4 * time.Minute)
	}
	must.Value(d.do(t, "switch", rotation.Options{}))(t)
}

// kube-apiserver only adds CAs to a ConfigMap. The old CA must not stay there.
func TestDropsMergedConfigMapWhenNothingElseIsBehind(t *testing.T) {
	d := newDesk(t)
	for _, step := range []string{"prepare", "trust", "switch", "finish"} {
		must.Value(d.do(t, step, rotation.Options{}))(t)
	}
	dropped := 0
	drop := func(_ context.Context, ca rotation.CA) error {
		dropped++
		d.extra = nil
		return nil
	}
	merged := rotation.Observation{Kind: rotation.KindMerged, Name: "configmap", Trusts: both}
	for _, test := range []struct {
		seen []rotation.Observation
		drop func(context.Context, rotation.CA) error
		dry  bool
		want string
	}{
		{[]rotation.Observation{merged, kubelet(both, "")}, drop, false, "kubelet worker-1 still trusts the old CA"},
		{[]rotation.Observation{merged}, nil, false, "merged configmap still trusts the old CA"},
		{[]rotation.Observation{merged}, func(context.Context, rotation.CA) error { return errors.New("forbidden") }, false, "merged configmap: forbidden"},
		{[]rotation.Observation{merged}, func(context.Context, rotation.CA) error { return nil }, false, "merged configmap still trusts the old CA"},
		{[]rotation.Observation{merged}, drop, true, ""},
	} {
		d.extra, d.DropMerged = test.seen, test.drop
		if _, err := d.do(t, "finish", rotation.Options{DryRun: test.dry}); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || dropped > 0 || !d.state(t).InProgress() {
			t.Errorf("got %v and dropped %d, want %q", err, dropped, test.want)
		}
	}
	if s, err := d.do(t, "finish", rotation.Options{}); err != nil || s.Rotation.InProgress() || dropped != 1 {
		t.Errorf("got %+v, %v, dropped %d, want the end", s.Rotation, err, dropped)
	}
}

func TestObserverThatFailsStopsEachStep(t *testing.T) {
	d := newDesk(t)
	d.failure = errors.New("no route to host")
	for _, step := range []string{"prepare", "trust", "abort"} {
		before := d.state(t)
		if _, err := d.do(t, step, rotation.Options{}); !errors.Is(err, d.failure) || !reflect.DeepEqual(d.state(t), before) || len(d.IDs(rotation.Cluster)) != map[string]int{"trust": 1, "abort": 1}[step] {
			t.Errorf("%s: got %v, want %v and no change", step, err, d.failure)
		}
		if step == "prepare" {
			d.failure = nil
			must.Value(d.do(t, step, rotation.Options{}))(t)
			d.failure = errors.New("no route to host")
		}
	}
}

func TestPrepareMakesCA(t *testing.T) {
	rsaKey := must.Value(rsa.GenerateKey(nil, 2048))(t)
	long := strings.Repeat("k", 64)
	for name, test := range map[string]struct {
		key  crypto.Signer
		cn   string
		want string // common name without the ID
	}{
		"ECDSA P-256":            {csrtest.NewKey(), "kubernetes", "kubernetes-"},
		"ECDSA P-384":            {csrtest.ECDSA(elliptic.P384()), "kubernetes", "kubernetes-"},
		"Ed25519":                {csrtest.Ed25519(), "etcd-ca", "etcd-ca-"},
		"RSA":                    {rsaKey, "kubernetes", "kubernetes-"},
		"a second rotation":      {csrtest.NewKey(), "kubernetes-0123456789abcdef", "kubernetes-"},
		"a name without room":    {csrtest.NewKey(), long, long[:46] + "-"},
		"no curve of Kubernetes": {csrtest.ECDSA(elliptic.P224()), "kubernetes", "kubernetes-"},
	} {
		d := newDesk(t)
		template := &x509.Certificate{SerialNumber: d.old.Leaf.SerialNumber, Subject: pkix.Name{CommonName: test.cn}, IsCA: true, BasicConstraintsValid: true}
		der := must.Value(x509.CreateCertificate(nil, template, template, test.key.Public(), test.key))(t)
		old := must.Value(x509.ParseCertificate(der))(t)
		d.Trusted = func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return []*x509.Certificate{old}, nil }
		p, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster})
		if err != nil || p.CertificateKey.IsZero() || !p.Rotation.HasKey {
			t.Fatalf("%s: got %+v, %v", name, p, err)
		}
		c := p.Rotation.New[0]
		if c.Subject.String() != "CN="+test.want+p.Rotation.ID || len(c.SubjectKeyId) == 0 || !rotation.Matches(d.Key(p.Rotation), c) || c.CheckSignatureFrom(c) != nil {
			t.Errorf("%s: got %s with key ID %x", name, c.Subject, c.SubjectKeyId)
		}
		if life := time.Until(c.NotAfter); life > rotation.DefaultLifetime || life < rotation.DefaultLifetime-time.Minute || time.Since(c.NotBefore) < time.Minute {
			t.Errorf("%s: valid from %s to %s", name, c.NotBefore, c.NotAfter)
		}
		switch want := test.key.Public().(type) {
		case *ecdsa.PublicKey:
			if got := c.PublicKey.(*ecdsa.PublicKey).Curve; got != want.Curve && want.Curve != elliptic.P224() || got == elliptic.P224() {
				t.Errorf("%s: got curve %s", name, got.Params().Name)
			}
		default:
			if fmt.Sprintf("%T", c.PublicKey) != fmt.Sprintf("%T", want) {
				t.Errorf("%s: got a key of type %T", name, c.PublicKey)
			}
		}
	}
}

func TestPrepareChecksRequest(t *testing.T) {
	fresh := certtest.CA(t, "new")
	key := fresh.PrivateKey.(crypto.Signer)
	request := func(change func(p *rotation.PrepareRequest, d *desk)) (*desk, rotation.PrepareRequest) {
		d := newDesk(t)
		p := rotation.PrepareRequest{CA: rotation.Cluster, Certificates: []*x509.Certificate{fresh.Leaf}, Key: key, Cross: d.cross(t)}
		change(&p, d)
		return d, p
	}
	broken := func(change func(*x509.Certificate)) *x509.Certificate {
		c := *fresh.Leaf
		change(&c)
		return &c
	}
	issue := func(change func(*x509.Certificate)) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: "other"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
		change(c)
		return certtest.Issue(t, c, nil).Leaf
	}
	for name, test := range map[string]struct {
		change func(*rotation.PrepareRequest, *desk)
		field  string // empty: success
		want   string
	}{
		"with a key":       {func(*rotation.PrepareRequest, *desk) {}, "", ""},
		"without a key":    {func(p *rotation.PrepareRequest, _ *desk) { p.Key = nil }, "", ""},
		"not cross-signed": {func(p *rotation.PrepareRequest, _ *desk) { p.Cross = nil }, "", ""},
		"with a root": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates = append(p.Certificates, certtest.CA(t, "root").Leaf)
		}, "", ""},
		"another CA":  {func(p *rotation.PrepareRequest, _ *desk) { p.CA = "Cluster" }, "ca", `is "Cluster", want cluster, front-proxy or etcd`},
		"a key alone": {func(p *rotation.PrepareRequest, _ *desk) { p.Certificates = nil }, "certificates", "required with a key"},
		"a lifetime":  {func(p *rotation.PrepareRequest, _ *desk) { p.Lifetime = time.Hour }, "lifetime", "no effect on a CA that exists"},
		"short":       {func(p *rotation.PrepareRequest, _ *desk) { p.Certificates, p.Key, p.Lifetime = nil, nil, time.Hour }, "lifetime", "is 1h, want at least 24h"},
		"another key": {func(p *rotation.PrepareRequest, _ *desk) { p.Key = csrtest.NewKey() }, "key", `does not match the first certificate "CN=new"`},
		"no CA": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates[0] = broken(func(c *x509.Certificate) { c.IsCA = false })
		}, "certificates", "is not a CA"},
		"may not sign": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates[0] = broken(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCRLSign })
		}, "certificates", "is not a CA"},
		"not yet valid": {func(p *rotation.PrepareRequest, d *desk) {
			d.Now = func() time.Time { return fresh.Leaf.NotBefore.Add(-time.Second) }
		}, "certificates", "is valid from"},
		"expired": {func(p *rotation.PrepareRequest, d *desk) { d.Now = func() time.Time { return fresh.Leaf.NotAfter } }, "certificates", "is valid from"},
		"many": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates = slices.Repeat(p.Certificates, 11)
		}, "certificates", "there are 11, want 1 to 10"},
		"large": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates = append(p.Certificates, issue(func(c *x509.Certificate) { c.DNSNames = []string{strings.Repeat("x", 32<<10)} }))
		}, "certificates", "want at most 32768"},
		"the old CA": {func(p *rotation.PrepareRequest, d *desk) { p.Certificates[0], p.Key = d.old.Leaf, nil }, "certificates", "has the key of the old CA"},
		"of the name": {func(p *rotation.PrepareRequest, d *desk) {
			p.Certificates[0], p.Key = certtest.CA(t, "kubernetes").Leaf, nil
		}, "certificates", "has the subject of the old CA"},
		"of the name in another form": {func(p *rotation.PrepareRequest, d *desk) {
			name := pkix.RDNSequence{{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(" KUBERNETES ")}}}}
			p.Certificates[0], p.Key = issue(func(c *x509.Certificate) { c.RawSubject = must.Value(asn1.Marshal(name))(t) }), nil
		}, "certificates", "has the subject of the old CA"},
		"of a longer name": {func(p *rotation.PrepareRequest, d *desk) {
			p.Certificates[0], p.Key = certtest.CA(t, "kubernetes 2").Leaf, nil
		}, "", ""},
		"with the old CA": {func(p *rotation.PrepareRequest, d *desk) {
			p.Certificates = append(p.Certificates, d.old.Leaf)
		}, "certificates", `"CN=kubernetes" is trusted already`},
		"no path length": {func(p *rotation.PrepareRequest, d *desk) {
			template := &x509.Certificate{Subject: d.old.Leaf.Subject, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, MaxPathLenZero: true}
			d.old = certtest.Issue(t, template, nil)
		}, "cross", "has path length 0"},
		"of path length 0": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates[0], p.Key = issue(func(c *x509.Certificate) { c.MaxPathLenZero = true }), nil
		}, "cross", `the new CA "CN=other" has path length 0`},
		"of path length 0 without a cross certificate": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Certificates[0], p.Key, p.Cross = issue(func(c *x509.Certificate) { c.MaxPathLenZero = true }), nil, nil
		}, "", ""},
		"cross of another CA": {func(p *rotation.PrepareRequest, d *desk) {
			p.Cross = func(*x509.Certificate) (*x509.Certificate, error) {
				return rotationtest.Cross(t, d.old, certtest.CA(t, "new").Leaf), nil
			}
		}, "cross", "not of the subject and the key of the new CA"},
		"cross by another CA": {func(p *rotation.PrepareRequest, d *desk) {
			p.Cross = func(c *x509.Certificate) (*x509.Certificate, error) {
				return rotationtest.Cross(t, certtest.CA(t, "kubernetes"), c), nil
			}
		}, "cross", "not signed by the old CA"},
		"cross that is no CA": {func(p *rotation.PrepareRequest, d *desk) {
			p.Cross = func(*x509.Certificate) (*x509.Certificate, error) {
				return rotationtest.Cross(t, d.old, broken(func(c *x509.Certificate) { c.IsCA = false })), nil
			}
		}, "cross", "not of a CA that may sign"},
		"no cross": {func(p *rotation.PrepareRequest, _ *desk) {
			p.Cross = func(*x509.Certificate) (*x509.Certificate, error) { return nil, errors.New("no key") }
		}, "cross", "no key"},
		"clients refuse": {func(_ *rotation.PrepareRequest, d *desk) {
			d.Check = func(rotation.CA, []*x509.Certificate) error { return errors.New("name constraints") }
		}, "certificates", "name constraints"},
	} {
		d, p := request(test.change)
		hasKey := p.Key != nil
		got, err := d.Prepare(t.Context(), p)
		var field *tokens.FieldError
		switch {
		case test.field == "":
			if err != nil || got.Rotation.HasKey != hasKey || got.CertificateKey.IsZero() == hasKey || len(d.IDs(rotation.Cluster)) == 1 != hasKey || (len(got.Rotation.Cross) != 0) != (p.Cross != nil) {
				t.Errorf("%s: got %+v, %v, want success", name, got, err)
			}
		case !errors.As(err, &field) || field.Field != test.field || !strings.Contains(err.Error(), test.want):
			t.Errorf("%s: got %v, want %q about %s", name, err, test.want, test.field)
		case d.state(t).ID != "" || len(d.IDs(rotation.Cluster)) > 0:
			t.Errorf("%s: something was stored", name)
		}
	}
	for name, old := range map[string][]*x509.Certificate{"none": nil, "many": slices.Repeat([]*x509.Certificate{issue(func(*x509.Certificate) {})}, 11),
		"large": {issue(func(c *x509.Certificate) { c.DNSNames = []string{strings.Repeat("x", 32<<10)} })}} {
		d := newDesk(t)
		d.Trusted = func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return old, nil }
		if _, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster}); err == nil || !strings.Contains(err.Error(), "trusted now") || d.state(t).ID != "" {
			t.Errorf("%s trusted: got %v, want an error", name, err)
		}
	}
	d := newDesk(t)
	d.Trusted = func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return nil, errors.New("forbidden") }
	if _, err := d.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster}); err == nil || err.Error() != "the CA that is trusted now: forbidden" {
		t.Errorf("trusted CAs unknown: got %v", err)
	}
	for _, err := range []error{
		second(d.Advance(t.Context(), rotation.Cluster, rotation.Prepare, rotation.Options{})), second(d.Advance(t.Context(), rotation.Cluster, "x", rotation.Options{})),
	} {
		if err == nil || !strings.Contains(err.Error(), "invalid stage") {
			t.Errorf("got %v, want an error about the stage", err)
		}
	}
	for _, err := range []error{second(d.Advance(t.Context(), "x", rotation.Trust, rotation.Options{})), second(d.Abort(t.Context(), "x", rotation.Options{})), second(d.Status(t.Context(), "x"))} {
		var field *tokens.FieldError
		if !errors.As(err, &field) || field.Field != "ca" {
			t.Errorf("got %v, want an error about the CA", err)
		}
	}
}

// Catches a missing warning about a CA that works with Go, but that other clients refuse from stage switch on.
func TestPrepareWarnsOfCAThatStrictClientsRefuse(t *testing.T) {
	root := certtest.CA(t, "root")
	template := func() *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: "new"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	}
	lax := template()
	lax.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
	noUsage := template()
	noUsage.KeyUsage = 0
	noKeyID := *certtest.Issue(t, template(), root).Leaf // crypto/x509 always writes the extensions
	noKeyID.SubjectKeyId, noKeyID.AuthorityKeyId = nil, nil
	for want, fresh := range map[string]*x509.Certificate{
		"":                           certtest.Issue(t, template(), nil).Leaf,
		"critical basic constraints": certtest.Issue(t, lax, nil).Leaf,
		"key usage":                  certtest.Issue(t, noUsage, nil).Leaf,
		"subject key identifier, no authority key identifier": &noKeyID,
	} {
		got, err := newDesk(t).Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, Certificates: []*x509.Certificate{fresh, root.Leaf}, DryRun: true})
		var warnings []string
		if want != "" {
			warnings = []string{`strict clients, for example Python 3.13, refuse certificates of CA "CN=new": it has no ` + want}
		}
		if err != nil || !slices.Equal(got.Warnings, warnings) {
			t.Errorf("got warnings %q, %v, want %q", got.Warnings, err, warnings)
		}
	}
}

// A cross certificate is a CA that the cluster trusts until it expires: a dry run, or a prepare that fails, must not
// make one.
func TestOnlyPrepareCertifiesANewCA(t *testing.T) {
	fresh := certtest.CA(t, "new")
	for name, test := range map[string]struct {
		change func(*rotation.PrepareRequest, *desk)
		ok     bool
	}{
		"dry run": {func(p *rotation.PrepareRequest, _ *desk) { p.DryRun = true }, true},
		"clients refuse": {func(_ *rotation.PrepareRequest, d *desk) {
			d.Check = func(rotation.CA, []*x509.Certificate) error { return errors.New("no") }
		}, false},
		"no observation": {func(_ *rotation.PrepareRequest, d *desk) { d.failure = errors.New("no") }, false},
	} {
		d := newDesk(t)
		made := 0
		p := rotation.PrepareRequest{CA: rotation.Cluster, Certificates: []*x509.Certificate{fresh.Leaf}, Cross: func(c *x509.Certificate) (*x509.Certificate, error) {
			made++
			if rotation.Matches(fresh.PrivateKey.(crypto.Signer), c) {
				t.Errorf("%s: certified the new CA", name)
			}
			return rotationtest.Cross(t, d.old, c), nil
		}}
		test.change(&p, d)
		if got, err := d.Prepare(t.Context(), p); (err == nil) != test.ok || len(got.Rotation.Cross) != 0 || (made == 1) != test.ok {
			t.Errorf("%s: got %+v, %v, and %d cross certificates", name, got, err, made)
		}
	}
	d := newDesk(t)
	p := rotation.PrepareRequest{CA: rotation.Cluster, DryRun: true, Cross: func(*x509.Certificate) (*x509.Certificate, error) { return nil, errors.New("no key") }}
	if _, err := d.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("dry run without the old key: got %v, want its error", err)
	}
}

func second[T any](_ T, err error) error { return err }

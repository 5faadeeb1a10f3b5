package configmap

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A step may skip its work only if the work would change nothing.
func TestStillSettled(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b, unused, ended := tokens.Generate(), tokens.Generate(), tokens.Generate(), tokens.Generate()
	retired := tokens.Generate()
	records := func() []*tokens.Record {
		return []*tokens.Record{
			{Token: a, Signing: true, Expires: now.Add(time.Hour), Created: now}, {Token: b, Signing: true, Created: now}, {Token: unused, Created: now},
			{Token: ended, Signing: true, Created: now, Expires: now.Add(-time.Hour)}, {Token: retired, Signing: true, Created: now},
		}
	}
	for _, test := range []struct {
		name              string
		version, settings string // empty: the values before
		change            func(all []*tokens.Record) []*tokens.Record
		after             time.Duration
		want              bool
		until             time.Duration // after now; zero: an hour
	}{
		{name: "nothing", want: true},
		{name: "counts a node", change: edit(1, func(r *tokens.Record) { r.Nodes = []string{"worker-1"} }), want: true},
		{name: "spent, and expires earlier", change: edit(1, func(r *tokens.Record) { r.Nodes, r.Expires = []string{"worker-1"}, now.Add(time.Minute) }), want: true, until: time.Minute},
		{name: "expires later", change: edit(0, func(r *tokens.Record) { r.Expires = now.Add(2 * time.Hour) }), want: true},
		{name: "a token that does not sign expires", change: edit(2, func(r *tokens.Record) { r.Expires = now.Add(time.Minute) }), want: true},
		{name: "an expired token", change: edit(3, func(r *tokens.Record) { r.Expires = now.Add(-time.Minute) }), want: true},
		{name: "a retired token", change: edit(4, func(r *tokens.Record) { r.Nodes = nil })},
		{name: "the end of a token", after: time.Hour},
		{name: "another version of cluster-info", version: "8"},
		{name: "another kubeconfig", settings: "other"},
		{name: "new token", change: func(all []*tokens.Record) []*tokens.Record {
			return append(all, &tokens.Record{Token: tokens.Generate(), Signing: true})
		}},
		{name: "deleted token", change: func(all []*tokens.Record) []*tokens.Record { return all[:2] }},
		{name: "replaced token", change: edit(1, func(r *tokens.Record) { r.Token = tokens.Generate() })},
		{name: "token created again", change: edit(1, func(r *tokens.Record) { r.Created = now.Add(time.Second) })},
		{name: "token signs no more", change: edit(1, func(r *tokens.Record) { r.Signing = false })},
		{name: "token signs now", change: edit(2, func(r *tokens.Record) { r.Signing = true })},
		{name: "expired", change: edit(1, func(r *tokens.Record) { r.Expires = now })},
	} {
		before := records()
		s := settled{"7", "same", before, now.Add(time.Hour), removed{retired.ID(): ""}}
		after := slices.Clone(before)
		if test.change != nil {
			after = test.change(after)
		}
		version, kubeconfig, until := "7", "same", now.Add(time.Hour)
		if test.version != "" {
			version = test.version
		}
		if test.settings != "" {
			kubeconfig = test.settings
		}
		if test.until != 0 {
			until = now.Add(test.until)
		}
		if got := s.still(version, kubeconfig, after, now.Add(test.after)); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
		if !s.until.Equal(until) || test.want && !slices.Equal(s.records, after) {
			t.Errorf("%s: got end %s and %d records, want end %s and the new records", test.name, s.until, len(s.records), until)
		}
	}
	if (&settled{}).still("", "", nil, now) {
		t.Error("a signer that has made no step is settled")
	}
}

// edit replaces one record by a changed copy.
func edit(i int, change func(*tokens.Record)) func([]*tokens.Record) []*tokens.Record {
	return func(all []*tokens.Record) []*tokens.Record {
		r := *all[i]
		change(&r)
		all[i] = &r
		return all
	}
}

// lateStore is a store whose list lacks a token.
type lateStore struct {
	*paced
	late *tokens.Record // nil after the token was deleted
}

func (s *lateStore) Get(context.Context, string, tokens.Read) (tokens.Record, error) {
	if s.late == nil {
		return tokens.Record{}, tokens.ErrNotFound
	}
	return *s.late, nil
}

// A step that reads the same data as the last step still reports errors, and still looks up tokens that the list
// lacks.
func TestSettledStepStillLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kubeconfig, late := "any", tokens.Record{Token: tokens.Generate(), Signing: true}
		key := clusterinfo.SignatureKey(late.Token.ID())
		p := &paced{cluster: fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name, ResourceVersion: "1"},
			Data:       map[string]string{clusterinfo.KubeconfigKey: kubeconfig, key: must.Value(clusterinfo.Sign([]byte(kubeconfig), late.Token))(t)},
		})}
		p.cluster.PrependReactor("update", "configmaps", func(a clienttesting.Action) (bool, runtime.Object, error) {
			a.(clienttesting.UpdateAction).GetObject().(*corev1.ConfigMap).ResourceVersion = "2"
			return false, nil, nil
		})
		store := &lateStore{p, &late}
		var fails error
		s := Signer{ConfigMap: Open(t.Context(), p.cluster), Tokens: store, Follow: &Follower{Rotation: func() (*Rotation, error) { return nil, fails }}}.start()
		signed := func() bool {
			t.Helper()
			for range 2 {
				must.Value(s.step(t.Context()))(t)
				synctest.Wait()
			}
			data := must.Value(s.ConfigMap.Data(t.Context()))(t)
			return data[key] != ""
		}
		if !signed() {
			t.Error("the signer removed the signature of a token that the list lacks")
		}
		store.late = nil
		if signed() {
			t.Error("the signature of a deleted token stays")
		}
		fails = errors.New("no state of the rotation")
		if _, err := s.step(t.Context()); !errors.Is(err, fails) {
			t.Errorf("got %v, want %v", err, fails)
		}
	})
}

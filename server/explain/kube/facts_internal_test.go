package kube

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// noTokens is a store without tokens. It notes which ones are read, and may fail.
type noTokens struct {
	tokens.Store
	read []string
	err  error
}

func (s *noTokens) List(context.Context) ([]tokens.Record, error) { return nil, s.err }

func (s *noTokens) Get(_ context.Context, id string) (tokens.Record, error) {
	s.read = append(s.read, id)
	return tokens.Record{}, errors.Join(s.err, tokens.ErrNotFound)
}

type noInfo struct{}

func (noInfo) Data(context.Context) (map[string]string, error) { return nil, clusterinfo.ErrNotFound }

func TestFactsOfACallerThatLeftAreAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := Reader{Client: fake.NewClientset(), Tokens: &noTokens{}, ClusterInfo: noInfo{}}
	if f, err := r.Facts(ctx, "worker-1"); err != nil || len(f.Unread) > 0 {
		t.Errorf("%+v, %v; want facts", f, err)
	}
	cancel()
	if f, err := r.Facts(ctx, "worker-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v; want context.Canceled", f, err)
	}
}

func TestTokensThatCannotBeReadAreReported(t *testing.T) {
	r := Reader{Client: fake.NewClientset(), Tokens: &noTokens{err: errors.New("down")}, ClusterInfo: noInfo{}}
	f, err := r.Facts(t.Context(), "worker-1")
	if err != nil || !slices.Equal(f.Unread, []api.UnreadFact{{Fact: explain.FactTokens, Reason: "down"}}) {
		t.Errorf("unread %+v, %v; want the tokens", f.Unread, err)
	}
}

func by(user string) object {
	return &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{Username: user}}
}

func TestReadsTheTokenOfBootstrapUsersAlone(t *testing.T) {
	for user, want := range map[string][]string{
		"system:bootstrap:abc123": {"abc123"},
		"abc123":                  nil, // no user of a token
		"system:bootstrap:ABC123": nil, // no token ID
	} {
		store := &noTokens{}
		g := &gathering{Reader: Reader{Tokens: store}, latest: []object{by(user)}}
		if err := g.requestersToken(t.Context()); err != nil || !slices.Equal(store.read, want) {
			t.Errorf("%s: read %q, %v; want %q", user, store.read, err, want)
		}
	}
	g := &gathering{Reader: Reader{Tokens: failingGet{}}, latest: []object{by("system:bootstrap:abc123")}}
	if err := g.requestersToken(t.Context()); err == nil {
		t.Error("a token that cannot be read is no error")
	}
}

type failingGet struct{ tokens.Store }

func (failingGet) Get(context.Context, string) (tokens.Record, error) {
	return tokens.Record{}, errors.New("down")
}

package clusterinfo_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

// listed is a token store that lists what it holds, or fails.
type listed struct {
	tokens.Store
	records []tokens.Record
	err     error
}

func (l *listed) List(context.Context) ([]tokens.Record, error) { return l.records, l.err }

func TestComputed(t *testing.T) {
	expires := record(t, "aaaaaa.9876543210fedcba")
	expires.Expires = start.Add(time.Minute)
	store := &listed{records: []tokens.Record{expires}}
	now := start
	c := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig, Now: func() time.Time { return now }}
	if err := c.WaitSigned(t.Context(), expires.Token); err != nil {
		t.Error(err)
	}
	if err := c.WaitSigned(t.Context(), mustToken(t, "aaaaaa.9876543210fedcbb")); !errors.Is(err, clusterinfo.ErrSignature) {
		t.Errorf("another secret: %v", err)
	}
	now = expires.Expires
	if err := c.WaitSigned(t.Context(), expires.Token); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	if data, err := c.Data(t.Context()); err != nil || len(data) != 1 || data["kubeconfig"] != string(kubeconfig) {
		t.Errorf("%v, %v, want the kubeconfig alone", data, err)
	}
	store.err = errors.New("disk on fire")
	if _, err := c.Data(t.Context()); !errors.Is(err, store.err) {
		t.Errorf("got %v", err)
	}
	none := &clusterinfo.Computed{Tokens: &listed{}}
	if _, err := none.Data(t.Context()); !errors.Is(err, clusterinfo.ErrNoKubeconfig) {
		t.Errorf("got %v", err)
	}
}

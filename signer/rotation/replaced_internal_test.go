package rotation

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"crypto/x509"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// A rotation stores the last 16 CAs that earlier rotations took out of use, until they expire or are in use again.
func TestSucceed(t *testing.T) {
	now := time.Now()
	of := func(name string) []*x509.Certificate { return []*x509.Certificate{certtest.CA(t, name).Leaf} }
	first, second, third := of("first"), of("second"), of("third")
	one := must.Value(New(Cluster, first, second, nil, now))(t)
	for name, test := range map[string]struct {
		stage   Stage
		ended   bool
		fresh   []*x509.Certificate
		earlier []Replaced
		at      time.Time
		want    []string
	}{
		"in progress":    {Finish, false, third, nil, now, nil},
		"finished":       {Finish, true, third, nil, now, []string{clusterinfo.Pin(first[0])}},
		"aborted":        {Prepare, true, third, nil, now, []string{clusterinfo.Pin(second[0])}},
		"in use again":   {Finish, true, first, nil, now, nil},
		"expired":        {Finish, true, third, nil, first[0].NotAfter, nil},
		"earlier one":    {Finish, true, third, []Replaced{{"id", "sha256:a", now.Add(time.Hour)}}, now, []string{"sha256:a", clusterinfo.Pin(first[0])}},
		"earlier, ended": {Finish, true, third, []Replaced{{"id", "sha256:a", now}}, now, []string{clusterinfo.Pin(first[0])}},
	} {
		before := one
		if before.Stage, before.Replaced = test.stage, test.earlier; test.ended {
			before.Ended = now
		}
		old := second
		if test.stage == Prepare {
			old = first
		}
		next := must.Value(New(Cluster, old, test.fresh, nil, now))(t)
		next.succeed(before, test.at)
		var got []string
		for _, r := range next.Replaced {
			if r.Pin != "" {
				got = append(got, r.Pin)
			}
			if !next.Past(r.Rotation) {
				t.Errorf("%s: rotation %s is not past", name, r.Rotation)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	many := one
	for n := range 2 * maxReplaced {
		many.Replaced = append(many.Replaced, Replaced{"id", fmt.Sprint(n), now.Add(time.Hour)})
	}
	next := must.Value(New(Cluster, second, third, nil, now))(t)
	if next.succeed(many, now); len(next.Replaced) != maxReplaced || next.Replaced[maxReplaced-1].Pin != fmt.Sprint(2*maxReplaced-1) {
		t.Errorf("got %+v, want the last %d", next.Replaced, maxReplaced)
	}
	if !next.Past("id") || next.Past(next.ID) || next.Past("") {
		t.Error("want that rotation id is past")
	}
}

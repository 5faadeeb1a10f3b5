package clusterinfo_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

var (
	start      = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	kubeconfig = []byte("a kubeconfig")
)

func record(t testing.TB, token string) tokens.Record {
	return tokens.Record{Token: mustToken(t, token), Signing: true, Created: start}
}

func onlyID(t testing.TB, id string) tokens.Record {
	t.Helper()
	token := must.Value(tokens.OnlyID(id))(t)
	return tokens.Record{Token: token, Signing: true, Problem: errors.New("secret of 17 characters")}
}

func update(t testing.TB, d clusterinfo.Document, kubeconfig []byte, now time.Time, records ...tokens.Record) clusterinfo.Document {
	t.Helper()
	return must.Value(d.Update(kubeconfig, records, now))(t)
}

func TestDocumentSignsLiveSigningTokens(t *testing.T) {
	live := record(t, "aaaaaa.9876543210fedcba")
	expired := record(t, "bbbbbb.9876543210fedcba")
	expired.Expires = start
	later := record(t, "cccccc.9876543210fedcba")
	later.Expires = start.Add(time.Hour)
	sooner := record(t, "dddddd.9876543210fedcba")
	sooner.Expires = start.Add(time.Minute)
	silent := record(t, "eeeeee.9876543210fedcba")
	silent.Signing = false
	silent.Expires = start.Add(time.Second)

	d := update(t, clusterinfo.Document{}, kubeconfig, start, live, expired, later, sooner, silent, onlyID(t, "ffffff"))
	data := d.Data()
	want := []string{"jws-kubeconfig-aaaaaa", "jws-kubeconfig-cccccc", "jws-kubeconfig-dddddd", "kubeconfig"}
	if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, want) {
		t.Fatalf("keys %q, want %q", got, want)
	}
	for _, r := range []tokens.Record{live, later, sooner} {
		if err := clusterinfo.Verify(kubeconfig, data[clusterinfo.SignatureKey(r.Token.ID())], r.Token); err != nil {
			t.Error(err)
		}
	}
	if got := d.Next(); !got.Equal(sooner.Expires) {
		t.Errorf("got next %s, want %s", got, sooner.Expires)
	}
	d = update(t, d, kubeconfig, sooner.Expires, live, expired, later, sooner, silent)
	if _, there := d.Data()["jws-kubeconfig-dddddd"]; there {
		t.Error("got a signature at the time of expiration, want none")
	}
	if got := d.Next(); !got.Equal(later.Expires) {
		t.Errorf("got next %s, want %s", got, later.Expires)
	}
	if d = update(t, d, kubeconfig, sooner.Expires, live); !d.Next().IsZero() {
		t.Errorf("got next %s without an expiring token, want zero", d.Next())
	}
}

func TestDocumentWithoutKubeconfig(t *testing.T) {
	before := update(t, clusterinfo.Document{}, kubeconfig, start, record(t, "aaaaaa.9876543210fedcba"))
	after, err := before.Update(nil, nil, start)
	if !errors.Is(err, clusterinfo.ErrNoKubeconfig) || !maps.Equal(after.Data(), before.Data()) {
		t.Errorf("got %v and %v", err, after.Data())
	}
}

// A Document after many updates must equal a new Document from the same records.
func TestUpdatedDocumentEqualsNewOne(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var d clusterinfo.Document
	now := start
	var records []tokens.Record
	for step := range 2000 {
		now = now.Add(time.Duration(random.IntN(5)) * time.Second)
		switch random.IntN(5) {
		case 0, 1:
			r := record(t, fmt.Sprintf("tok%03d.%016d", step%1000, random.IntN(3)))
			if random.IntN(2) == 0 {
				r.Expires = now.Add(time.Duration(random.IntN(60)) * time.Second)
			}
			records = append(records, r)
		case 2:
			if len(records) > 0 {
				i := random.IntN(len(records))
				records = slices.Delete(records, i, i+1)
			}
		case 3: // same ID, other secret
			if len(records) > 0 {
				i := random.IntN(len(records))
				records[i].Token = mustToken(t, fmt.Sprintf("%s.%016d", records[i].Token.ID(), random.IntN(3)))
			}
		}
		config := []byte(fmt.Sprint("kubeconfig ", step/100))
		records = slices.CompactFunc(records, func(a, b tokens.Record) bool { return a.Token.ID() == b.Token.ID() })
		if len(records) > 30 {
			records = records[10:]
		}
		d = update(t, d, config, now, records...)
		fresh := update(t, clusterinfo.Document{}, config, now, records...)
		if !maps.Equal(d.Data(), fresh.Data()) || !d.Next().Equal(fresh.Next()) {
			t.Fatalf("step %d: %v\nwant %v", step, d.Data(), fresh.Data())
		}
		if m := d.Merge(fresh.Data(), 0); m.Changed {
			t.Fatalf("step %d: got a change of an up-to-date document", step)
		}
	}
}

func TestMerge(t *testing.T) {
	ours := record(t, "aaaaaa.9876543210fedcba")
	d := update(t, clusterinfo.Document{}, kubeconfig, start, ours, onlyID(t, "ffffff"))
	signed := d.Data()["jws-kubeconfig-aaaaaa"]
	done := map[string]string{"kubeconfig": "a kubeconfig", "jws-kubeconfig-aaaaaa": signed}
	with := func(more map[string]string) map[string]string {
		m := maps.Clone(done)
		maps.Copy(m, more)
		return m
	}
	for name, test := range map[string]struct{ current, want map[string]string }{
		"nothing there":         {nil, done},
		"done":                  {done, done},
		"other keys stay":       {map[string]string{"x": "1", "jws-kubeconfi": ""}, with(map[string]string{"x": "1", "jws-kubeconfi": ""})},
		"orphan goes":           {with(map[string]string{"jws-kubeconfig-zzzzzz": "e30..AA"}), done},
		"no ID at all goes":     {with(map[string]string{"jws-kubeconfig-": "e30..AA"}), done},
		"wrong one is replaced": {map[string]string{"kubeconfig": "a kubeconfig", "jws-kubeconfig-aaaaaa": "e30..AA"}, done},
		"empty one is replaced": {map[string]string{"kubeconfig": "a kubeconfig", "jws-kubeconfig-aaaaaa": ""}, done},
		"another's stays":       {with(map[string]string{"jws-kubeconfig-ffffff": "e30..AA"}), with(map[string]string{"jws-kubeconfig-ffffff": "e30..AA"})},
		"another's empty goes":  {with(map[string]string{"jws-kubeconfig-ffffff": ""}), done},
		"another's goes with the kubeconfig": {
			map[string]string{"kubeconfig": "old", "jws-kubeconfig-ffffff": "e30..AA"}, done,
		},
	} {
		before := maps.Clone(test.current)
		m := d.Merge(test.current, 0)
		if !maps.Equal(m.Data, test.want) {
			t.Errorf("%s: got %v, want %v", name, m.Data, test.want)
		}
		if m.Changed == maps.Equal(test.current, test.want) {
			t.Errorf("%s: changed: %t", name, m.Changed)
		}
		if !maps.Equal(test.current, before) {
			t.Errorf("%s: Merge changed its argument", name)
		}
		bytes, signatures := 0, 0
		for key, value := range m.Data {
			bytes += len(value)
			if strings.HasPrefix(key, clusterinfo.SignaturePrefix) {
				signatures++
			}
		}
		if m.Bytes != bytes || m.Signed != signatures || len(m.LeftOut) != 0 {
			t.Errorf("%s: %d bytes, %d signatures, %q left out; want %d, %d, none", name, m.Bytes, m.Signed, m.LeftOut, bytes, signatures)
		}
	}
}

func TestMergeWithinLimit(t *testing.T) {
	var records []tokens.Record
	for i, age := range []time.Duration{1, 5, 3, 4, 2} { // hours
		r := record(t, fmt.Sprintf("tok%03d.9876543210fedcba", i))
		r.Created = start.Add(-age * time.Hour)
		records = append(records, r)
	}
	d := update(t, clusterinfo.Document{}, kubeconfig, start, records...)
	fits := len(kubeconfig) + 3*85
	for name, test := range map[string]struct {
		there   []string
		limit   int
		leftOut []string
	}{
		"all fit":           {nil, len(kubeconfig) + 5*85, nil},
		"oldest first":      {nil, fits, []string{"tok004", "tok000"}},
		"not quite four":    {nil, fits + 84, []string{"tok004", "tok000"}},
		"there stays there": {[]string{"tok000"}, fits, []string{"tok002", "tok004"}},
		"no room":           {nil, 10, []string{"tok001", "tok003", "tok002", "tok004", "tok000"}},
	} {
		current := map[string]string{"kubeconfig": string(kubeconfig)}
		for _, id := range test.there {
			current[clusterinfo.SignatureKey(id)] = d.Data()[clusterinfo.SignatureKey(id)]
		}
		m := d.Merge(current, test.limit)
		if !slices.Equal(m.LeftOut, test.leftOut) {
			t.Errorf("%s: left out %q, want %q", name, m.LeftOut, test.leftOut)
		}
		if m.Bytes > test.limit && m.Signed > 0 {
			t.Errorf("%s: %d bytes, %d allowed", name, m.Bytes, test.limit)
		}
	}
}

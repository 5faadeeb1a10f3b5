package etcdrecord_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/etcdrecord"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func TestStore(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	issuancetest.Run(t, func(t *testing.T) issuance.Store { return etcdrecord.New(c.Store(t).Issued()) })
}

// An entry has all but the certificate, and its serial number finds it in any form.
func TestGetReturnsEntryWithoutCertificate(t *testing.T) {
	r := etcdrecord.New(etcd.ForTest(t, etcd.Options{}).Store(t).Issued())
	want := issuancetest.Issued(time.Now().UTC(), "1f", time.Hour)
	want.Fingerprint = "sha256:" + strings.Repeat("b2", 32)
	issuancetest.Add(t, r, want, issuancetest.Refused(time.Now(), 1))
	want.Certificate = ""
	for _, serial := range []string{"1f", "00:1F"} {
		if got, err := r.Get(t.Context(), serial); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Get(%s) = %+v, %v\nwant %+v", serial, got, err, want)
		}
	}
	for serial, wanted := range map[string]error{"1": issuance.ErrNotFound, "f1": issuance.ErrNotFound, "x": nil} {
		if _, err := r.Get(t.Context(), serial); err == nil || wanted != nil && !errors.Is(err, wanted) {
			t.Errorf("Get(%s) = %v", serial, err)
		}
	}
}

// Sweep deletes what is due with all its keys, and nothing else.
func TestSweepDeletesEntriesThatAreDue(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	rows := c.StoreAt(t, "/sweep").Issued()
	r := etcdrecord.New(rows)
	now := time.Now()
	for i := range 40 {
		issuancetest.Add(t, r, issuancetest.Issued(now.Add(-100*time.Hour), fmt.Sprintf("a%02x", i), 10*time.Hour), issuancetest.Refused(now.Add(-31*24*time.Hour), i))
	}
	issuancetest.Add(t, r, issuancetest.Issued(now.Add(-100*time.Hour), "b1", 60*time.Hour), issuancetest.Refused(now.Add(-29*24*time.Hour), 99))
	_, thaw, err := c.StoreAt(t, "/sweep").Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := rows.Sweep(t.Context(), now, 50*time.Hour); !errors.Is(err, etcdstore.ErrReadOnly) || out.Deleted > 0 {
		t.Errorf("while etcd is read-only: Sweep = %+v, %v, want %v", out, err, etcdstore.ErrReadOnly)
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	out, err := rows.Sweep(t.Context(), now, 50*time.Hour)
	if err != nil || out.Deleted != 80 || out.Dropped != 0 {
		t.Errorf("Sweep = %+v, %v, want 80 deleted and none early", out, err)
	}
	if got := issuancetest.List(t, r, issuance.Query{}); !slices.Equal(got, []string{"b1", "99"}) {
		t.Errorf("got entries %v, want b1 and 99", got)
	}
	left, err := c.Client().Get(t.Context(), "/sweep/issued/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(left.Kvs) != 5+3 { // entry, node, token, serial, end; entry, node, time
		t.Errorf("got %d keys, %v, want 8:\n%v", len(left.Kvs), err, left.Kvs)
	}
}

// A value that kubejoin did not write is an error that names its place and not its content.
func TestDamagedEntryIsReported(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	r := etcdrecord.New(c.StoreAt(t, "/damaged").Issued())
	issuancetest.Add(t, r, issuancetest.Issued(time.Now(), "1f", time.Hour))
	entries, err := c.Client().Get(t.Context(), "/damaged/issued/entries/", clientv3.WithPrefix())
	if err != nil || len(entries.Kvs) != 1 {
		t.Fatalf("got %d entries, %v", len(entries.Kvs), err)
	}
	for _, value := range []string{`{"hunter2`, `{"hunter2":1}`, `{"outcome":"hunter2"}`} {
		if _, err := c.Client().Put(t.Context(), string(entries.Kvs[0].Key), value); err != nil {
			t.Fatal(err)
		}
		place := strings.TrimPrefix(string(entries.Kvs[0].Key), "/damaged/issued/entries/")
		_, err := r.Get(t.Context(), "1f")
		if err == nil || !strings.Contains(err.Error(), place) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error that names %s", value, err, place)
		}
	}
}

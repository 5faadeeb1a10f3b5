package server_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
)

// A flood of addresses takes the memory of the table and no more, and gives nobody a fresh bucket.
func TestBucketsOfManyClients(t *testing.T) {
	now := time.Now()
	b := server.NewBuckets(server.Rate{QPS: 10, Burst: 100})
	spend := func(key string) (n int) {
		for b.Take(key, now) {
			n++
		}
		return n
	}
	if n := spend("attacker"); n != 100 {
		t.Errorf("%d at once, want 100", n)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 400_000 {
		b.Take("flood-"+strconv.Itoa(i), now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); b.Used() != 2*8192 || grown > 4<<20 {
		t.Errorf("%d buckets of %d bytes in all", b.Used(), grown)
	}
	if b.Take("attacker", now) {
		t.Error("after 400,000 others there is a fresh bucket")
	}
	now = now.Add(time.Second)
	if n := spend("attacker"); n < 8 || n > 12 {
		t.Errorf("%d after a second, want 10", n)
	}

	// A hundred addresses that keep theirs empty take nobody else's.
	b = server.NewBuckets(server.Rate{QPS: 10, Burst: 100})
	for i := range 100 {
		spend("attacker-" + strconv.Itoa(i))
	}
	denied := 0
	for i := range 10_000 {
		if !b.Take("honest-"+strconv.Itoa(i), now) {
			denied++
		}
	}
	if denied > 20 { // 1.5 expected
		t.Errorf("%d of 10,000 others are refused", denied)
	}
}

// Of two credentials that have one place in common neither takes the other's.
func TestLetInKeepsBoth(t *testing.T) {
	l := server.NewLetIn()
	for i := range 20 {
		one := fmt.Sprint("credential ", i)
		other := l.Beside(one)
		l.Add(one)
		l.Add(other)
		l.Add(one)
		if !l.Has(one) || !l.Has(other) {
			t.Errorf("%s and %s: %t, %t", one, other, l.Has(one), l.Has(other))
		}
		if l.Remove(one); l.Has(one) || !l.Has(other) {
			t.Errorf("%s removed beside %s: %t, %t", one, other, l.Has(one), l.Has(other))
		}
		l.Remove(other)
	}
	for i := range 100_000 {
		if l.Add(strconv.Itoa(i)); !l.Has(strconv.Itoa(i)) {
			t.Fatalf("the last of %d is forgotten", i)
		}
	}
}

package httplimit

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A slow concurrent request may pass an earlier time. Catches a bucket that refills because of this.
func TestEarlierTimeFillsNoBucket(t *testing.T) {
	now := time.Now()
	for name, take := range map[string]func(*buckets, time.Time) bool{
		"take":   func(b *buckets, at time.Time) bool { return b.take("k", at) },
		"charge": func(b *buckets, at time.Time) bool { left := b.left("k", now); b.charge("k", at); return left },
	} {
		b, taken := newBuckets(Rate{QPS: 10, Burst: 100}), 0
		for i := range 200 {
			if take(b, now.Add(-time.Duration(i%2)*time.Minute)) {
				taken++
			}
		}
		if taken != 100 {
			t.Errorf("%s: %d at once, want 100", name, taken)
		}
	}
}

// A flood of addresses must not grow the table, and must not give a client a fresh bucket.
func TestManyClientsGetNoFreshBuckets(t *testing.T) {
	now := time.Now()
	b := newBuckets(Rate{QPS: 10, Burst: 100})
	spend := func(key string) (n int) {
		for b.take(key, now) {
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
		b.take("flood-"+strconv.Itoa(i), now)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); used(b) != 2*8192 || grown > 4<<20 {
		t.Errorf("%d buckets of %d bytes in all", used(b), grown)
	}
	if b.take("attacker", now) {
		t.Error("got a fresh bucket after 400,000 other clients, want the old one")
	}
	now = now.Add(time.Second)
	if n := spend("attacker"); n < 8 || n > 12 {
		t.Errorf("%d after a second, want 10", n)
	}

	// A hundred addresses with empty buckets must not use up the buckets of others.
	b = newBuckets(Rate{QPS: 10, Burst: 100})
	for i := range 100 {
		spend("attacker-" + strconv.Itoa(i))
	}
	denied := 0
	for i := range 10_000 {
		if !b.take("honest-"+strconv.Itoa(i), now) {
			denied++
		}
	}
	if denied > 20 { // about 1.5 are expected
		t.Errorf("%d of 10,000 others are refused", denied)
	}
}

// used returns the number of buckets in use.
func used(b *buckets) (n int) {
	for i := range b.table {
		for j := range b.table[i] {
			if b.table[i][j].Load() != nil {
				n++
			}
		}
	}
	return n
}

// Two credentials that share one of their slots must not evict each other.
func TestKeepsAcceptedCredentialsThatShareASlot(t *testing.T) {
	a := &accepted{seed: maphash.MakeSeed()}
	add := func(credential string) { a.add("client", Authenticated, credential, credential) }
	has := func(credential string) bool { return a.has("client", Authenticated, credential) }
	slots := func(credential string) [bucketRows]*atomic.Uint64 {
		return a.slots(a.hash("client", Authenticated, credential))
	}
	beside := func(credential string) string { // returns a credential that shares exactly one slot
		taken := slots(credential)
		for i := 0; ; i++ {
			other := strconv.Itoa(i)
			if s := slots(other); other != credential && (s[0] == taken[0]) != (s[1] == taken[1]) {
				return other
			}
		}
	}
	for i := range 20 {
		one := fmt.Sprint("credential ", i)
		other := beside(one)
		add(one)
		add(other)
		add(one)
		if !has(one) || !has(other) {
			t.Errorf("%s and %s: %t, %t", one, other, has(one), has(other))
		}
		if a.remove("client", Authenticated, one); has(one) || !has(other) {
			t.Errorf("%s removed beside %s: %t, %t", one, other, has(one), has(other))
		}
		a.remove("client", Authenticated, other)
	}
	for i := range 100_000 {
		if add(strconv.Itoa(i)); !has(strconv.Itoa(i)) {
			t.Fatalf("the last of %d is forgotten", i)
		}
	}
}

// Catches a user at one client, or an old credential, that uses up the rate of the user at another client.
func TestUserHasARateAtEachClient(t *testing.T) {
	for _, test := range []struct {
		clients Rate
		other   bool // whether another client has a separate rate
	}{{Rate{QPS: 1e6}, true}, {Rate{QPS: -1}, false}} {
		l := New(test.clients, Rate{QPS: 1e-6, Burst: 3}, []Class{Certificates}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		allowed := func(remote, name, credential string) bool {
			u := l.Use(Certificates, Authenticated, remote, "")
			defer u.Leave()
			return u.Enter(nil) == nil && u.User(name, credential) == nil
		}
		for i := range 5 {
			if got := allowed("192.0.2.1:1", "ada", ""); got != (i < 3) {
				t.Errorf("request %d: allowed %t", i, got)
			}
		}
		for what, next := range map[string]struct {
			remote, name, credential string
			want                     bool
		}{
			"another client":         {"192.0.2.2:1", "ada", "", test.other},
			"another user":           {"192.0.2.1:1", "eve", "", true},
			"an old credential":      {"192.0.2.1:1", "ada", "old", true},
			"another old credential": {"192.0.2.1:1", "ada", "older", true},
		} {
			if got := allowed(next.remote, next.name, next.credential); got != next.want {
				t.Errorf("limits of clients %v, %s: allowed %t, want %t", test.clients, what, got, next.want)
			}
		}
	}
}

// Without limits per client, catches a slot that stays counted for its user after Leave.
func TestUserGivesBackSlots(t *testing.T) {
	l := New(Rate{QPS: -1}, Rate{QPS: 1e6}, []Class{Certificates}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	for i := range 2 * MaxCertificates {
		u := l.Use(Certificates, Authenticated, "192.0.2.1:1", "")
		if u.Enter(nil) != nil || u.User("ada", "") != nil || u.User("ada", "") != nil {
			t.Fatalf("request %d of one after the other is refused", i)
		}
		u.Leave()
	}
}

// Clients that hold every slot they get for as long as they can end up with equal shares, and leave one share to
// the next client.
func TestClientsShareSlotsEqually(t *testing.T) {
	const clients = 40
	slots := newSlots([]Class{Discovery}, prometheus.NewRegistry())[Discovery]
	var held []string // clients, in the order in which they took slots
	take := func() {
		for taken := true; taken; {
			taken = false
			for i := range clients {
				client := fmt.Sprint(i)
				for slots.enter(client) == "" {
					held, taken = append(held, client), true
				}
			}
		}
	}
	take()
	for range MaxDiscovery { // let each request end once
		slots.leave(held[0])
		held = held[1:]
		take()
	}
	count := map[string]int{}
	for _, client := range held {
		count[client]++
	}
	const part = MaxDiscovery / (clients + 1)
	for i := range clients {
		if n := count[fmt.Sprint(i)]; n < part-1 || n > part+1 {
			t.Errorf("client %d has %d slots, want %d", i, n, part)
		}
	}
	n := 0
	for slots.enter("newcomer") == "" {
		n++
	}
	if n < part/2-1 {
		t.Errorf("a newcomer has %d slots, want half of the %d that are left", n, MaxDiscovery-len(held))
	}
}

package server

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// bucketRows and bucketSlots are the size of a table of buckets, which takes 6 MB if all of it is in use.
const (
	bucketRows  = 2
	bucketSlots = 8192
)

// buckets are token buckets by key, in a table that never grows. Nothing is ever taken out of it
// to make room, since whoever can bring that about, with many addresses, would get fresh buckets
// by it. Instead keys share buckets: each key has one in each row, found by a hash that nobody
// outside can know, takes from both, and is refused only where both are empty. So a client has
// never less than its due because of one other, whose key shares both with it once in 67 million;
// and who wants to keep even one bucket in a hundred empty in both rows has to be let in 800
// times as often as one client may be, from as many addresses.
type buckets struct {
	limit rate.Limit
	burst int
	seed  maphash.Seed
	table [bucketRows][bucketSlots]atomic.Pointer[rate.Limiter]
}

// newBuckets is nil, which has no limit, where there is none.
func newBuckets(r Rate) *buckets {
	if r.QPS < 0 {
		return nil
	}
	if r.Burst <= 0 {
		r.Burst = int(min(math.Ceil(r.QPS), 1e9))
	}
	return &buckets{limit: rate.Limit(r.QPS), burst: max(r.Burst, 1), seed: maphash.MakeSeed()}
}

func (b *buckets) of(key string) [bucketRows]*rate.Limiter {
	hash := maphash.String(b.seed, key)
	var found [bucketRows]*rate.Limiter
	for i := range found {
		slot := &b.table[i][hash>>(32*i)%bucketSlots]
		if slot.Load() == nil {
			slot.CompareAndSwap(nil, rate.NewLimiter(b.limit, b.burst))
		}
		found[i] = slot.Load()
	}
	return found
}

// take takes one for the key, if there is one.
func (b *buckets) take(key string, now time.Time) bool {
	if b == nil {
		return true
	}
	taken := false
	for _, l := range b.of(key) {
		taken = l.AllowN(now, 1) || taken
	}
	return taken
}

// left is whether there is one for the key.
func (b *buckets) left(key string, now time.Time) bool {
	if b == nil {
		return true
	}
	for _, l := range b.of(key) {
		if l.TokensAt(now) >= 1 {
			return true
		}
	}
	return false
}

// charge takes one for the key, on credit if there is none: what is looked at only afterwards may
// have been done many times at once.
func (b *buckets) charge(key string, now time.Time) {
	if b == nil {
		return
	}
	for _, l := range b.of(key) {
		l.ReserveN(now, 1)
	}
}

package httplimit

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A Rate allows QPS events per second, and Burst at once. A negative QPS is unlimited. A Burst of zero means QPS, but
// at least one.
type Rate struct {
	QPS   float64
	Burst int
}

// bucketRows and bucketSlots are the size of a table of buckets. A fully used table takes 6 MB.
const (
	bucketRows  = 2
	bucketSlots = 8192
)

// buckets are token buckets by key, in a table that never grows. The table evicts nothing: otherwise, an attacker
// with many addresses would get fresh buckets. Instead, keys share buckets: each key has one bucket in each row,
// chosen by a secret hash. An event takes from both buckets and is refused only if both are empty. The probability
// that another key shares both buckets is 1 in 67 million. To keep one bucket in a hundred empty in both rows,
// attackers need 800 times the rate of one client, and as many addresses.
type buckets struct {
	limit rate.Limit
	burst int
	seed  maphash.Seed
	table [bucketRows][bucketSlots]atomic.Pointer[bucket]
}

// A bucket is a limiter whose time does not go back. A slow concurrent request may pass an earlier time. A plain
// rate.Limiter would then refill again from that time.
type bucket struct {
	mu     sync.Mutex
	latest time.Time
	*rate.Limiter
}

// take takes one event, and reports whether one was left.
func (b *bucket) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.AllowN(b.clock(now), 1)
}

// charge takes one event, on credit if none is left.
func (b *bucket) charge(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ReserveN(b.clock(now), 1)
}

// clock returns the latest time so far. The caller holds the lock.
func (b *bucket) clock(now time.Time) time.Time {
	if now.After(b.latest) {
		b.latest = now
	}
	return b.latest
}

// newBuckets returns nil, which means unlimited, for a negative rate.
func newBuckets(r Rate) *buckets {
	if r.QPS < 0 {
		return nil
	}
	if r.Burst <= 0 {
		r.Burst = int(min(math.Ceil(r.QPS), 1e9))
	}
	return &buckets{limit: rate.Limit(r.QPS), burst: max(r.Burst, 1), seed: maphash.MakeSeed()}
}

func (b *buckets) of(key string) [bucketRows]*bucket {
	hash := maphash.String(b.seed, key)
	var found [bucketRows]*bucket
	for i := range found {
		slot := &b.table[i][hash>>(32*i)%bucketSlots]
		if slot.Load() == nil {
			slot.CompareAndSwap(nil, &bucket{Limiter: rate.NewLimiter(b.limit, b.burst)})
		}
		found[i] = slot.Load()
	}
	return found
}

// take takes one event of the key, and reports whether one was left.
func (b *buckets) take(key string, now time.Time) bool {
	if b == nil {
		return true
	}
	taken := false
	for _, l := range b.of(key) {
		taken = l.take(now) || taken
	}
	return taken
}

// left reports whether the key has an event left.
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

// charge takes one event of the key, on credit if none is left, because many concurrent requests may have passed the
// check by left.
func (b *buckets) charge(key string, now time.Time) {
	if b == nil {
		return
	}
	for _, l := range b.of(key) {
		l.charge(now)
	}
}

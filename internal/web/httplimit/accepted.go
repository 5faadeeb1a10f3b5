package httplimit

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// acceptedOfUser is how many of a user's latest credentials are cached. So a user with many credentials evicts only their own.
const acceptedOfUser = 16

// accepted caches which credentials were accepted from which client, by kind of request. It stores keyed hashes in a
// table of fixed size; the key is random for each process. Each hash has two slots, and evicts another hash only if
// both are taken. Users with the same hash share a list of latest credentials.
type accepted struct {
	seed  maphash.Seed
	table [bucketRows][bucketSlots]atomic.Uint64

	mu    sync.Mutex
	users [bucketSlots][acceptedOfUser]uint64
}

func (a *accepted) hash(client string, of Kind, credential string) uint64 {
	return maphash.String(a.seed, strconv.Itoa(int(of))+" "+client+" "+credential)
}

func (a *accepted) slots(hash uint64) (slots [bucketRows]*atomic.Uint64) {
	for i := range slots {
		slots[i] = &a.table[i][hash>>(32*i)%bucketSlots]
	}
	return slots
}

func (a *accepted) add(client string, of Kind, credential, user string) {
	if a.has(client, of, credential) {
		return
	}
	hash := a.hash(client, of, credential)
	a.mu.Lock()
	defer a.mu.Unlock()
	latest := &a.users[maphash.String(a.seed, client+" "+user)%bucketSlots]
	a.forget(latest[acceptedOfUser-1])
	copy(latest[1:], latest[:])
	latest[0] = hash
	slots := a.slots(hash)
	for _, slot := range slots {
		if slot.CompareAndSwap(0, hash) {
			return
		}
	}
	slots[rand.IntN(bucketRows)].Store(hash)
}

func (a *accepted) remove(client string, of Kind, credential string) {
	a.forget(a.hash(client, of, credential))
}

func (a *accepted) forget(hash uint64) {
	for _, slot := range a.slots(hash) {
		slot.CompareAndSwap(hash, 0)
	}
}

func (a *accepted) has(client string, of Kind, credential string) bool {
	hash := a.hash(client, of, credential)
	slots := a.slots(hash)
	return slices.ContainsFunc(slots[:], func(slot *atomic.Uint64) bool { return slot.Load() == hash })
}

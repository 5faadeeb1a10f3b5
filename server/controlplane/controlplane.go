// Package controlplane makes control planes join one after the other, because etcd accepts one new member at a time. A
// machine takes the turn before it runs kubeadm join, renews it meanwhile, and gives it back at the end.
package controlplane

import (
	"slices"
	"time"
)

const (
	// TurnDuration is how long a turn lasts after its last renewal.
	TurnDuration = 30 * time.Second
	// RenewEvery is how often the holder should renew its turn, so that it may miss a renewal.
	RenewEvery = 10 * time.Second
	// RetryEvery is how often a waiting machine should retry.
	RetryEvery = 5 * time.Second
	// MaxWaiting is the maximum length of Turn.Waiting. More machines may wait.
	MaxWaiting = 20
)

const (
	seenEvery = 3 * RetryEvery // how often a retry is written, to limit writes
	seenFor   = time.Minute    // after which a machine that does not retry is no longer listed
)

// A Machine joins as a control plane. Machines may have the same node name by mistake: the ID, which the machine
// chooses at random, tells them apart.
type Machine struct {
	Node string `json:"node"`
	ID   string `json:"id"`
	// Address is the IP address of its new etcd member, if it is known.
	Address string `json:"address,omitempty"`
}

// A Turn says who has the turn and who waits for it.
type Turn struct {
	// Holder is the machine that has the turn. It took it at Since and last renewed it at Renewed. The zero Machine means
	// that the turn is free.
	Holder         Machine
	Since, Renewed time.Time
	// Learner is the peer URL of a new etcd member that does not vote yet, while it keeps a free or expired turn from being
	// taken. It belongs to a join without a turn, or to a machine that failed.
	Learner string
	// Waiting are the machines that wait, the first one first. It is only for people: any of them may be next.
	Waiting []Waiter
}

// A Waiter waits for the turn since Since. It last asked for it at about Seen.
type Waiter struct {
	Machine
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
}

// Free reports whether a machine that asks now gets a turn that it does not have. expired says that the holder has not
// renewed the turn for TurnDuration.
func (t Turn) Free(m Machine, expired bool) bool {
	return t.Holder != m && (t.Holder == Machine{} || expired)
}

// Take returns the state after a machine has asked for the turn or has renewed it, and whether the machine has it.
// Nobody gets a free turn as long as etcd has a learner: its peer URL, or empty. Until another machine takes an expired
// turn, its holder can renew it.
func (t Turn) Take(m Machine, expired bool, learner string, now time.Time) (Turn, bool) {
	free := t.Free(m, expired)
	switch {
	case t.Holder == m:
		t.Renewed, t.Learner = now, ""
		return t, true
	case free && learner == "":
		t.Waiting = t.without(m, now)
		t.Holder, t.Since, t.Renewed, t.Learner = m, now, now, ""
		return t, true
	case free:
		t.Learner = learner
	default:
		t.Learner = ""
	}
	t.Waiting = slices.Clone(t.Waiting)
	i := slices.IndexFunc(t.Waiting, func(w Waiter) bool { return w.Machine == m })
	switch {
	case i < 0:
		if t.Waiting = t.without(m, now); len(t.Waiting) < MaxWaiting {
			t.Waiting = append(t.Waiting, Waiter{Machine: m, Since: now, Seen: now})
		}
	case now.Sub(t.Waiting[i].Seen) >= seenEvery:
		t.Waiting[i].Seen = now
	}
	return t, false
}

// GiveBack returns the state after a machine has given back its turn or has stopped waiting.
func (t Turn) GiveBack(m Machine, now time.Time) Turn {
	if t.Holder == m {
		t.Holder, t.Since, t.Renewed = Machine{}, time.Time{}, time.Time{}
	}
	t.Waiting = t.without(m, now)
	return t
}

// StillWaiting returns the machines that still wait at the time now.
func (t Turn) StillWaiting(now time.Time) []Waiter { return t.without(Machine{}, now) }

// without returns the machines, except m, that have asked for the turn lately.
func (t Turn) without(m Machine, now time.Time) []Waiter {
	return slices.DeleteFunc(slices.Clone(t.Waiting), func(w Waiter) bool { return w.Machine == m || now.Sub(w.Seen) > seenFor })
}

// Equal reports whether two turns are the same.
func (t Turn) Equal(u Turn) bool {
	return t.Holder == u.Holder && t.Learner == u.Learner && t.Since.Equal(u.Since) && t.Renewed.Equal(u.Renewed) &&
		slices.EqualFunc(t.Waiting, u.Waiting, func(a, b Waiter) bool {
			return a.Machine == b.Machine && a.Since.Equal(b.Since) && a.Seen.Equal(b.Seen)
		})
}

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
	// RenewEvery is how often the holder should renew its turn. It is so short that the holder may miss a renewal.
	RenewEvery = 10 * time.Second
	// RetryEvery is how often a waiting machine should retry.
	RetryEvery = 5 * time.Second
	// MaxWaiting is the maximum length of State.Waiting. More machines may wait.
	MaxWaiting = 20
)

const (
	seenEvery = 3 * RetryEvery // how often a retry is written to the State, to limit writes
	seenFor   = time.Minute    // how long a machine that does not retry stays in the list
)

// A Machine joins as a control plane. Two machines may have the same node name by mistake, so each machine also
// has an ID that it chooses at random.
type Machine struct {
	Node string `json:"node"`
	ID   string `json:"id"`
	// Address is the IP address of its new etcd member, if it is known.
	Address string `json:"address,omitempty"`
}

// A State says who has the turn and who waits for it.
type State struct {
	// Holder is the machine that has the turn. It took the turn at Since and last renewed it at Renewed. The zero
	// Machine means that the turn is free.
	Holder         Machine
	Since, Renewed time.Time
	// Learner is the peer URL of an etcd member that does not vote yet and blocks a free or expired turn; otherwise
	// empty. The member is from a join without a turn, or from a machine that failed.
	Learner string
	// Waiting are the machines that wait, the first one first. It is only for people: any of them may be next.
	Waiting []Waiter
}

// A Waiter has waited for the turn since Since. It last asked for the turn at about Seen.
type Waiter struct {
	Machine
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
}

// Free reports whether the machine m does not have the turn and can take it now. expired says that the holder has not
// renewed the turn for TurnDuration.
func (s State) Free(m Machine, expired bool) bool {
	return s.Holder != m && (s.Holder == Machine{} || expired)
}

// Take returns the state after a machine has asked for the turn or has renewed it, and whether the machine has it.
// learner is the peer URL of a learner in etcd; empty if there is none. As long as etcd has a learner, no machine gets
// a free turn. Until another machine takes an expired turn, the holder can still renew it.
func (s State) Take(m Machine, expired bool, learner string, now time.Time) (State, bool) {
	free := s.Free(m, expired)
	switch {
	case s.Holder == m:
		s.Renewed, s.Learner = now, ""
		return s, true
	case free && learner == "":
		s.Waiting = s.without(m, now)
		s.Holder, s.Since, s.Renewed, s.Learner = m, now, now, ""
		return s, true
	case free:
		s.Learner = learner
	default:
		s.Learner = ""
	}
	s.Waiting = slices.Clone(s.Waiting)
	i := slices.IndexFunc(s.Waiting, func(w Waiter) bool { return w.Machine == m })
	switch {
	case i < 0:
		if s.Waiting = s.without(m, now); len(s.Waiting) < MaxWaiting {
			s.Waiting = append(s.Waiting, Waiter{Machine: m, Since: now, Seen: now})
		}
	case now.Sub(s.Waiting[i].Seen) >= seenEvery:
		s.Waiting[i].Seen = now
	}
	return s, false
}

// GiveBack returns the state after a machine has given back its turn or has stopped waiting.
func (s State) GiveBack(m Machine, now time.Time) State {
	if s.Holder == m {
		s.Holder, s.Since, s.Renewed = Machine{}, time.Time{}, time.Time{}
	}
	s.Waiting = s.without(m, now)
	return s
}

// StillWaiting returns the machines that still wait at the time now.
func (s State) StillWaiting(now time.Time) []Waiter { return s.without(Machine{}, now) }

// without returns the machines, except m, that have asked for the turn lately.
func (s State) without(m Machine, now time.Time) []Waiter {
	return slices.DeleteFunc(slices.Clone(s.Waiting), func(w Waiter) bool { return w.Machine == m || now.Sub(w.Seen) > seenFor })
}

// Equal reports whether two states are the same.
func (s State) Equal(o State) bool {
	return s.Holder == o.Holder && s.Learner == o.Learner && s.Since.Equal(o.Since) && s.Renewed.Equal(o.Renewed) &&
		slices.EqualFunc(s.Waiting, o.Waiting, func(a, b Waiter) bool {
			return a.Machine == b.Machine && a.Since.Equal(b.Since) && a.Seen.Equal(b.Seen)
		})
}

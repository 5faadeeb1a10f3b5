// Package leases stores the turn of control planes in a Lease of the cluster. Package controlplane has the rules.
package leases

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Name is the name of the Lease with the turn. It is in the namespace of kubejoin's other Leases.
const Name = tokens.OwnName + "-control-plane-turn"

// Annotations of the Lease: the waiting machines in JSON, and the learner in etcd.
const (
	waitingAnnotation = "turn.kubejoin.io/waiting"
	learnerAnnotation = "turn.kubejoin.io/learner"
)

// Turns stores the turn in a Lease. All replicas of kubejoin share it. Each write requires the version that was
// read, so that only one of two machines gets the turn.
type Turns struct {
	// Client needs get, create and update on Leases in Namespace. Empty means the namespace of the claims.
	Client    kubernetes.Interface
	Namespace string
	// Etcd removes learners; nil ignores them. Then kubeadm itself waits for another learner.
	Etcd Etcd
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex
	renewal string        // the last renewal by any holder that this replica has seen
	silent  time.Duration // how long this replica has seen no newer renewal
	looked  time.Time     // when it last read the Lease
}

// Etcd is usually an etcd.Members.
type Etcd interface {
	// RemoveLearner removes the learner that a machine left behind. It returns the peer URL of another learner; empty
	// if there is none. ended means that kubeadm has ended on the machine. Without ended, a learner whose etcd runs
	// stays.
	RemoveLearner(ctx context.Context, gone controlplane.Machine, ended bool) (learner string, err error)
}

// maxGap limits how much of the time between two reads of the Lease is treated as silence of the holder. During a
// longer outage of the API server, the holder cannot renew its turn.
const maxGap = 3 * controlplane.RetryEvery

// Take asks for the turn, or renews it. It returns the state after that, and whether the machine has the turn.
func (t *Turns) Take(ctx context.Context, m controlplane.Machine) (controlplane.State, bool, error) {
	var granted bool
	after, err := t.update(ctx, func(s controlplane.State, now time.Time) (after controlplane.State, err error) {
		expired, learner := t.expired(s, now), ""
		if t.Etcd != nil && s.Free(m, expired) {
			if learner, err = t.Etcd.RemoveLearner(ctx, s.Holder, false); err != nil {
				return controlplane.State{}, err
			}
		}
		after, granted = s.Take(m, expired, learner, now)
		return after, nil
	})
	return after, granted && err == nil, err
}

// GiveBack gives back the turn of a machine on which kubeadm has ended, or removes it from the machines that wait.
// The machine may have no turn and may not wait. GiveBack also removes a learner that a failed kubeadm left
// behind. If that fails, GiveBack returns the error, and the turn expires.
func (t *Turns) GiveBack(ctx context.Context, m controlplane.Machine) error {
	_, err := t.update(ctx, func(s controlplane.State, now time.Time) (controlplane.State, error) {
		if t.Etcd != nil && s.Holder == m {
			if _, err := t.Etcd.RemoveLearner(ctx, m, true); err != nil {
				return controlplane.State{}, err
			}
		}
		return s.GiveBack(m, now), nil
	})
	return err
}

// Read returns the current state.
func (t *Turns) Read(ctx context.Context) (controlplane.State, error) {
	_, s, err := t.read(ctx)
	return s, err
}

// expired reports whether this replica has not seen a renewal for controlplane.TurnDuration. As in a leader election, it
// does not compare times of two machines, because their clocks may differ.
func (t *Turns) expired(s controlplane.State, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if renewal := encodeMachine(s.Holder) + s.Renewed.Format(time.RFC3339Nano); renewal != t.renewal {
		t.renewal, t.silent = renewal, 0
	} else {
		t.silent += min(max(0, now.Sub(t.looked)), maxGap) // the clock may have been set back
	}
	t.looked = now
	return t.silent >= controlplane.TurnDuration
}

// update changes the state with compare-and-swap.
func (t *Turns) update(ctx context.Context, change func(controlplane.State, time.Time) (controlplane.State, error)) (controlplane.State, error) {
	for {
		lease, before, err := t.read(ctx)
		if err != nil {
			return controlplane.State{}, err
		}
		now := time.Now
		if t.Now != nil {
			now = t.Now
		}
		after, err := change(before, now().UTC().Truncate(time.Microsecond))
		if err != nil {
			return controlplane.State{}, fmt.Errorf("turn of control planes: %w", err)
		}
		if after.Equal(before) {
			return after, nil
		}
		if err := encode(lease, after); err != nil {
			return controlplane.State{}, err
		}
		leases := t.Client.CoordinationV1().Leases(lease.Namespace)
		if lease.ResourceVersion == "" {
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		} else {
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		switch {
		case err == nil:
			return after, nil
		case ctx.Err() == nil && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)):
			continue // another request was faster
		}
		return controlplane.State{}, fmt.Errorf("turn of control planes: %w", err)
	}
}

// read returns the Lease and its state. A missing Lease has no version.
func (t *Turns) read(ctx context.Context) (*coordinationv1.Lease, controlplane.State, error) {
	namespace := t.Namespace
	if namespace == "" {
		namespace = secretstore.ClaimNamespace
	}
	lease, err := t.Client.CoordinationV1().Leases(namespace).Get(ctx, Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Name}}, controlplane.State{}, nil
	}
	if err != nil {
		return nil, controlplane.State{}, fmt.Errorf("turn of control planes: %w", err)
	}
	return lease, decode(lease), nil
}

// decode returns the state in a Lease. It ignores malformed parts: a person who edits the Lease must not stop joins.
func decode(lease *coordinationv1.Lease) (s controlplane.State) {
	if holder := lease.Spec.HolderIdentity; holder != nil {
		var rest string
		s.Holder.Node, rest, _ = strings.Cut(*holder, "/")
		s.Holder.ID, s.Holder.Address, _ = strings.Cut(rest, "/")
	}
	if at := lease.Spec.AcquireTime; at != nil {
		s.Since = at.UTC()
	}
	if at := lease.Spec.RenewTime; at != nil {
		s.Renewed = at.UTC()
	}
	s.Learner = lease.Annotations[learnerAnnotation]
	if json.Unmarshal([]byte(lease.Annotations[waitingAnnotation]), &s.Waiting) != nil {
		s.Waiting = nil
	}
	s.Waiting = s.Waiting[:min(len(s.Waiting), controlplane.MaxWaiting)]
	return s
}

// encode writes a state to a Lease.
func encode(lease *coordinationv1.Lease, s controlplane.State) error {
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = nil, nil, nil, nil
	if s.Holder != (controlplane.Machine{}) {
		holder, seconds := encodeMachine(s.Holder), int32(controlplane.TurnDuration/time.Second)
		since, renewed := metav1.NewMicroTime(s.Since), metav1.NewMicroTime(s.Renewed)
		lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &holder, &since, &renewed, &seconds
	}
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	delete(lease.Annotations, waitingAnnotation)
	delete(lease.Annotations, learnerAnnotation)
	if s.Learner != "" {
		lease.Annotations[learnerAnnotation] = s.Learner
	}
	if len(s.Waiting) == 0 {
		return nil
	}
	waiting, err := json.Marshal(s.Waiting)
	lease.Annotations[waitingAnnotation] = string(waiting)
	return err
}

func encodeMachine(m controlplane.Machine) string {
	return strings.Join([]string{m.Node, m.ID, m.Address}, "/")
}

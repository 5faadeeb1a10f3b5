package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens/secretstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// LeaseName is the name of the Lease with the turn. It is in the namespace of kubejoin's other Leases.
const LeaseName = "kubejoin-control-plane-turn"

// The annotations of the Lease: the machines that wait, in JSON, and the mark of such a Lease. A claim of a node of
// that name has no such mark.
const (
	turnLabel         = "kubejoin.io/turn"
	waitingAnnotation = "turn.kubejoin.io/waiting"
)

// Leases stores the turn in a Lease. All replicas of kubejoin share it. It writes with the version that it has read,
// so that only one of two machines gets the turn.
type Leases struct {
	// Client needs get, create and update on Leases in Namespace. An empty Namespace is that of the claims.
	Client    kubernetes.Interface
	Namespace string
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	mu      sync.Mutex
	renewal string    // the last renewal that this replica has seen, of any holder
	seen    time.Time // when it saw that first
}

// Take asks for the turn, or renews it. It returns the state after that, and whether the machine has the turn.
func (l *Leases) Take(ctx context.Context, m Machine) (State, bool, error) {
	var granted bool
	after, err := l.update(ctx, func(s State, now time.Time) (after State) {
		after, granted = s.Take(m, l.expired(s, now), now)
		return after
	})
	return after, granted && err == nil, err
}

// GiveBack gives back the turn of a machine, or removes it from the machines that wait. Neither need exist.
func (l *Leases) GiveBack(ctx context.Context, m Machine) error {
	_, err := l.update(ctx, func(s State, now time.Time) State { return s.GiveBack(m, now) })
	return err
}

// Read returns the current state.
func (l *Leases) Read(ctx context.Context) (State, error) {
	_, s, err := l.read(ctx)
	return s, err
}

// expired reports whether this replica has not seen a renewal for Duration. As in a leader election, it does not
// compare times of two machines, because their clocks may differ.
func (l *Leases) expired(s State, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if renewal := encodeMachine(s.Holder) + s.Renewed.Format(time.RFC3339Nano); renewal != l.renewal {
		l.renewal, l.seen = renewal, now
	}
	return now.Sub(l.seen) >= Duration
}

// update changes the state with compare-and-swap.
func (l *Leases) update(ctx context.Context, change func(State, time.Time) State) (State, error) {
	for {
		lease, before, err := l.read(ctx)
		if err != nil {
			return State{}, err
		}
		now := time.Now
		if l.Now != nil {
			now = l.Now
		}
		after := change(before, now().UTC().Truncate(time.Microsecond))
		if after.equal(before) {
			return after, nil
		}
		if err := encode(lease, after); err != nil {
			return State{}, err
		}
		leases := l.Client.CoordinationV1().Leases(lease.Namespace)
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
		return State{}, fmt.Errorf("turn of control planes: %w", err)
	}
}

// read returns the Lease and its state. A missing Lease has no version.
func (l *Leases) read(ctx context.Context) (*coordinationv1.Lease, State, error) {
	namespace := l.Namespace
	if namespace == "" {
		namespace = secretstore.ClaimNamespace
	}
	lease, err := l.Client.CoordinationV1().Leases(namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: LeaseName, Labels: map[string]string{turnLabel: "true"},
		}}, State{}, nil
	}
	if err != nil {
		return nil, State{}, fmt.Errorf("turn of control planes: %w", err)
	}
	if lease.Labels[turnLabel] != "true" {
		return nil, State{}, fmt.Errorf("turn of control planes: the Lease %s/%s has no label %s=true: delete it if no node has that name", namespace, LeaseName, turnLabel)
	}
	return lease, decode(lease), nil
}

// decode returns the state in a Lease. It ignores malformed parts: a person who edits the Lease must not stop joins.
func decode(lease *coordinationv1.Lease) (s State) {
	if holder := lease.Spec.HolderIdentity; holder != nil {
		s.Holder.Node, s.Holder.ID, _ = strings.Cut(*holder, "/")
	}
	if at := lease.Spec.AcquireTime; at != nil {
		s.Since = at.UTC()
	}
	if at := lease.Spec.RenewTime; at != nil {
		s.Renewed = at.UTC()
	}
	if json.Unmarshal([]byte(lease.Annotations[waitingAnnotation]), &s.Waiting) != nil {
		s.Waiting = nil
	}
	s.Waiting = s.Waiting[:min(len(s.Waiting), MaxWaiting)]
	return s
}

// encode writes a state to a Lease.
func encode(lease *coordinationv1.Lease, s State) error {
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = nil, nil, nil, nil
	if s.Holder != (Machine{}) {
		holder, seconds := encodeMachine(s.Holder), int32(Duration/time.Second)
		since, renewed := metav1.NewMicroTime(s.Since), metav1.NewMicroTime(s.Renewed)
		lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &holder, &since, &renewed, &seconds
	}
	delete(lease.Annotations, waitingAnnotation)
	if len(s.Waiting) == 0 {
		return nil
	}
	waiting, err := json.Marshal(s.Waiting)
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[waitingAnnotation] = string(waiting)
	return err
}

func encodeMachine(m Machine) string { return m.Node + "/" + m.ID }

package rowstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
)

// A Replica is the report of a replica, which the other replicas read.
type Replica struct {
	Name string    `json:"-"`
	Time time.Time `json:"time"`
	// ID and Since identify the state of the last rotation when the replica read it. Since distinguishes a stage from
	// the same stage after an abort.
	ID    string    `json:"id,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Fixed says why the replica cannot change its CA files; empty if it can.
	Fixed string `json:"fixed,omitempty"`
	// Seen has the observations of the CA that the replica uses and serves. It is empty unless a rotation is in progress.
	Seen []rotation.Observation `json:"seen,omitempty"`
}

const (
	// Beat is the maximum time between two reports of a replica.
	Beat = 20 * time.Second
	// A replica whose last report is at least off old is treated as off.
	off = 3 * Beat
	// A report that is at least forgotten old is ignored.
	forgotten = 7 * 24 * time.Hour
)

func decodeReplica(name string, value []byte) (Replica, error) {
	p := Replica{Name: name}
	if err := json.Unmarshal(value, &p); err != nil {
		return p, errors.New("malformed report of a replica")
	}
	return p, nil
}

// Report stores the report of a replica.
func (s Store) Report(ctx context.Context, p Replica) error {
	value, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.Update(ctx, replicaRows+p.Name, func([]byte) ([]byte, error) { return value, nil })
}

// Replicas returns all reports that are not too old.
func (s Store) Replicas(ctx context.Context, now time.Time) (all []Replica, err error) {
	err = s.each(ctx, func(p Replica) {
		if now.Sub(p.Time) < forgotten {
			all = append(all, p)
		}
	})
	return all, err
}

func (s Store) each(ctx context.Context, do func(Replica)) error {
	return s.Visit(ctx, tokens.Live, func(key string, value []byte) error {
		name, found := strings.CutPrefix(key, replicaRows)
		if !found {
			return nil
		}
		p, err := decodeReplica(name, value)
		if err == nil {
			do(p)
		}
		return err
	})
}

// Forget deletes the reports that are too old.
func (s Store) Forget(ctx context.Context, now time.Time) error {
	var names []string
	if err := s.each(ctx, func(p Replica) {
		if now.Sub(p.Time) >= forgotten {
			names = append(names, p.Name)
		}
	}); err != nil {
		return err
	}
	for _, name := range names {
		if err := s.Update(ctx, replicaRows+name, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return err
		}
	}
	return nil
}

// Cannot returns why a rotation with a stored key cannot begin: the running replicas that cannot change their CA
// files.
func Cannot(all []Replica, now time.Time) (behind []rotation.Behind) {
	for _, p := range all {
		if p.Fixed != "" && now.Sub(p.Time) < off {
			behind = append(behind, Fixed(p.Name, p.Fixed))
		}
	}
	return behind
}

// Fixed returns a Behind for the replica node, which cannot change its CA files. node is empty if there are no
// replicas.
func Fixed(node, why string) rotation.Behind {
	return rotation.Behind{
		Observation: rotation.Observation{Kind: rotation.KindServer, Name: node, Node: node, Next: On(node, "correct this, or bring your own CA without its key: docs/ca.md#bring-your-own-ca")},
		Why:         On(node, why),
	}
}

// On adds the name of a replica to a text about it.
func On(node, text string) string {
	if node == "" {
		return text
	}
	return "on " + node + ": " + text
}

// Observe returns what the reports of replicas show about a rotation in progress. It ignores replicas that are off,
// because they follow the rotation when they start.
func Observe(r rotation.Rotation, all []Replica, now time.Time) (seen []rotation.Observation) {
	for _, p := range all {
		o := rotation.Observation{Kind: rotation.KindServer, Name: p.Name, Node: p.Name}
		switch {
		case now.Sub(p.Time) >= off:
			o.Off, o.Unseen = true, "its last report is from "+p.Time.UTC().Format(time.RFC3339)
			seen = append(seen, o)
		case p.ID != r.ID || !p.Since.Equal(r.Since):
			o.Unseen, o.Next = fmt.Sprintf("it does not follow stage %s yet", r.Stage), "kubejoin ca status"
			seen = append(seen, o)
		case len(p.Seen) == 0:
			o.Unseen, o.Next = "its report is empty", "kubejoin ca status"
			seen = append(seen, o)
		default:
			for _, s := range p.Seen {
				s.Node, s.Off, s.Optional = p.Name, false, false
				seen = append(seen, s)
			}
		}
	}
	return seen
}

package tokens

import (
	"strings"
	"time"
)

// MachineTTL is the lifetime of a token that a [Machine] gets.
const MachineTTL = 15 * time.Minute

// CloneAfter is how long another machine must prove the key of a Node that is Ready before kubejoin reports a clone.
const CloneAfter = 2 * time.Minute

const (
	// clonePeriod is how long after a refused proof the next one still counts as the same period. A granted proof ends a period.
	clonePeriod = time.Hour
	// cloneRecent is how long kubejoin reports a clone after its last proof. It exceeds the longest pause of the join script.
	cloneRecent = 5 * time.Minute
)

// A Machine is a machine that may join under the name of its claim, if it proves a key of its own. It holds the name: only the
// last token that kubejoin gave this machine can take the name. The zero Machine means that the name has no machine.
//
// A Machine stays if its claim is released. Only a person removes it.
type Machine struct {
	// Key is the public key, as in [Claim.Keys], or its words as [Words] returns them. The first proof replaces the words.
	Key string `json:"key"`
	// By is the user who added the machine, and Added is when, in whole seconds.
	By    string    `json:"by,omitempty"`
	Added time.Time `json:"added"`
	// Expires is until when the machine can prove its key, in whole seconds; zero means that it never expires.
	Expires time.Time `json:"expires,omitzero"`
	// The other limits are those of each token that the machine gets, as in [Limits].
	CertificateDuration time.Duration  `json:"certificateDuration,omitempty"` // nanoseconds
	Rejoin              string         `json:"rejoin,omitempty"`
	Role                string         `json:"role,omitempty"`
	Node                NodeProperties `json:"node,omitzero"`

	// TokenID and TokenUID identify the last token that the machine got.
	TokenID  string `json:"tokenID,omitempty"`
	TokenUID string `json:"tokenUID,omitempty"`
	// Replace lets the machine replace any Node that is not Ready. Without it, the machine replaces no Node before it has Joined.
	Replace bool `json:"replace,omitempty"`
	// Joined is set once a token of the machine has claimed the name, and is never cleared.
	Joined bool `json:"joined,omitempty"`
	// Revoked means that kubejoin refuses the key, because the node was revoked.
	Revoked bool `json:"revoked,omitempty"`
	// RefusedSince and RefusedLast are the first and the last time, in whole seconds, when kubejoin refused proofs because the
	// Node was Ready. The last refusal may be up to a minute later than RefusedLast.
	RefusedSince time.Time `json:"refusedSince,omitzero"`
	RefusedLast  time.Time `json:"refusedLast,omitzero"`
}

// MachineOf returns the Machine that gets tokens with the limits of r, and expires with r.
func MachineOf(key, by string, r Record, now time.Time) Machine {
	l := r.Limits
	return Machine{
		Key: key, By: by, Added: now.UTC().Truncate(time.Second), Expires: r.Expires.UTC().Truncate(time.Second),
		CertificateDuration: l.CertificateDuration, Rejoin: l.Rejoin, Role: l.Role, Node: l.Node,
	}
}

// Record returns a new token for the machine, which allows only its name. replaces is the Node that has the name; zero if there is none.
func (m Machine) Record(name string, replaces NodeRef, now time.Time) Record {
	ttl := MachineTTL
	if left := m.Expires.Sub(now); !m.Expires.IsZero() && left < ttl {
		ttl = left
	}
	r := NewRecord(Generate(), ttl, now)
	r.Description = "for the machine of node " + name
	r.Limits = m.limits(name)
	if replaces != (NodeRef{}) {
		r.Limits.MaxNodes, r.Limits.NodeNames, r.Limits.Replaces = 0, nil, replaces
	}
	return r
}

// limits returns the limits of a token for the machine, if this token replaces no Node.
func (m Machine) limits(name string) Limits {
	return Limits{MaxNodes: 1, NodeNames: []string{name}, CertificateDuration: m.CertificateDuration, Rejoin: m.Rejoin, Role: m.Role, Node: m.Node}
}

// IsZero reports whether m is the zero Machine.
func (m Machine) IsZero() bool { return m.Key == "" }

// HasWordsOf reports whether the key of the machine has the words of key.
func (m Machine) HasWordsOf(key string) bool {
	words := Words(key)
	return words != "" && (m.Key == words || Words(m.Key) == words)
}

// HasKey reports whether key is the key of the machine. If the machine has only words, HasKey compares the words.
func (m Machine) HasKey(key string) bool { return !m.IsZero() && (m.Key == key || m.Key == Words(key)) }

// Expired reports whether the machine can no longer prove its key.
func (m Machine) Expired(now time.Time) bool { return !m.Expires.IsZero() && !now.Before(m.Expires) }

// Refused returns m after a proof was refused at now because the Node is Ready.
func (m Machine) Refused(now time.Time) Machine {
	now = now.UTC().Truncate(time.Second)
	switch gap := now.Sub(m.RefusedLast); {
	case gap > clonePeriod || gap < 0:
		m.RefusedSince, m.RefusedLast = now, now
	case gap >= time.Minute:
		m.RefusedLast = now
	}
	return m
}

// Cloned reports whether, at now, another machine has proven the key of a Node that is Ready for at least [CloneAfter].
func (m Machine) Cloned(now time.Time) bool {
	return m.RefusedLast.Sub(m.RefusedSince) >= CloneAfter && now.Sub(m.RefusedLast) <= cloneRecent
}

// Same reports whether m and n allow the same machine with the same limits. It ignores their proofs, and who added them when.
func (m Machine) Same(n Machine) bool {
	return (m.Key == n.Key || m.Key == Words(n.Key) || n.Key == Words(m.Key)) && m.Expires.Equal(n.Expires) &&
		m.Replace == n.Replace && m.CertificateDuration == n.CertificateDuration && m.Rejoin == n.Rejoin && m.Role == n.Role && m.Node == n.Node
}

func (m Machine) equal(n Machine) bool {
	return m.Key == n.Key && m.By == n.By && m.Joined == n.Joined && m.Added.Equal(n.Added) && m.Same(n) && m.TokenID == n.TokenID && m.TokenUID == n.TokenUID &&
		m.Revoked == n.Revoked && m.RefusedSince.Equal(n.RefusedSince) && m.RefusedLast.Equal(n.RefusedLast)
}

func (m Machine) check(node string) error {
	if m.IsZero() {
		if !m.equal(Machine{}) {
			return fieldErrorf("machine", "no key given")
		}
		return nil
	}
	if err := CheckMachineKey(m.Key); err != nil {
		return err
	}
	if err := m.limits(node).Check(); err != nil {
		return &FieldError{"machine", err}
	}
	if !isShortWord(m.TokenUID) || (m.TokenID == "") != (m.TokenUID == "") || m.TokenID != "" && CheckID(m.TokenID) != nil || len(m.By) > MaxMachineBy {
		return fieldErrorf("machine", "want a token ID, a UID of at most %d bytes, and a user of at most %d", maxWord, MaxMachineBy)
	}
	for _, at := range []time.Time{m.Added, m.Expires, m.RefusedSince, m.RefusedLast} {
		if year := at.UTC().Year(); !at.IsZero() && (year < 1970 || year > 9999 || at.Nanosecond() != 0) {
			return fieldErrorf("machine", "want whole seconds of the years 1970 to 9999")
		}
	}
	return nil
}

// MaxMachineBy is the maximum length of [Machine.By], in bytes.
const MaxMachineBy = 256

// CheckMachineKey returns an error if a key is neither a key ID nor the words of one.
func CheckMachineKey(key string) error {
	hex, found := strings.CutPrefix(key, "sha256:")
	if found && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" || IsWords(key) {
		return nil
	}
	return fieldErrorf("key", "want sha256: and 64 lower-case hexadecimal digits, or the four words of a fingerprint")
}

package tokens_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a token that exceeds the limits of its machine, or that expires after the machine.
func TestTokenHasLimitsOfMachine(t *testing.T) {
	spec := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	spec.Limits = tokens.Limits{CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny, Role: "control-plane", Node: tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule", ReadyAfter: "1h"}}
	m := tokens.MachineOf("lusab-babad-gutih-tugad", "ada", spec, time.Now())
	for left, ttl := range map[time.Duration]time.Duration{time.Hour: tokens.MachineTTL, time.Minute: time.Minute} {
		want := spec.Limits
		want.MaxNodes, want.NodeNames = 1, []string{"w"}
		if r := m.Record("w", tokens.NodeRef{}, m.Expires.Add(-left)); !r.Limits.Equal(want) || !r.Expires.Equal(m.Expires.Add(ttl-left)) {
			t.Errorf("%s left: got %+v until %s, want %+v for %s", left, r.Limits, r.Expires, want, ttl)
		}
	}
}

// Each field of a machine is in its claim. Catches a field whose change no store would write.
func TestMachineComparesEachField(t *testing.T) {
	const key = "lusab-babad-gutih-tugad"
	ignored := []string{"By", "Added", "TokenID", "TokenUID", "Joined", "Revoked", "RefusedSince", "RefusedLast"} // by Same
	for i, field := range reflect.VisibleFields(reflect.TypeFor[tokens.Machine]()) {
		m := tokens.Machine{Key: key}
		switch v := reflect.ValueOf(&m).Elem().Field(i).Addr().Interface().(type) {
		case *string:
			*v = "other"
		case *bool:
			*v = true
		case *time.Time:
			*v = time.Now()
		case *time.Duration:
			*v = time.Hour
		case *tokens.NodeProperties:
			v.Labels = "a=b"
		default:
			t.Fatalf("%s has a new type", field.Name)
		}
		if (tokens.Claim{Machine: m}).Equal(tokens.Claim{Machine: tokens.Machine{Key: key}}) {
			t.Errorf("machines that differ in %s are equal", field.Name)
		}
		if got, want := m.Same(tokens.Machine{Key: key}), slices.Contains(ignored, field.Name); got != want {
			t.Errorf("machines that differ in %s: got Same %t, want %t", field.Name, got, want)
		}
	}
}

// Catches a malformed key that has the words of a name without a machine.
func TestNoMachineHasNoKey(t *testing.T) {
	for _, key := range []string{"", "sha256:00", "lusab-babad-gutih-tugad"} {
		if (tokens.Machine{}).HasKey(key) || (tokens.Machine{}).HasWordsOf(key) {
			t.Errorf("no machine has the key %q", key)
		}
	}
}

func TestClaimChecksItsMachine(t *testing.T) {
	whole := tokens.Machine{Key: "lusab-babad-gutih-tugad", Added: time.Unix(1e9, 0), Expires: time.Unix(2e9, 0), TokenID: "abcdef", TokenUID: "uid", By: strings.Repeat("a", tokens.MaxMachineBy)}
	must.OK(t, tokens.Claim{Node: "w", Machine: whole}.Check())
	for about, change := range map[string]func(*tokens.Machine){
		"no key":      func(m *tokens.Machine) { m.Key = "" },
		"key":         func(m *tokens.Machine) { m.Key = "sha256:00" },
		"role":        func(m *tokens.Machine) { m.Role = "x" },
		"token ID":    func(m *tokens.Machine) { m.TokenID = "x" },
		"only an ID":  func(m *tokens.Machine) { m.TokenUID = "" },
		"token UID":   func(m *tokens.Machine) { m.TokenUID = strings.Repeat("a", 1000) },
		"user":        func(m *tokens.Machine) { m.By += "a" },
		"nanoseconds": func(m *tokens.Machine) { m.Added = time.Unix(1e9, 1) },
		"early":       func(m *tokens.Machine) { m.RefusedSince = time.Unix(-1e9, 0) },
		"late":        func(m *tokens.Machine) { m.Expires = time.Unix(1e12, 0) },
	} {
		m := whole
		change(&m)
		if err := (tokens.Claim{Node: "w", Machine: m}).Check(); err == nil {
			t.Errorf("%s: a claim with %+v is valid", about, m)
		}
	}
}

// Catches one proof of a machine whose Node was still Ready that counts as a copy of its key two minutes later.
func TestOneProofIsNoClone(t *testing.T) {
	now := time.Now()
	m := tokens.Machine{}.Refused(now)
	for after := range 8 {
		if m.Cloned(now.Add(time.Duration(after) * time.Minute)) {
			t.Errorf("%d min after one proof: a clone is reported", after)
		}
	}
	if again := m.Refused(now.Add(tokens.CloneAfter)); !again.Cloned(now.Add(tokens.CloneAfter)) {
		t.Errorf("got %+v, want a clone after two minutes of proofs", again)
	}
}

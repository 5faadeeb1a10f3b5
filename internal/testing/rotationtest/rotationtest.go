// Package rotationtest is the conformance suite for implementations of [rotation.Store] and [rotation.Keys]. Every
// implementation should call [Run] in a test. [Memory] is an implementation for tests of their callers.
package rotationtest

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A Backend stores rotations and their keys.
type Backend interface {
	rotation.Store
	rotation.Keys
}

// Run runs the suite. Each test calls open once. open must return an empty backend that stays usable until the test ends.
// cas are the CAs whose rotations it stores.
func Run(t *testing.T, cas []rotation.CA, open func(t *testing.T) Backend) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, rotation.CA, Backend)
	}{
		{"Zero", testZero},
		{"KeepsFields", testKeepsFields},
		{"Conflict", testConflict},
		{"PutAtOnce", testPutAtOnce},
		{"RefusesInvalid", testRefusesInvalid},
		{"Keys", testKeys},
		{"Canceled", testCanceled},
	} {
		for _, ca := range cas {
			t.Run(test.name+"/"+string(ca), func(t *testing.T) { test.run(t, ca, open(t)) })
		}
	}
	if len(cas) > 1 {
		t.Run("CAsAreIndependent", func(t *testing.T) { testIndependent(t, cas, open(t)) })
	}
}

// New returns a rotation from one new CA to another, with a cross certificate.
func New(t testing.TB, ca rotation.CA) rotation.Rotation {
	t.Helper()
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	cross := Cross(t, old, fresh.Leaf)
	return must.Value(rotation.New(ca, []*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, cross, time.Now()))(t)
}

// Cross returns a cross certificate: the CA old has signed the key of the CA fresh.
func Cross(t testing.TB, old *tls.Certificate, fresh *x509.Certificate) *x509.Certificate {
	t.Helper()
	template := *fresh
	template.AuthorityKeyId = old.Leaf.SubjectKeyId
	der := must.Value(x509.CreateCertificate(nil, &template, old.Leaf, fresh.PublicKey, old.PrivateKey))(t)
	return must.Value(x509.ParseCertificate(der))(t)
}

func get(t *testing.T, s rotation.Store, ca rotation.CA) (rotation.Rotation, string) {
	t.Helper()
	r, version, err := s.Get(t.Context(), ca)
	must.OK(t, err)
	return r, version
}

func testZero(t *testing.T, ca rotation.CA, s Backend) {
	if r, _ := get(t, s, ca); !reflect.DeepEqual(r, rotation.Rotation{}) {
		t.Errorf("got %+v, want no rotation", r)
	}
	for _, id := range []string{"", "0123456789abcdef"} {
		if found, err := s.KeepKey(t.Context(), ca, id); found || err != nil {
			t.Errorf("key %q: got %t, %v, want none", id, found, err)
		}
	}
}

func testKeepsFields(t *testing.T, ca rotation.CA, s Backend) {
	r := New(t, ca)
	r.HasKey, r.Aborting, r.Ended, r.LeftBehind = true, true, r.Since.Add(time.Hour), []string{"worker-1", strings.Repeat("a", 253)}
	_, version := get(t, s, ca)
	must.OK(t, s.Put(t.Context(), r, version))
	if got, _ := get(t, s, ca); !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, want %+v", got, r)
	}
}

func testConflict(t *testing.T, ca rotation.CA, s Backend) {
	first, second := New(t, ca), New(t, ca)
	_, none := get(t, s, ca)
	must.OK(t, s.Put(t.Context(), first, none))
	if err := s.Put(t.Context(), second, none); !errors.Is(err, rotation.ErrConflict) {
		t.Errorf("write over a rotation as the first one: got %v, want %v", err, rotation.ErrConflict)
	}
	_, version := get(t, s, ca)
	first.Stage = rotation.Trust
	must.OK(t, s.Put(t.Context(), first, version))
	if err := s.Put(t.Context(), second, version); !errors.Is(err, rotation.ErrConflict) {
		t.Errorf("write with an old version: got %v, want %v", err, rotation.ErrConflict)
	}
	if got, _ := get(t, s, ca); !reflect.DeepEqual(got, first) {
		t.Errorf("got %+v, want the first one", got)
	}
}

// testPutAtOnce catches a write that is lost because of a concurrent write.
func testPutAtOnce(t *testing.T, ca rotation.CA, s Backend) {
	_, version := get(t, s, ca)
	const writers = 6
	var mu sync.Mutex
	var wrote []string
	var group sync.WaitGroup
	for range writers {
		r := New(t, ca)
		group.Go(func() {
			switch err := s.Put(t.Context(), r, version); {
			case err == nil:
				mu.Lock()
				wrote = append(wrote, r.ID)
				mu.Unlock()
			case !errors.Is(err, rotation.ErrConflict):
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got, _ := get(t, s, ca); len(wrote) != 1 || got.ID != wrote[0] {
		t.Errorf("%q were written and %s is stored, want one of %d", wrote, got.ID, writers)
	}
}

func testRefusesInvalid(t *testing.T, ca rotation.CA, s Backend) {
	_, version := get(t, s, ca)
	large := New(t, ca)
	large.Old = slices.Repeat(large.Old, 30)
	stage := New(t, ca)
	stage.Stage = "other"
	for name, r := range map[string]rotation.Rotation{"too large": large, "stage": stage, "zero": {CA: ca}} {
		if err := s.Put(t.Context(), r, version); err == nil || errors.Is(err, rotation.ErrConflict) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
	if r, _ := get(t, s, ca); r.ID != "" {
		t.Errorf("got %+v, want no rotation", r)
	}
}

func testKeys(t *testing.T, ca rotation.CA, s Backend) {
	const a, b = "00000000000000aa", "00000000000000bb"
	for _, id := range []string{a, b} {
		must.Value(s.PutKey(t.Context(), rotation.Rotation{CA: ca, ID: id}, csrtest.NewKey()))(t)
	}
	for _, step := range []struct {
		id   string
		want bool
	}{{b, true}, {b, true}, {a, false}, {b, false}} { // keeping b has deleted a, and keeping a has deleted b
		if found, err := s.KeepKey(t.Context(), ca, step.id); err != nil || found != step.want {
			t.Errorf("keep %s: got %t, %v, want %t", step.id, found, err, step.want)
		}
	}
	must.Value(s.PutKey(t.Context(), rotation.Rotation{CA: ca, ID: a}, csrtest.NewKey()))(t)
	for _, id := range []string{"", a} {
		if found, err := s.KeepKey(t.Context(), ca, id); err != nil || found {
			t.Errorf("keep %q after all were deleted: got %t, %v, want none", id, found, err)
		}
	}
}

func testCanceled(t *testing.T, ca rotation.CA, s Backend) {
	_, version := get(t, s, ca)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, getErr := s.Get(ctx, ca)
	_, keyErr := s.PutKey(ctx, rotation.Rotation{CA: ca, ID: "00000000000000aa"}, csrtest.NewKey())
	_, keepErr := s.KeepKey(ctx, ca, "")
	for name, err := range map[string]error{"Get": getErr, "Put": s.Put(ctx, New(t, ca), version), "PutKey": keyErr, "KeepKey": keepErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want %v", name, err, context.Canceled)
		}
	}
}

func testIndependent(t *testing.T, cas []rotation.CA, s Backend) {
	const id = "00000000000000aa"
	want := map[rotation.CA]string{}
	for _, ca := range cas {
		r := New(t, ca)
		want[ca] = r.ID
		_, version := get(t, s, ca)
		must.OK(t, s.Put(t.Context(), r, version))
		must.Value(s.PutKey(t.Context(), rotation.Rotation{CA: ca, ID: id}, csrtest.NewKey()))(t)
	}
	must.Value(s.KeepKey(t.Context(), cas[0], ""))(t)
	for i, ca := range cas {
		r, _ := get(t, s, ca)
		if found, err := s.KeepKey(t.Context(), ca, id); r.ID != want[ca] || err != nil || found != (i > 0) {
			t.Errorf("%s: got rotation %s and key %t, %v, want %s and %t", ca, r.ID, found, err, want[ca], i > 0)
		}
	}
}

// Memory is a Backend in memory. The zero Memory is empty. It may be used concurrently.
type Memory struct {
	// Memory calls Before before each write, with the method; its error fails the write. Memory calls After when the
	// write has taken effect; its error fails only the response. Both may be nil.
	Before, After func(method string) error

	mu     sync.Mutex
	states map[rotation.CA]string
	keys   map[rotation.CA]map[string]crypto.Signer
}

var _ Backend = (*Memory)(nil)

// write runs one write with Before and After.
func (m *Memory) write(ctx context.Context, method string, change func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.Before != nil {
		if err := m.Before(method); err != nil {
			return err
		}
	}
	m.mu.Lock()
	err := change()
	m.mu.Unlock()
	if err == nil && m.After != nil {
		err = m.After(method)
	}
	return err
}

// Get implements [rotation.Store].
func (m *Memory) Get(ctx context.Context, ca rotation.CA) (rotation.Rotation, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, found := m.states[ca]
	if err := ctx.Err(); err != nil || !found {
		return rotation.Rotation{}, "", err
	}
	r, err := rotation.Decode([]byte(data), ca)
	return r, data, err
}

// Put implements [rotation.Store].
func (m *Memory) Put(ctx context.Context, r rotation.Rotation, version string) error {
	data, err := rotation.Encode(r)
	if err != nil {
		return err
	}
	return m.write(ctx, "Put", func() error {
		if m.states[r.CA] != version {
			return fmt.Errorf("rotation of the %s CA: %w", r.CA, rotation.ErrConflict)
		}
		if m.states == nil {
			m.states = map[rotation.CA]string{}
		}
		m.states[r.CA] = string(data)
		return nil
	})
}

// PutKey implements [rotation.Keys].
func (m *Memory) PutKey(ctx context.Context, r rotation.Rotation, key crypto.Signer) (joinformat.CertificateKey, error) {
	if key == nil {
		return joinformat.CertificateKey{}, ctx.Err()
	}
	return joinformat.GenerateCertificateKey(), m.write(ctx, "PutKey", func() error {
		if m.keys == nil {
			m.keys = map[rotation.CA]map[string]crypto.Signer{}
		}
		if m.keys[r.CA] == nil {
			m.keys[r.CA] = map[string]crypto.Signer{}
		}
		m.keys[r.CA][r.ID] = key
		return nil
	})
}

// KeepKey implements [rotation.Keys].
func (m *Memory) KeepKey(ctx context.Context, ca rotation.CA, id string) (found bool, err error) {
	err = m.write(ctx, "KeepKey", func() error {
		maps.DeleteFunc(m.keys[ca], func(other string, _ crypto.Signer) bool { return other != id })
		_, found = m.keys[ca][id]
		return nil
	})
	return found, err
}

// IDs returns the IDs of the rotations whose keys are stored, sorted.
func (m *Memory) IDs(ca rotation.CA) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.keys[ca]))
}

// Key returns a stored key; nil if there is none.
func (m *Memory) Key(r rotation.Rotation) crypto.Signer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[r.CA][r.ID]
}

// PEM returns a certificate in the form that a rotation stores.
func PEM(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

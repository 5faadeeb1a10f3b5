package boltstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func open(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s := must.Value(boltstore.Open(path))(t)
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s
}

// Catches a version that a key gets twice: a caller that has read the first row would overwrite the second row.
func TestVersionsGoOnAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s, r, seen := open(t, path), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()), map[string]bool{}
	for range 3 {
		made := must.Value(s.Create(t.Context(), r))(t)
		if seen[made.Version] {
			t.Errorf("got version %s again", made.Version)
		}
		seen[made.Version] = true
		must.OK(t, s.Delete(t.Context(), made))
		must.OK(t, s.Close())
		s = open(t, path)
	}
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) tokens.Store {
		return open(t, filepath.Join(t.TempDir(), "tokens.db"))
	})
}

func TestClaims(t *testing.T) {
	storetest.RunClaims(t, func(t *testing.T) tokens.Claims {
		return open(t, filepath.Join(t.TempDir(), "tokens.db")).Claims()
	})
}

func TestCommit(t *testing.T) {
	storetest.RunCommit(t, func(t *testing.T) (tokens.Store, tokens.Claims) {
		s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
		return s, s.Claims()
	})
}

func TestRecordsSurviveReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	for range 20 {
		must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true}))(t)
	}
	before := must.Value(s.List(t.Context()))(t)
	must.OK(t, s.Close())
	_, listErr := s.List(t.Context())
	_, getErr := s.Get(t.Context(), before[0].Token.ID(), tokens.Live)
	_, createErr := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()})
	for what, err := range map[string]error{"List": listErr, "Get": getErr, "Create": createErr, "Delete": s.Delete(t.Context(), before[0])} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s after Close = %v, want an error that names the file", what, err)
		}
	}
	after := must.Value(open(t, path).List(t.Context()))(t)
	if len(before) != 20 || !slices.EqualFunc(before, after, func(a, b tokens.Record) bool {
		return a.Token == b.Token && a.UID == b.UID && a.Version == b.Version && a.Created == b.Created
	}) {
		t.Errorf("List gives\n%+v\nwhen opened again, want\n%+v", after, before)
	}
}

func TestOpenChecksFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	info := must.Value(os.Stat(path))(t)
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("got a new file with mode %04o, want 0600", got)
	}
	must.OK(t, s.Close())
	for mode, wanted := range map[os.FileMode]error{
		0o600: nil, 0o700: nil, 0o640: boltstore.ErrExposed, 0o620: boltstore.ErrExposed, 0o604: boltstore.ErrExposed,
	} {
		must.OK(t, os.Chmod(path, mode))
		s, err := boltstore.Open(path)
		if !errors.Is(err, wanted) {
			t.Errorf("Open with mode %04o = %v, want %v", mode, err, wanted)
		}
		if err == nil {
			must.OK(t, s.Close())
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("the error %q does not name the file", err)
		}
	}
}

func TestOpenRefusesOtherFileTypes(t *testing.T) {
	dir := t.TempDir()
	for what, path := range map[string]string{"folder": dir, "missing folder": filepath.Join(dir, "no", "tokens.db")} {
		if _, err := boltstore.Open(path); err == nil || strings.Count(err.Error(), path) != 1 {
			t.Errorf("Open of a %s = %v, want an error that names it once", what, err)
		}
	}
}

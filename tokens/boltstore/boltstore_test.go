package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func open(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // some tests have closed it
	return s
}

// Catches a version that a key has twice: a caller that read the first row would overwrite the second.
func TestVersionsGoOnAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s, r, seen := open(t, path), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()), map[string]bool{}
	for range 3 {
		made, err := s.Create(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if seen[made.Version] {
			t.Errorf("got version %s again", made.Version)
		}
		seen[made.Version] = true
		if err := s.Delete(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
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
		if _, err := s.Create(t.Context(), tokens.Record{Token: tokens.Generate(), Signing: true}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, listErr := s.List(t.Context())
	_, getErr := s.Get(t.Context(), before[0].Token.ID())
	_, createErr := s.Create(t.Context(), tokens.Record{Token: tokens.Generate()})
	for what, err := range map[string]error{"List": listErr, "Get": getErr, "Create": createErr, "Delete": s.Delete(t.Context(), before[0])} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s after Close = %v, want an error that names the file", what, err)
		}
	}
	after, err := open(t, path).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != 20 || !slices.EqualFunc(before, after, func(a, b tokens.Record) bool {
		return a.Token == b.Token && a.UID == b.UID && a.Version == b.Version && a.Created == b.Created
	}) {
		t.Errorf("List gives\n%+v\nwhen opened again, want\n%+v", after, before)
	}
}

func TestOpenChecksFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("got a new file with mode %04o, want 0600", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for mode, wanted := range map[os.FileMode]error{
		0o600: nil, 0o700: nil, 0o640: boltstore.ErrExposed, 0o620: boltstore.ErrExposed, 0o604: boltstore.ErrExposed,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		s, err := boltstore.Open(path)
		if !errors.Is(err, wanted) {
			t.Errorf("Open with mode %04o = %v, want %v", mode, err, wanted)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
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

func TestConcurrentCreates(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "tokens.db"))
	var wg sync.WaitGroup
	for lane := range 16 {
		wg.Go(func() {
			for i := range 25 {
				token, err := tokens.New(fmt.Sprintf("%03d%03d", lane, i), tokens.Generate().RevealSecret()) // random IDs may collide
				if err != nil {
					t.Error(err)
					continue
				}
				r, err := s.Create(t.Context(), tokens.Record{Token: token})
				if err != nil {
					t.Errorf("Create: %v", err)
					continue
				}
				if _, err := s.Get(t.Context(), r.Token.ID()); err != nil {
					t.Errorf("Get of what was just created: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := s.List(t.Context()); err != nil || len(all) != 400 {
		t.Errorf("List gives %d records and error %v, want 400", len(all), err)
	}
}

func BenchmarkCreate(b *testing.B) {
	for _, workers := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := open(b, filepath.Join(b.TempDir(), "tokens.db"))
			work := make(chan struct{})
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range work {
						// Random IDs may collide: among 70,000, two equal ones are likely.
						if _, err := s.Create(context.Background(), tokens.Record{Token: tokens.Generate()}); err != nil && !errors.Is(err, tokens.ErrExists) {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}

func BenchmarkList12000(b *testing.B) {
	s := open(b, filepath.Join(b.TempDir(), "tokens.db"))
	var wg sync.WaitGroup
	for range 120 {
		wg.Go(func() {
			for range 100 {
				if _, err := s.Create(context.Background(), tokens.Record{
					Token: tokens.Generate(), Expires: time.Now().Add(time.Hour), Signing: true, Authentication: true,
					Groups: []string{tokens.DefaultGroup},
				}); err != nil && !errors.Is(err, tokens.ErrExists) {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for b.Loop() {
		if _, err := s.List(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

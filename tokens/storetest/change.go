package storetest

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func testUpdate(t *testing.T, s tokens.Store) {
	other := create(t, s, sample())
	r := create(t, s, sample())
	want := r
	want.Expires = r.Expires.Add(time.Hour)
	want.Signing = false
	want.Groups = []string{"system:bootstrappers:c"}
	want.Description = ""
	want.Limits = tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour}
	want.Nodes = []string{"worker-2", "worker-1", "worker-3"}
	got, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error {
		wantSame(t, "Update", *c, r)
		c.Expires, c.Signing, c.Groups, c.Description = want.Expires, want.Signing, want.Groups, want.Description
		c.Limits, c.Nodes = want.Limits, want.Nodes
		c.Version = "the store's affair"
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if got.Version == r.Version || got.Version == "the store's affair" {
		t.Errorf("Update gives Version %q after %q, want a new one of the store", got.Version, r.Version)
	}
	want.Version = got.Version
	wantSame(t, "Update", got, want)
	wantSame(t, "Get", get(t, s, r.Token.ID()), want)
	wantList(t, s, want, other)

	_, err = s.Update(t.Context(), tokens.Generate().ID(), func(*tokens.Record) error {
		t.Error("Update of an unknown ID called change")
		return nil
	})
	wantError(t, "Update of an unknown ID", err, tokens.ErrNotFound)
}

// testDisable catches a token that works after its revocation has begun, and one that loses what a retry needs.
func testDisable(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	for range 2 { // a retry
		if _, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { c.Disable(); return nil }); err != nil {
			t.Fatalf("Update: %v", err)
		}
	}
	got := get(t, s, r.Token.ID())
	want := r
	want.Signing, want.Authentication, want.Groups, want.Version = false, false, nil, got.Version
	wantSame(t, "Get", got, want)
}

func testUpdateFails(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	enough := errors.New("enough")
	_, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error {
		c.Description = "changed"
		c.Groups[0], c.Nodes[0], c.Limits.NodeNames[0] = "system:bootstrappers:changed", "changed", "changed"
		return enough
	})
	if err != enough { //nolint:errorlint // as it is
		t.Errorf("Update = %v, want the error of change as it is", err)
	}
	wantSame(t, "Get", get(t, s, r.Token.ID()), r)
}

func testUpdateRefuses(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	for name, change := range map[string]func(*tokens.Record){
		"Token":       func(r *tokens.Record) { r.Token = tokens.Generate() },
		"Created":     func(r *tokens.Record) { r.Created = r.Created.Add(time.Second) },
		"UID":         func(r *tokens.Record) { r.UID = "another" },
		"bad group":   func(r *tokens.Record) { r.Groups = append(r.Groups, "system:masters") },
		"description": func(r *tokens.Record) { r.Description = "\x00" },
		"problem":     func(r *tokens.Record) { r.Problem = errors.New("new") },
		"limits":      func(r *tokens.Record) { r.Limits.MaxNodes = -1 },
		"no limits":   func(r *tokens.Record) { r.Limits.Problem = errors.New("new") },
		"nodes":       func(r *tokens.Record) { r.Nodes = append(r.Nodes, "a b") },
	} {
		if got, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error { change(c); return nil }); err == nil {
			t.Errorf("Update of %s gives %+v, want an error", name, got)
		}
	}
	wantSame(t, "Get", get(t, s, r.Token.ID()), r)
}

// testUpdateStartsOver updates and replaces the record while change runs.
func testUpdateStartsOver(t *testing.T, s tokens.Store) {
	r := create(t, s, sample())
	id := r.Token.ID()
	calls := 0
	got, err := s.Update(t.Context(), id, func(c *tokens.Record) error {
		calls++
		switch calls {
		case 1:
			if _, err := s.Update(t.Context(), id, func(c *tokens.Record) error { c.Signing = false; return nil }); err != nil {
				t.Errorf("Update within Update: %v", err)
			}
		case 2:
			if c.Signing {
				t.Error("the second try got the old record, want the concurrent change")
			}
			if err := s.Delete(t.Context(), *c); err != nil {
				t.Errorf("Delete within Update: %v", err)
			}
			create(t, s, sampleOf(r.Token))
		}
		c.Description = "try " + strconv.Itoa(calls)
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if calls != 3 || got.UID == r.UID || got.Description != "try 3" || !got.Signing {
		t.Errorf("got %+[2]v after %[1]d tries of Update, want the new record with the change of the third try", calls, got)
	}
	deleted := sync.OnceFunc(func() { // the first record may be one from the cache
		if err := s.Delete(t.Context(), get(t, s, id)); err != nil {
			t.Errorf("Delete within Update: %v", err)
		}
	})
	_, err = s.Update(t.Context(), id, func(c *tokens.Record) error {
		deleted()
		c.Description = "too late"
		return nil
	})
	wantError(t, "Update of a record that is deleted meanwhile", err, tokens.ErrNotFound)
}

func sampleOf(token tokens.Token) tokens.Record {
	r := sample()
	r.Token = token
	return r
}

func testUpdateAtOnce(t *testing.T, s tokens.Store) {
	const workers, each = 8, 5
	r := sample()
	r.Description = "0"
	r = create(t, s, r)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				_, err := s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error {
					n, err := strconv.Atoi(c.Description)
					c.Description = strconv.Itoa(n + 1)
					return err
				})
				if err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := get(t, s, r.Token.ID()).Description, strconv.Itoa(workers*each); got != want {
		t.Errorf("after %s concurrent increments: got count %s", want, got)
	}
}

func testDelete(t *testing.T, s tokens.Store) {
	other := create(t, s, sample())
	r := create(t, s, sample())
	if err := s.Delete(t.Context(), r); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	_, err := s.Get(t.Context(), r.Token.ID())
	wantError(t, "Get", err, tokens.ErrNotFound)
	wantError(t, "Delete again", s.Delete(t.Context(), r), tokens.ErrNotFound)
	wantList(t, s, other)

	again := create(t, s, r)
	if again.UID == r.UID {
		t.Error("got the old UID for a token that was created again, want a new one")
	}
	wantList(t, s, again, other)
}

func testDeleteOther(t *testing.T, s tokens.Store) {
	first := create(t, s, sample())
	renewed, err := s.Update(t.Context(), first.Token.ID(), func(c *tokens.Record) error {
		c.Expires = c.Expires.Add(time.Hour)
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantError(t, "Delete of the version before", s.Delete(t.Context(), first), tokens.ErrConflict)
	wantSame(t, "Get", get(t, s, first.Token.ID()), renewed)

	blank := renewed
	blank.UID, blank.Version = "", ""
	wantError(t, "Delete without UID and Version", s.Delete(t.Context(), blank), tokens.ErrConflict)
	wantSame(t, "Get", get(t, s, first.Token.ID()), renewed)

	if err := s.Delete(t.Context(), renewed); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	again := create(t, s, first)
	wantError(t, "Delete of the token before", s.Delete(t.Context(), first), tokens.ErrConflict)
	wantError(t, "Delete of the token before", s.Delete(t.Context(), renewed), tokens.ErrConflict)
	disguised := renewed
	disguised.Version = again.Version
	wantError(t, "Delete by another UID", s.Delete(t.Context(), disguised), tokens.ErrConflict)
	wantSame(t, "Get", get(t, s, first.Token.ID()), again)
}

// testDeleteAtOnce runs a delete and an update concurrently. One must succeed, and the other must fail.
func testDeleteAtOnce(t *testing.T, s tokens.Store) {
	for range 10 {
		r := create(t, s, sample())
		var wg sync.WaitGroup
		var deleted, updated error
		wg.Go(func() { deleted = s.Delete(t.Context(), r) })
		wg.Go(func() {
			_, updated = s.Update(t.Context(), r.Token.ID(), func(c *tokens.Record) error {
				c.Description = "renewed"
				return nil
			})
		})
		wg.Wait()
		_, found := s.Get(t.Context(), r.Token.ID())
		switch {
		case deleted == nil:
			wantError(t, "Update", updated, tokens.ErrNotFound)
			wantError(t, "Get", found, tokens.ErrNotFound)
		case updated == nil:
			wantError(t, "Delete", deleted, tokens.ErrConflict)
			if found != nil {
				t.Errorf("Get of the updated token: %v", found)
			}
		default:
			t.Errorf("Delete = %v and Update = %v, want one of them to succeed", deleted, updated)
		}
	}
}

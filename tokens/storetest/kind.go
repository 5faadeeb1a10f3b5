package storetest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// A kind has the calls that stores of tokens and stores of claims have in common. The tests in this file run for both.
type kind[T any] struct {
	// sample returns a new value with all fields set, and blank one with as few as possible. keyed returns a sample with a
	// key: a token ID or a node name.
	sample, blank func() T
	keyed         func(key string) T
	key           func(T) string
	// keys are keys that List must sort.
	keys   []string
	stamps func(*T) (uid, version *string, created *time.Time)
	// text is a field that the tests change. alter changes most fields. spoil changes what slices, maps and pointers in
	// fields refer to.
	text  func(*T) *string
	alter func(*T)
	spoil func(T)
	clone func(T) T
	same  func(a, b T) bool
	// stored returns a value in the form in which Get returns it. assign copies all fields that Update may change.
	stored func(T) T
	assign func(to *T, from T)
	// fields set a field to an extreme but valid value. wrong break some rules of Check; the test of Check has all rules.
	// fixed change fields that Update must refuse to change.
	fields, wrong, fixed map[string]func(*T)
	// shows waits until the lists and caches show these values and no others.
	shows func(*testing.T, ...T)
	reads map[string]func(context.Context) error

	// create fails with exists if a value has the key, and delete fails with gone if no value has the key. Delete of a
	// token also compares the UID. Commit of a claim need not, because no two claims have the same Version.
	exists, gone error
	comparesUID  bool

	read   func(context.Context, string, tokens.Read) (T, error)
	list   func(context.Context) ([]T, error)
	create func(context.Context, T) (T, error)
	update func(context.Context, string, func(*T) error) (T, error)
	delete func(context.Context, T) error
	watch  func(context.Context) <-chan struct{}
}

// run runs the tests of a kind. Each test calls open once.
func run[T any](t *testing.T, open func(*testing.T) kind[T]) {
	for name, test := range map[string]func(kind[T], *testing.T){
		"Create": kind[T].testCreate, "CreateExists": kind[T].testCreateExists, "CreateRefuses": kind[T].testCreateRefuses,
		"CreateAtOnce": kind[T].testCreateAtOnce, "KeepsFields": kind[T].testKeepsFields, "List": kind[T].testList,
		"Update": kind[T].testUpdate, "UpdateFails": kind[T].testUpdateFails, "UpdateRefuses": kind[T].testUpdateRefuses,
		"UpdateStartsOver": kind[T].testUpdateStartsOver, "UpdateAtOnce": kind[T].testUpdateAtOnce, "Delete": kind[T].testDelete,
		"DeleteOther": kind[T].testDeleteOther, "DeleteAtOnce": kind[T].testDeleteAtOnce, "Copies": kind[T].testCopies,
		"Canceled": kind[T].testCanceled, "Watch": kind[T].testWatch, "WatchEnds": kind[T].testWatchEnds,
	} {
		t.Run(name, func(t *testing.T) { test(open(t), t) })
	}
}

func (k kind[T]) uid(v T) string          { uid, _, _ := k.stamps(&v); return *uid }
func (k kind[T]) version(v T) string      { _, version, _ := k.stamps(&v); return *version }
func (k kind[T]) created(v T) time.Time   { _, _, created := k.stamps(&v); return *created }
func (k kind[T]) with(v T, text string) T { v = k.clone(v); *k.text(&v) = text; return v }
func (k kind[T]) textOf(v T) string       { return *k.text(&v) }
func (k kind[T]) stamp(v T, uid, version string, created time.Time) T {
	u, v2, c := k.stamps(&v)
	*u, *v2, *c = uid, version, created
	return v
}

func (k kind[T]) mustCreate(t *testing.T, v T) T {
	t.Helper()
	got, err := k.create(t.Context(), v)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return got
}

// mustUpdate sets the text of a value.
func (k kind[T]) mustUpdate(t *testing.T, key, text string) T {
	t.Helper()
	got, err := k.update(t.Context(), key, func(v *T) error { *k.text(v) = text; return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	return got
}

func (k kind[T]) wantSame(t *testing.T, what string, got, want T) {
	t.Helper()
	if !k.same(got, want) {
		t.Errorf("%s gives\n%+v\nwant\n%+v", what, got, want)
	}
}

// wantStored checks that Get returns a value.
func (k kind[T]) wantStored(t *testing.T, when string, want T) {
	t.Helper()
	got, err := k.read(t.Context(), k.key(want), tokens.Live)
	if err != nil {
		t.Fatalf("Get %s: %v", when, err)
	}
	k.wantSame(t, "Get "+when, got, want)
}

func (k kind[T]) testCreate(t *testing.T) {
	given := k.stamp(k.sample(), "chosen", "987654321", time.Unix(1, 0))
	before := time.Now().Add(-time.Minute) // the clock of the API server may differ
	got := k.mustCreate(t, given)
	uid, version, created := k.stamps(&got)
	if *uid == "" || *uid == "chosen" || *version == "" || *version == "987654321" {
		t.Errorf("got UID %q and Version %q from Create, want the store's", *uid, *version)
	}
	if created.Before(before) || created.After(time.Now().Add(time.Minute)) {
		t.Errorf("got Created %v from Create, want now", created)
	}
	want := k.stamp(given, *uid, *version, *created)
	k.wantSame(t, "Create", got, want)
	k.wantStored(t, "after Create", want)
	k.shows(t, want)
}

func (k kind[T]) testCreateExists(t *testing.T) {
	first := k.mustCreate(t, k.sample())
	for what, v := range map[string]T{"the same": first, "another": k.keyed(k.key(first))} {
		_, err := k.create(t.Context(), v)
		wantError(t, "Create where it exists of "+what, err, k.exists)
	}
	k.wantStored(t, "after Create where it exists", first)
	k.shows(t, first)
}

func (k kind[T]) testCreateRefuses(t *testing.T) {
	for name, spoil := range k.wrong {
		v := k.sample()
		spoil(&v)
		if got, err := k.create(t.Context(), v); err == nil {
			t.Errorf("%s: Create gives %+v, want an error", name, got)
		}
	}
	k.shows(t)
}

func (k kind[T]) testCreateAtOnce(t *testing.T) {
	const n = 16
	key := k.key(k.sample())
	var wg sync.WaitGroup
	made := make(chan T, n)
	for range n {
		wg.Go(func() {
			if v, err := k.create(t.Context(), k.keyed(key)); err == nil {
				made <- v
			} else {
				wantError(t, "Create", err, k.exists)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Fatalf("%d of %d concurrent creations succeeded, want 1", len(made), n)
	}
	v := <-made
	k.wantStored(t, "after concurrent creations", v)
	k.shows(t, v)
}

func (k kind[T]) testKeepsFields(t *testing.T) {
	var all []T
	for name, set := range k.fields {
		v := k.sample()
		set(&v)
		made := k.mustCreate(t, v)
		want := k.stamp(k.stored(v), k.uid(made), k.version(made), k.created(made))
		k.wantSame(t, name+": Create", made, want)
		k.wantStored(t, name+": after Create", want)
		// Update must store the same fields as Create.
		blank := k.mustCreate(t, k.blank())
		got, err := k.update(t.Context(), k.key(blank), func(b *T) error { k.assign(b, v); return nil })
		if err != nil {
			t.Fatalf("%s: Update: %v", name, err)
		}
		updated := k.clone(blank)
		k.assign(&updated, k.stored(v))
		updated = k.stamp(updated, k.uid(blank), k.version(got), k.created(got))
		k.wantSame(t, name+": Update", got, updated)
		k.wantStored(t, name+": after Update", updated)
		all = append(all, want, updated)
	}
	k.shows(t, all...)
}

func (k kind[T]) testList(t *testing.T) {
	var all, left []T
	for _, key := range k.keys {
		all = append(all, k.mustCreate(t, k.keyed(key)))
	}
	k.shows(t, append([]T{}, all...)...)
	for i, v := range all {
		if i%3 == 0 {
			left = append(left, v)
		} else if err := k.delete(t.Context(), v); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	k.shows(t, left...)
}

func (k kind[T]) testUpdate(t *testing.T) {
	other, v := k.mustCreate(t, k.sample()), k.mustCreate(t, k.sample())
	want := k.clone(v)
	k.alter(&want)
	got, err := k.update(t.Context(), k.key(v), func(now *T) error {
		k.wantSame(t, "Update", *now, v)
		*now = k.stamp(k.clone(want), k.uid(v), "the store's affair", k.created(v))
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if version := k.version(got); version == k.version(v) || version == "the store's affair" || k.created(got).Before(k.created(v)) {
		t.Errorf("Update gives Version %q and Created %s after %+v, want another version of the store", version, k.created(got), v)
	}
	want = k.stamp(want, k.uid(v), k.version(got), k.created(got))
	k.wantSame(t, "Update", got, want)
	k.wantStored(t, "after Update", want)
	k.shows(t, want, other)
	_, err = k.update(t.Context(), k.key(k.sample()), func(*T) error {
		t.Error("Update of what does not exist called change")
		return nil
	})
	wantError(t, "Update of what does not exist", err, tokens.ErrNotFound)
}

func (k kind[T]) testUpdateFails(t *testing.T) {
	v := k.mustCreate(t, k.sample())
	enough := errors.New("enough")
	_, err := k.update(t.Context(), k.key(v), func(now *T) error {
		*k.text(now) = "changed"
		k.spoil(*now)
		return enough
	})
	if err != enough { //nolint:errorlint // Update must not wrap it
		t.Errorf("Update = %v, want the error of change as it is", err)
	}
	k.wantStored(t, "after a failed Update", v)
}

func (k kind[T]) testUpdateRefuses(t *testing.T) {
	v := k.mustCreate(t, k.sample())
	for _, changes := range []map[string]func(*T){k.wrong, k.fixed} {
		for name, change := range changes {
			if got, err := k.update(t.Context(), k.key(v), func(now *T) error { change(now); return nil }); err == nil {
				t.Errorf("Update of %s gives %+v, want an error", name, got)
			}
		}
	}
	k.wantStored(t, "after Updates that are refused", v)
}

// testUpdateStartsOver updates, replaces and deletes the value while change runs.
func (k kind[T]) testUpdateStartsOver(t *testing.T) {
	v := k.mustCreate(t, k.sample())
	key, calls := k.key(v), 0
	got, err := k.update(t.Context(), key, func(now *T) error {
		calls++
		switch calls {
		case 1:
			k.mustUpdate(t, key, "meanwhile")
		case 2:
			if k.textOf(*now) != "meanwhile" {
				t.Error("the second try got the old value, want the concurrent change")
			}
			if err := k.delete(t.Context(), *now); err != nil {
				t.Errorf("Delete within Update: %v", err)
			}
			k.mustCreate(t, k.keyed(key))
		}
		*k.text(now) = "try-" + strconv.Itoa(calls)
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	if calls != 3 || k.uid(got) == k.uid(v) || k.textOf(got) != "try-3" {
		t.Errorf("got %+v after %d tries of Update, want the new value with the change of the third try", got, calls)
	}
	deleted := sync.OnceFunc(func() { // the first value may come from the cache
		now, err := k.read(t.Context(), key, tokens.Live)
		if err == nil {
			err = k.delete(t.Context(), now)
		}
		if err != nil {
			t.Errorf("Delete within Update: %v", err)
		}
	})
	_, err = k.update(t.Context(), key, func(now *T) error {
		deleted()
		*k.text(now) = "too-late"
		return nil
	})
	wantError(t, "Update of a value that is deleted meanwhile", err, tokens.ErrNotFound)
}

func (k kind[T]) testUpdateAtOnce(t *testing.T) {
	const workers, each = 8, 5
	v := k.mustCreate(t, k.with(k.sample(), "0"))
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				_, err := k.update(t.Context(), k.key(v), func(now *T) error {
					n, err := strconv.Atoi(*k.text(now))
					*k.text(now) = strconv.Itoa(n + 1)
					return err
				})
				if err != nil {
					t.Errorf("Update: %v", err)
				}
			}
		})
	}
	wg.Wait()
	got, err := k.read(t.Context(), k.key(v), tokens.Live)
	if want := strconv.Itoa(workers * each); err != nil || k.textOf(got) != want {
		t.Errorf("after %s concurrent increments: got %+v, %v", want, got, err)
	}
}

func (k kind[T]) testDelete(t *testing.T) {
	other, v := k.mustCreate(t, k.sample()), k.mustCreate(t, k.sample())
	if err := k.delete(t.Context(), v); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	_, err := k.read(t.Context(), k.key(v), tokens.Live)
	wantError(t, "Get", err, tokens.ErrNotFound)
	wantError(t, "Delete again", k.delete(t.Context(), v), k.gone)
	k.shows(t, other)
	again := k.mustCreate(t, v)
	if k.uid(again) == k.uid(v) {
		t.Error("got the old UID for a value that was created again, want a new one")
	}
	k.shows(t, again, other)
}

func (k kind[T]) testDeleteOther(t *testing.T) {
	refused := func(what string, v T) {
		t.Helper()
		wantError(t, "Delete "+what, k.delete(t.Context(), v), tokens.ErrConflict)
	}
	first := k.mustCreate(t, k.sample())
	changed := k.mustUpdate(t, k.key(first), "changed")
	refused("of the version before", first)
	if k.comparesUID {
		refused("without UID and Version", k.stamp(changed, "", "", k.created(changed)))
	}
	k.wantStored(t, "after a refused Delete", changed)
	if err := k.delete(t.Context(), changed); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	again := k.mustCreate(t, first)
	refused("of the value before", first)
	refused("of the value before", changed)
	if k.comparesUID {
		refused("by another UID", k.stamp(changed, k.uid(changed), k.version(again), k.created(changed)))
	}
	k.wantStored(t, "after a refused Delete", again)
}

// testDeleteAtOnce runs a delete and an update concurrently. One must succeed, and the other must fail.
func (k kind[T]) testDeleteAtOnce(t *testing.T) {
	for range 10 {
		v := k.mustCreate(t, k.sample())
		var wg sync.WaitGroup
		var deleted, updated error
		wg.Go(func() { deleted = k.delete(t.Context(), v) })
		wg.Go(func() {
			_, updated = k.update(t.Context(), k.key(v), func(now *T) error { *k.text(now) = "changed"; return nil })
		})
		wg.Wait()
		_, found := k.read(t.Context(), k.key(v), tokens.Live)
		switch {
		case deleted == nil:
			wantError(t, "Update", updated, tokens.ErrNotFound)
			wantError(t, "Get", found, tokens.ErrNotFound)
		case updated == nil:
			wantError(t, "Delete", deleted, tokens.ErrConflict)
			if found != nil {
				t.Errorf("Get of the updated value: %v", found)
			}
		default:
			t.Errorf("Delete = %v and Update = %v, want one of them to succeed", deleted, updated)
		}
	}
}

// testCopies changes values that were passed to the store or returned by it. The store must not change.
func (k kind[T]) testCopies(t *testing.T) {
	given := k.sample()
	want := k.clone(given)
	made := k.mustCreate(t, given)
	want = k.stamp(want, k.uid(made), k.version(made), k.created(made))
	k.spoil(given)
	k.spoil(made)
	k.shows(t, want)
	listed, err := k.list(t.Context())
	found, findErr := k.read(t.Context(), k.key(want), tokens.Cached)
	got, getErr := k.read(t.Context(), k.key(want), tokens.Live)
	if err := errors.Join(err, findErr, getErr); err != nil || len(listed) != 1 {
		t.Fatalf("got %d values, %v, want one", len(listed), err)
	}
	for _, v := range []T{listed[0], found, got} {
		k.spoil(v)
	}
	*k.text(&listed[0]) = "changed"
	k.wantStored(t, "after its value was changed", want)
	k.shows(t, want)
	var kept *T
	updated, err := k.update(t.Context(), k.key(want), func(now *T) error {
		*k.text(now), kept = "again", now
		return nil
	})
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	want = k.stamp(k.with(want, "again"), k.uid(want), k.version(updated), k.created(updated))
	k.spoil(*kept)
	k.spoil(updated)
	k.wantStored(t, "after the value in Update was changed", want)
	k.shows(t, want)
}

func (k kind[T]) testCanceled(t *testing.T) {
	v := k.mustCreate(t, k.sample())
	key := k.key(v)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := k.read(ctx, key, tokens.Live)
	_, listErr := k.list(ctx)
	_, createErr := k.create(ctx, k.sample())
	_, updateErr := k.update(ctx, key, func(now *T) error { *k.text(now) = "changed"; return nil })
	for what, err := range map[string]error{
		"Get": getErr, "List": listErr, "Create": createErr, "Update": updateErr, "Delete": k.delete(ctx, v),
	} {
		wantError(t, what, err, context.Canceled)
	}
	for what, read := range k.reads {
		wantError(t, what, read(ctx), context.Canceled)
	}
	k.shows(t, v)
	// Every attempt of this Update conflicts with a newer change. Only its context can end it.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	_, err := k.update(ctx, key, func(now *T) error {
		if tries++; tries == 3 {
			cancel()
		}
		k.mustUpdate(t, key, strconv.Itoa(tries))
		*k.text(now) = "never"
		return nil
	})
	wantError(t, "Update that always comes too late", err, context.Canceled)
}

// testWatch checks that two listeners get a hint after each kind of change.
func (k kind[T]) testWatch(t *testing.T) {
	one, two := k.watch(t.Context()), k.watch(t.Context())
	wantHint := func(what string, listed func([]T) bool) {
		t.Helper()
		for name, hints := range map[string]<-chan struct{}{"first": one, "second": two} {
			deadline := time.After(lag)
			for seen := false; !seen; {
				select {
				case <-hints:
				case <-deadline:
					t.Fatalf("%s: the %s listener got no hint within %v after which List shows it", what, name, lag)
				}
				all, err := k.list(t.Context())
				if err != nil {
					t.Fatalf("List: %v", err)
				}
				seen = listed(all)
			}
		}
	}
	wantHint("start", func(all []T) bool { return len(all) == 0 })
	v := k.mustCreate(t, k.sample())
	wantHint("Create", func(all []T) bool { return len(all) == 1 })
	v = k.mustUpdate(t, k.key(v), "changed")
	wantHint("Update", func(all []T) bool { return len(all) == 1 && k.textOf(all[0]) == "changed" })
	if err := k.delete(t.Context(), v); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantHint("Delete", func(all []T) bool { return len(all) == 0 })
	// A listener that does not receive must not block changes. Afterwards it must get at least one hint.
	for range 10 {
		k.mustCreate(t, k.sample())
	}
	wantHint("burst", func(all []T) bool { return len(all) == 10 })
}

func (k kind[T]) testWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended, lives := k.watch(ctx), k.watch(t.Context())
	<-ended
	<-lives
	cancel()
	// A hint that was on its way when the context ended may still arrive, but only one.
	for range 3 {
		k.mustCreate(t, k.sample())
		select {
		case <-lives:
		case <-time.After(lag):
			t.Fatalf("no hint within %v", lag)
		}
	}
	extra := 0
	for {
		select {
		case _, open := <-ended:
			if extra++; !open {
				t.Fatal("the channel of Watch is closed after its context ended, want it open and silent")
			} else if extra > 1 {
				t.Fatal("got a hint after the context of Watch ended")
			}
		default:
			return
		}
	}
}

// Package storecopy copies tokens, claims, revocations and the issuance record between a file and etcd, and checks such
// stores.
package storecopy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A Store is an open file or etcd.
type Store struct {
	name         string
	giveUp       string // what to delete to give up a copy to this store
	rows         *rowstore.Store
	certificates bool // whether the record has certificates
	// freeze makes writes of others fail, and verify reports whether they still do. It is nil for a file, which only one
	// process can open.
	freeze func(context.Context) (verify func(context.Context) error, thaw func() error, err error)
	// interrupted reports whether the store has an incomplete copy.
	interrupted func(context.Context) (bool, error)
	// begin and complete enclose a copy to this store. Between them nobody else can use it.
	begin, complete func(context.Context) error
	close           func() error
}

// Close closes the store.
func (s *Store) Close() error { return s.close() }

var (
	// ErrSpec means that the argument of Open is invalid.
	ErrSpec = errors.New("want file:PATH of kubejoin.db or of the folder of --data-dir, or etcd:URL,URL")
	// ErrUnused means that etcd has no store.
	ErrUnused = errors.New("etcd has no keys of kubejoin below this prefix; give the --etcd-prefix of 'kubejoin serve'")
)

// A Use is what a store is opened for.
type Use int

// ReadOnly is for a check, and for the source of a dry run: it changes nothing. Destination must be a new file, or a
// prefix in etcd that nobody uses. DryDestination is a destination that Open does not create.
const (
	ReadOnly Use = iota
	Source
	Destination
	DryDestination
)

// Open opens the store that spec names: file:PATH or etcd:URLS. The word bolt means file. For etcd, config has the other
// fields.
func Open(ctx context.Context, spec string, config etcdstore.Config, use Use) (*Store, error) {
	kind, where, _ := strings.Cut(spec, ":")
	switch {
	case where == "":
		return nil, fmt.Errorf("%.200q given, %w", tokens.Redact(spec), ErrSpec)
	case kind == "file", kind == "bolt":
		return openFile(where, use)
	case kind == "etcd":
		config.Endpoints, config.NoCache = strings.Split(where, ","), true
		return openEtcd(ctx, config, use)
	}
	return nil, fmt.Errorf("%.200q given, %w", tokens.Redact(spec), ErrSpec)
}

// copying is the suffix of a file that is not complete.
const copying = ".copying"

func openFile(path string, use Use) (*Store, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, datadir.Store)
	}
	open, name, interrupted := path, "file:"+path, false
	if use == Destination || use == DryDestination {
		open += copying
		_, err := os.Stat(open)
		interrupted = err == nil
		if err := absent(path); err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return nil, err
		}
	} else if _, err := os.Stat(path); err != nil {
		return nil, err // boltstore.Open would create the file
	}
	var s *boltstore.Store
	var err error
	switch {
	case use == DryDestination && !interrupted:
		return &Store{name: name, interrupted: func(context.Context) (bool, error) { return false, nil }, close: func() error { return nil }}, nil
	case use == ReadOnly, use == DryDestination:
		s, err = boltstore.OpenReadOnly(open)
	default:
		s, err = boltstore.Open(open)
	}
	if errors.Is(err, boltstore.ErrInUse) && use == Source {
		err = fmt.Errorf("%w: stop it before the copy", err)
	}
	if err != nil {
		return nil, err
	}
	return &Store{
		name: name, giveUp: open, rows: s.Store, certificates: true,
		interrupted: func(context.Context) (bool, error) { return interrupted, nil },
		begin:       func(context.Context) error { return nil },
		close:       s.Close,
		complete: func(context.Context) error {
			if err := errors.Join(s.Close(), absent(path)); err != nil {
				return err
			}
			if err := os.Rename(open, path); err != nil {
				return err
			}
			return syncFolder(filepath.Dir(path))
		},
	}, nil
}

// absent returns an error if there is a file that a new store would replace.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already, want a new file", path)
	}
	return nil
}

// syncFolder makes a rename durable.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" { // cannot sync folders
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func openEtcd(ctx context.Context, config etcdstore.Config, use Use) (*Store, error) {
	s, err := etcdstore.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	prefix := cmp.Or(config.Prefix, etcdstore.DefaultPrefix)
	state, err := s.State(ctx)
	if err == nil && (use == Source || use == ReadOnly) {
		switch state {
		case etcdstore.Unused:
			err = fmt.Errorf("%s: %w", prefix, ErrUnused)
		case etcdstore.Incomplete:
			err = s.Ready(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Store{
		name: "etcd:" + strings.Join(config.Endpoints, ","), giveUp: "all keys below " + prefix + "/ in etcd", rows: s.Store,
		interrupted: func(ctx context.Context) (bool, error) {
			state, err := s.State(ctx)
			return state == etcdstore.Incomplete, err
		},
		freeze: s.Freeze, begin: s.Begin, complete: s.Complete, close: s.Close,
	}, nil
}

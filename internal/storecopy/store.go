// Package storecopy copies tokens, claims, revocations and the issuance record between a file store and etcd. It also
// checks these stores.
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

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A Backend is an open file or etcd.
type Backend struct {
	name         string
	giveUp       string // what to delete if a copy to this store cannot be used
	rows         *rowstore.Store
	certificates bool // whether the record has certificates
	// A copy to this store calls begin first and complete last. Between these calls, nobody else can use the store.
	begin, complete func(context.Context) error
	close           func() error
}

// Close closes the file, or the connections to etcd.
func (b *Backend) Close() error { return b.close() }

var (
	// ErrSpec means that the argument of Open is invalid.
	ErrSpec = errors.New("want file:PATH of kubejoin.db or of the folder of --data-dir, or etcd:URL,URL")
	// ErrUnused means that etcd has no store.
	ErrUnused = errors.New("etcd has no keys of kubejoin below this prefix; give the --etcd-prefix of 'kubejoin serve'")
)

// A Use is the purpose for which a store is opened.
type Use int

// ReadOnly is for a check and for the source of a copy: it changes nothing. A Destination must be a new file, or an unused
// prefix in etcd. DryDestination is like Destination, but Open does not create the file.
const (
	ReadOnly Use = iota
	Destination
	DryDestination
)

// Open opens the store that spec names: file:PATH or etcd:URLS. bolt:PATH means the same as file:PATH. For etcd, config
// has the other fields.
func Open(ctx context.Context, spec string, config etcdstore.Config, use Use) (*Backend, error) {
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

// copying is the suffix of the destination file until the copy is complete.
const copying = ".copying"

func openFile(path string, use Use) (*Backend, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, datadir.Store)
	}
	open, name := path, "file:"+path
	if use != ReadOnly {
		open += copying
		if err := errors.Join(absent(path), absent(open)); err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	var s *boltstore.Store
	var err error
	switch use {
	case DryDestination:
		return &Backend{name: name, close: func() error { return nil }}, nil
	case ReadOnly:
		s, err = boltstore.OpenReadOnly(open)
	case Destination:
		s, err = boltstore.Open(open)
	}
	if err != nil {
		return nil, err
	}
	return &Backend{
		name: name, giveUp: open, rows: s.Store, certificates: true,
		begin: func(context.Context) error { return nil },
		close: s.Close,
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

// absent returns an error if a file exists at path, because a new store would replace it.
func absent(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already, want a new file; delete it if it is of an interrupted copy", path)
	}
	return nil
}

// syncFolder makes a rename in a folder durable.
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

func openEtcd(ctx context.Context, config etcdstore.Config, use Use) (*Backend, error) {
	s, err := etcdstore.Open(ctx, config)
	if err != nil {
		return nil, err
	}
	prefix := cmp.Or(config.Prefix, etcdstore.DefaultPrefix)
	state, err := s.State(ctx)
	switch {
	case err == nil && state == etcdstore.Incomplete:
		err = s.Ready(ctx)
	case err == nil && state == etcdstore.Unused && use == ReadOnly:
		err = fmt.Errorf("%s: %w", prefix, ErrUnused)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Backend{
		name: "etcd:" + strings.Join(config.Endpoints, ","), giveUp: "all keys below " + prefix + "/ in etcd", rows: s.Store,
		begin: s.Begin, complete: s.Complete, close: s.Close,
	}, nil
}

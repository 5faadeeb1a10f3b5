// Package reload keeps a value that is made of files as new as the files are. Files that
// cannot be used, such as a half-written pair, leave the last good value in place and are
// reported until they can.
package reload

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/prometheus/client_golang/prometheus"
)

// Interval is how often files are looked at.
const Interval = 10 * time.Second

// A Value holds what was made of the files last.
type Value[T any] struct {
	name  string
	paths []string
	load  func() (T, error)

	current atomic.Pointer[T]
	last    [sha256.Size]byte // of the files' content when current was made
	failure atomic.Pointer[error]
}

// Open loads the value for the first time. The name stands in logs and metrics.
func Open[T any](name string, load func() (T, error), paths ...string) (*Value[T], error) {
	v := &Value[T]{name: name, paths: paths, load: load}
	if err := v.refresh(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get is the last good value.
func (v *Value[T]) Get() T { return *v.current.Load() }

// Err is why the files as they are now are not in use, or nil.
func (v *Value[T]) Err() error {
	if err := v.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Run looks at the files every [Interval] until ctx ends. changed, if not nil, is called after
// each new value.
func (v *Value[T]) Run(ctx context.Context, log *slog.Logger, reg prometheus.Registerer, changed func(T)) error {
	before := v.current.Load()
	return loop.Loop{Name: "reload-" + v.name, Sweep: Interval, Logger: log, Registerer: reg, Step: func(context.Context) (time.Time, error) {
		err := v.refresh()
		if now := v.current.Load(); err == nil && now != before {
			before = now
			log.Info("files changed and are in use now", "what", v.name, "files", v.paths)
			if changed != nil {
				changed(*now)
			}
		}
		return time.Time{}, err
	}}.Run(ctx)
}

func (v *Value[T]) refresh() (err error) {
	defer func() {
		if err != nil {
			v.failure.Store(&err)
		} else {
			v.failure.Store(nil)
		}
	}()
	h := sha256.New()
	for _, path := range v.paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		h.Write(sum[:])
	}
	now := [sha256.Size]byte(h.Sum(nil))
	if v.current.Load() != nil && now == v.last {
		return nil
	}
	// The files may change between the sum and the load: then the next sum differs too.
	value, err := v.load()
	if err != nil {
		return err
	}
	v.current.Store(&value)
	v.last = now
	return nil
}

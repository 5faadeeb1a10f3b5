// Package reload keeps a value that is made of files as new as the files are. Files that
// cannot be used, such as a half-written pair, leave the last good value in place and are
// reported until they can.
package reload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// Interval is how often files are looked at. What has changed is used once two looks in a row
// have found the same: whoever writes several files, or one in pieces, has as long to be done.
const Interval = 2 * time.Second

// Files say what a value is made of.
type Files[T any] struct {
	// Name stands in logs and metrics.
	Name string
	// Paths are the files, in any order.
	Paths []string
	// Named gives the files that the content of one of Paths names, which count as well; nil is
	// none. What it makes of content that is of no use does not matter.
	Named func(content []byte) []string
	// Load makes a value of the files. It reads them itself.
	Load func() (T, error)
	// Changed does what depends on the value, each time that Get returns another one; nil is
	// nothing. After an error it is tried again at the next look.
	Changed func(T) error
	// Failed is told when files cannot be used, once for each state of them; nil is nobody.
	Failed func(error)
	// Logger is told what changes; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_files_in_use and the metrics of the loop; nil counts nothing.
	Registerer prometheus.Registerer
}

// A Value holds what was made of the files last. [Files.Open] makes it.
type Value[T any] struct {
	files   Files[T]
	inUse   prometheus.Gauge
	current atomic.Pointer[T]
	failure atomic.Pointer[error]

	// Of the loop alone: the state of the files that current was made of, of the last look and
	// of the last failure that was told, and whether Changed has still to be called.
	used, seen, told state
	pending          bool
}

// state is the content of all files, or why it cannot be read.
type state struct {
	sum [sha256.Size]byte
	err string
}

// Open loads the value for the first time.
func (f Files[T]) Open() (*Value[T], error) {
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	v := &Value[T]{
		files: f,
		inUse: metrics.Gauge(f.Registerer, "kubejoin_files_in_use", "1 if files are used as they are, 0 if they have changed and cannot be used.", "files").WithLabelValues(f.Name),
	}
	now, err := v.look()
	if err != nil {
		return nil, err
	}
	value, err := f.Load()
	if err != nil {
		return nil, err
	}
	v.current.Store(&value)
	v.used, v.seen = now, now // should they have changed in between, the next look finds it
	v.inUse.Set(1)
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

// Run looks at the files every [Interval] until ctx ends, and returns nil then.
func (v *Value[T]) Run(ctx context.Context) error {
	return loop.Loop{
		Name:  "reload-" + v.files.Name,
		Sweep: Interval,
		Step: func(context.Context) (time.Time, error) {
			v.step()
			return time.Time{}, nil
		},
		Logger:     v.files.Logger,
		Registerer: v.files.Registerer,
	}.Run(ctx)
}

// step is one look. Its errors are not the loop's: the next look is due as always.
func (v *Value[T]) step() {
	now, err := v.look()
	before := v.seen
	v.seen = now
	if now != before {
		return // perhaps in the middle of being written
	}
	if err == nil && now != v.used {
		err = v.load(now)
	}
	if err == nil && v.pending {
		if err = v.files.Changed(v.Get()); err != nil {
			err = fmt.Errorf("making use of new files: %w", err)
		}
		v.pending = err != nil
	}
	if !errors.Is(err, errUnsettled) {
		v.report(now, err)
	}
}

// look gives the state of the files.
func (v *Value[T]) look() (state, error) {
	h := sha256.New()
	add := func(path string) ([]byte, error) {
		content, err := os.ReadFile(path)
		sum := sha256.Sum256(content)
		h.Write(sum[:])
		return content, err
	}
	for _, path := range v.files.Paths {
		content, err := add(path)
		if err != nil {
			return state{err: err.Error()}, err
		}
		if v.files.Named == nil {
			continue
		}
		for _, path := range v.files.Named(content) {
			if _, err := add(path); err != nil {
				// The file that names it is part of the state: mended, it is looked at anew.
				return state{sum: [sha256.Size]byte(h.Sum(nil)), err: err.Error()}, err
			}
		}
	}
	return state{sum: [sha256.Size]byte(h.Sum(nil))}, nil
}

// errUnsettled says that files have changed while they were read.
var errUnsettled = errors.New("files are being written")

// load uses the files, which are in the state given.
func (v *Value[T]) load(now state) error {
	value, err := v.files.Load()
	// Load has read them anew: what it has read is known only if they are as they were.
	if after, _ := v.look(); after != now {
		return errUnsettled
	}
	if err != nil {
		return err
	}
	v.current.Store(&value)
	v.used, v.pending = now, v.files.Changed != nil
	v.files.Logger.Info("files changed and are in use now", "what", v.files.Name, "files", v.files.Paths)
	return nil
}

// report makes a failure visible, once for each state of the files, and its end.
func (v *Value[T]) report(now state, err error) {
	if err == nil {
		v.inUse.Set(1)
		if v.failure.Swap(nil) != nil {
			v.told = state{}
			v.files.Logger.Info("files can be used again", "what", v.files.Name, "files", v.files.Paths)
		}
		return
	}
	v.failure.Store(&err)
	v.inUse.Set(0)
	if now == v.told {
		return
	}
	v.told = now
	v.files.Logger.Error("files have changed and cannot be used: the last good ones stay in use", "what", v.files.Name, "files", v.files.Paths, "error", err)
	if v.files.Failed != nil {
		v.files.Failed(err)
	}
}

// Package reload keeps a value up to date with the files that it is loaded from. If the files cannot be used, for
// example because they are half written, it keeps the last good value and reports the failure.
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

// Interval is the time between two checks of the files. A change is used only after two checks have found the same
// content, so that a writer has this time to complete several files.
const Interval = 2 * time.Second

// Files describes a value and the files that it is loaded from.
type Files[T any] struct {
	// Name is the name in logs and metrics.
	Name string
	// Paths are the files, in any order.
	Paths []string
	// Named returns further files that the content of one of Paths names; nil means none. Its result for invalid
	// content is irrelevant.
	Named func(content []byte) []string
	// Load loads the value. It reads the files itself.
	Load func() (T, error)
	// Changed is called with each new value of Get; nil does nothing. After an error, it is called again at the next check.
	Changed func(T) error
	// Failed is called once for each unusable state of the files; nil does nothing.
	Failed func(error)
	// Logger logs changes; nil disables logging.
	Logger *slog.Logger
	// Registerer registers kubejoin_files_in_use and the metrics of the loop; nil disables them.
	Registerer prometheus.Registerer
}

// A Value holds the last good value. [Files.Open] creates it.
type Value[T any] struct {
	files   Files[T]
	inUse   prometheus.Gauge
	current atomic.Pointer[T]
	failure atomic.Pointer[error]

	// Only the loop uses these fields. used is the state of the files from which current was loaded. seen is the state at the
	// last check. told is the state at the last reported failure. pending is true if Changed must still be called.
	used, seen, told state
	pending          bool
}

// state is a hash of all files, or the error of reading them.
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
		inUse: metrics.Gauge(f.Registerer, "kubejoin_files_in_use", "1 if the current files are in use, 0 if they cannot be used and the last valid ones are in use.", "files").WithLabelValues(f.Name),
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
	v.used, v.seen = now, now // if the files changed during Load, the next check notices
	v.inUse.Set(1)
	return v, nil
}

// Get returns the last good value.
func (v *Value[T]) Get() T { return *v.current.Load() }

// Err returns why the current files are not in use, or nil.
func (v *Value[T]) Err() error {
	if err := v.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Run checks the files every [Interval] until ctx ends. It always returns nil.
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

// step runs one check. It returns no errors to the loop, so that the next check runs at the usual time.
func (v *Value[T]) step() {
	now, err := v.look()
	before := v.seen
	v.seen = now
	if now != before {
		return // wait: a writer may not have finished
	}
	if err == nil && now != v.used {
		err = v.load(now)
	}
	if err == nil && v.pending {
		if err = v.files.Changed(v.Get()); err != nil {
			err = fmt.Errorf("applying new files: %w", err)
		}
		v.pending = err != nil
	}
	if !errors.Is(err, errUnsettled) {
		v.report(now, err)
	}
}

// look returns the state of the files.
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
				// The state includes the file that names the missing one. So fixing either file is a change.
				return state{sum: [sha256.Size]byte(h.Sum(nil)), err: err.Error()}, err
			}
		}
	}
	return state{sum: [sha256.Size]byte(h.Sum(nil))}, nil
}

// errUnsettled is the error if files changed while they were read.
var errUnsettled = errors.New("files changed while they were read")

// load loads the value from the files. now is their state at the last check.
func (v *Value[T]) load(now state) error {
	value, err := v.files.Load()
	// Load has read the files again, so check that they have not changed.
	if after, _ := v.look(); after != now {
		return errUnsettled
	}
	if err != nil {
		return err
	}
	v.current.Store(&value)
	v.used, v.pending = now, v.files.Changed != nil
	v.files.Logger.Info("files changed, using new ones", "what", v.files.Name, "files", v.files.Paths)
	return nil
}

// report sets the gauge and the failure. It logs a failure once for each state of the files, and logs when the
// failure has ended.
func (v *Value[T]) report(now state, err error) {
	if err == nil {
		v.inUse.Set(1)
		if v.failure.Swap(nil) != nil {
			v.told = state{}
			v.files.Logger.Info("files are valid again", "what", v.files.Name, "files", v.files.Paths)
		}
		return
	}
	v.failure.Store(&err)
	v.inUse.Set(0)
	if now == v.told {
		return
	}
	v.told = now
	v.files.Logger.Error("cannot use changed files, keeping the last valid ones", "what", v.files.Name, "files", v.files.Paths, "error", err)
	if v.files.Failed != nil {
		v.files.Failed(err)
	}
}

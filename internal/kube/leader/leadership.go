package leader

import (
	"bytes"
	"sync"
	"time"
)

// takeover is the maximum time that another replica needs to lead after the Lease has expired or was released.
const takeover = 5 * time.Second

// A leadership tracks whether any replica leads, from changes of the Lease. It uses the clock of this machine,
// because the times in a Lease are from another machine's clock. The zero value has read no Lease yet.
type leadership struct {
	mu    sync.Mutex
	raw   []byte    // the Lease of the last read
	until time.Time // assume until then that a replica leads, unless the Lease changes
}

// read records a read of the Lease. It treats any change of the Lease as a renewal at that moment.
func (l *leadership) read(holder string, raw []byte, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !bytes.Equal(l.raw, raw) {
		l.raw = bytes.Clone(raw)
		l.changed(holder, now)
	}
}

// wrote records a write of this replica.
func (l *leadership) wrote(holder string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed(holder, now)
}

func (l *leadership) changed(holder string, now time.Time) {
	switch soon := now.Add(takeover); {
	case holder != "":
		l.until = soon.Add(leaseDuration)
	case l.until.After(soon): // the holder has released it
		l.until = soon
	}
}

// known reports whether this replica knows that a replica leads.
func (l *leadership) known(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until)
}

package leader

import (
	"bytes"
	"sync"
	"time"
)

// takeover is how long another replica may take to lead after the last leader is gone.
const takeover = 5 * time.Second

// A leadership tracks whether any replica leads, from changes of the Lease. It uses the clock of this machine,
// because the times in a Lease are from another machine's clock. The zero value has seen no Lease.
type leadership struct {
	mu    sync.Mutex
	raw   []byte    // the Lease of the last read
	until time.Time // a replica leads until then, unless the Lease changes
}

// read records a read of the Lease. A Lease with new content counts as just renewed.
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

// known reports whether a replica leads.
func (l *leadership) known(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until)
}

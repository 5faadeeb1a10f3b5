package main

import (
	"bytes"
	"sync"
	"time"
)

// takeover is how long others may take to lead once nobody does any more.
const takeover = 5 * time.Second

// A leadership is whether anybody leads, as far as a replica has seen the Lease change. Times are
// its own: those in a Lease are of another machine's clock. The zero value has seen nothing.
type leadership struct {
	mu    sync.Mutex
	raw   []byte    // the Lease as read last
	until time.Time // somebody leads until then if no more is seen
}

// read takes a Lease as it is now. One that is seen for the first time counts as just renewed.
func (l *leadership) read(holder string, raw []byte, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !bytes.Equal(l.raw, raw) {
		l.raw = bytes.Clone(raw)
		l.changed(holder, now)
	}
}

// wrote takes a change of this replica's own.
func (l *leadership) wrote(holder string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed(holder, now)
}

func (l *leadership) changed(holder string, now time.Time) {
	switch soon := now.Add(takeover); {
	case holder != "":
		l.until = soon.Add(leaseDuration)
	case l.until.After(soon): // it was given up
		l.until = soon
	}
}

// known reports whether somebody leads.
func (l *leadership) known(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until)
}

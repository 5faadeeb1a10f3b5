package caexpiry

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus"
)

func TestState(t *testing.T) {
	const year = 365 * 24 * time.Hour
	end := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name     string
		lifetime time.Duration
		left     time.Duration
		state    state
		next     time.Duration // before the end; negative: never
	}{
		{"long", year, 10 * year, good, year - 5*time.Minute}, // certificates of 8h or more begin 5min ago
		{"just enough", year, year, good, year - 5*time.Minute},
		{"enough by a second", year, year - 5*time.Minute + time.Second, good, year - 5*time.Minute},
		{"to the end", year, year - 5*time.Minute, shortens, 0},
		{"short", year, time.Hour, shortens, 0},
		{"short-lived certificates", time.Hour, time.Hour + time.Second, good, time.Hour},
		{"short-lived certificates to the end", time.Hour, time.Hour, shortens, 0},
		{"last moment", time.Hour, 1, shortens, 0},
		{"expired", year, 0, expired, -1},
		{"long expired", year, -year, expired, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			state, next := stateOf(end, test.lifetime, end.Add(-test.left))
			want := end.Add(-test.next)
			if test.next < 0 {
				want = time.Time{}
			}
			if state != test.state || !next.Equal(want) {
				t.Errorf("state %d until %s, want %d until %s", state, next, test.state, want)
			}
			// The state must be worse at that time, or Step would return the same time forever.
			if !next.IsZero() {
				if then, _ := stateOf(end, test.lifetime, next); then <= state {
					t.Errorf("state %d at %s, want a worse one than %d", then, next, state)
				}
			}
		})
	}
}

// An Event for each check of the CA would flood the cluster: each state must give one Event.
func TestReportsExpiringCAOnce(t *testing.T) {
	const day = 24 * time.Hour
	type told struct{ events, notice string }
	for name, test := range map[string]struct {
		left, lifetime time.Duration
		trust          error
		want           told
		next           time.Duration // from now
	}{
		"long":                        {100 * day, 10 * day, nil, told{}, 70 * day},
		"long, and shortens":          {100 * day, 365 * day, nil, told{"CAShortensCertificates", "so certificates expire then instead of lasting 8760h0m0s"}, 70 * day},
		"soon":                        {20 * day, 10 * day, nil, told{"CAExpiresSoon", "within 30 days, and cannot sign after that"}, 10 * day},
		"soon, and shortens":          {20 * day, 365 * day, nil, told{"CAExpiresSoon CAShortensCertificates", "instead of lasting 8760h0m0s; that is within 30 days, so replace it"}, 20 * day},
		"soon, and shortens in a day": {day, time.Hour, nil, told{"CAExpiresSoon", "within 30 days"}, 23 * time.Hour},
		"not trusted":                 {100 * day, 10 * day, errors.New("clients refuse"), told{"CANotTrusted", ""}, 70 * day},
	} {
		t.Run(name, func(t *testing.T) {
			ca, err := signer.GenerateCA("kubernetes", time.Now(), test.left)
			if err != nil {
				t.Fatal(err)
			}
			var events []string
			w := &Watch{
				CA: func() *signer.CA { return ca }, Trust: func(*signer.CA) error { return test.trust }, Lifetime: test.lifetime, Logger: slog.New(slog.DiscardHandler),
				Event:    func(_, reason, _ string) { events = append(events, reason) },
				NotAfter: prometheus.NewGauge(prometheus.GaugeOpts{}), Certificates: prometheus.NewGauge(prometheus.GaugeOpts{}),
			}
			for range 3 {
				next, err := w.Step(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if until := time.Until(next); until < test.next-10*time.Minute || until > test.next+10*time.Minute {
					t.Errorf("next step after %s, want %s", until, test.next)
				}
			}
			if got := strings.Join(events, " "); got != test.want.events {
				t.Errorf("events are %q, want %q", got, test.want.events)
			}
			notice := Notice(ca.Certificate().NotAfter, test.lifetime, time.Now())
			if !strings.Contains(notice, test.want.notice) || (notice == "") != (test.want.notice == "") {
				t.Errorf("notice is %q, want %q", notice, test.want.notice)
			}
		})
	}
	if soon, next := expiresSoon(time.Now(), time.Now().Add(time.Second)); soon || !next.IsZero() {
		t.Errorf("expired: %t until %s", soon, next)
	}
}

package caexpiry

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
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
		next     time.Duration // when the next state begins, before the CA expires; negative means never
	}{
		// The validity of certificates of 8h or more begins 5min before issue.
		{"long", year, 10 * year, good, year - 5*time.Minute},
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
			// At that time, the state must be worse. Otherwise, Step would return the same time forever.
			if !next.IsZero() {
				if then, _ := stateOf(end, test.lifetime, next); then <= state {
					t.Errorf("state %d at %s, want a worse one than %d", then, next, state)
				}
			}
		})
	}
}

// Each step must begin exactly at its second, and the next step must never be in the past. Otherwise, Watch would report
// nothing, or the same step forever.
func TestWithin(t *testing.T) {
	const day = 24 * time.Hour
	end := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		left time.Duration
		days int
		next time.Duration // when the next step begins, before the CA expires; negative means never
	}{
		{3650 * day, 0, 90 * day},
		{90*day + 1, 0, 90 * day},
		{90 * day, 90, 30 * day},
		{30*day + 1, 90, 30 * day},
		{30 * day, 30, 7 * day},
		{7*day + 1, 30, 7 * day},
		{7 * day, 7, 0},
		{1, 7, 0},
		{0, 0, -1},
		{-day, 0, -1},
	} {
		want := end.Add(-test.next)
		if test.next < 0 {
			want = time.Time{}
		}
		if days, next := Within(end, end.Add(-test.left)); days != test.days || !next.Equal(want) {
			t.Errorf("%s before the end: step %d until %s, want %d until %s", test.left, days, next, test.days, want)
		}
	}
}

// Each state and each step must cause exactly one Event. An Event for each check of the CA would flood the cluster.
func TestReportsExpiringCAOnce(t *testing.T) {
	const day = 24 * time.Hour
	type told struct{ events, notice string }
	for name, test := range map[string]struct {
		left, lifetime time.Duration
		trust          error
		want           told
		next           time.Duration // from now
	}{
		"long":                        {200 * day, 10 * day, nil, told{}, 110 * day},
		"long, and shortens":          {200 * day, 365 * day, nil, told{"CAShortensCertificates", "so certificates expire then instead of lasting 8760h; run: kubejoin ca prepare"}, 110 * day},
		"90 days":                     {80 * day, 10 * day, nil, told{"CAExpiresSoon", "within 90 days, and cannot sign after that; run: kubejoin ca prepare"}, 50 * day},
		"30 days":                     {20 * day, 5 * day, nil, told{"CAExpiresSoon", "within 30 days, and cannot sign after that; run: kubejoin ca prepare"}, 13 * day},
		"30 days, and shortens":       {20 * day, 365 * day, nil, told{"CAExpiresSoon CAShortensCertificates", "instead of lasting 8760h; that is within 30 days; run: kubejoin ca prepare"}, 13 * day},
		"soon, and shortens in a day": {day, time.Hour, nil, told{"CAExpiresSoon", "within 7 days"}, 23 * time.Hour},
		"not trusted":                 {200 * day, 10 * day, errors.New("clients refuse"), told{"CANotTrusted", ""}, 110 * day},
	} {
		t.Run(name, func(t *testing.T) {
			ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), test.left))(t)
			events := new(events)
			w := watch(ca, test.lifetime, events)
			w.Trust = func(*signer.CA) error { return test.trust }
			for range 3 {
				next := must.Value(w.Step(t.Context()))(t)
				if until := time.Until(next); until < test.next-10*time.Minute || until > test.next+10*time.Minute {
					t.Errorf("next step after %s, want %s", until, test.next)
				}
			}
			if got := strings.Join(events.reasons, " "); got != test.want.events {
				t.Errorf("events are %q, want %q", got, test.want.events)
			}
			notice := Notice(ca.Certificate().NotAfter, test.lifetime, time.Now(), w.Todo)
			if !strings.Contains(notice, test.want.notice) || (notice == "") != (test.want.notice == "") {
				t.Errorf("notice is %q, want %q", notice, test.want.notice)
			}
		})
	}
}

// One CA goes through all steps. Each step must cause one Event and one log line, with the next command.
func TestReportsEachStepOnce(t *testing.T) {
	const day = 24 * time.Hour
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 200*day))(t)
	end := ca.Certificate().NotAfter
	events := new(events)
	w := watch(ca, time.Hour, events)
	var log bytes.Buffer
	w.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for _, left := range []time.Duration{200 * day, 90 * day, 89 * day, 31 * day, 30 * day, 8 * day, 7 * day, day, time.Minute, 0, -day} {
		w.Now = func() time.Time { return end.Add(-left) }
		for range 2 {
			must.Value(w.Step(t.Context()))(t)
		}
	}
	expires := "The CA expires at " + end.UTC().Format(time.RFC3339) + ", within %d days, and cannot sign after that; run: kubejoin ca prepare"
	for i, days := range []int{90, 30, 7} {
		if want := fmt.Sprintf(expires, days); len(events.messages) != 5 || events.messages[i] != want {
			t.Fatalf("Event %d of %q, want %q", i+1, events.messages, want)
		}
	}
	if got := strings.Join(events.reasons, " "); got != "CAExpiresSoon CAExpiresSoon CAExpiresSoon CAShortensCertificates CAExpired" {
		t.Errorf("events are %s", got)
	}
	logged := strings.Split(log.String(), `level=WARN msg="CA expires soon"`)
	for i, days := range []int{90, 30, 7} {
		want := fmt.Sprintf(" expires=%s certificates=1 days=%d next=\"run: kubejoin ca prepare\"\n", end.Format("2006-01-02T15:04:05.000Z07:00"), days)
		if len(logged) != 4 || !strings.Contains(logged[i+1], want) {
			t.Fatalf("log line %d of %q, want 3 and %q", i+1, logged[1:], want)
		}
	}
}

func TestSaysWhatToDo(t *testing.T) {
	for want, got := range map[string]string{
		"run: kubejoin ca prepare":                  Prepare(rotation.Cluster),
		"run: kubejoin ca prepare --ca front-proxy": Prepare(rotation.FrontProxy),
		"replace /a/ca.crt and /a/ca.key":           Replace("/a/ca.crt", "/a/ca.key"),
		"replace /a/ca.pem":                         Replace("/a/ca.pem", "/a/ca.pem"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

type events struct{ reasons, messages []string }

func watch(ca *signer.CA, lifetime time.Duration, e *events) *Watch {
	return &Watch{
		CA: func() *signer.CA { return ca }, Trust: func(*signer.CA) error { return nil }, Lifetime: lifetime, Logger: slog.New(slog.DiscardHandler),
		Event: func(about codes.Event, message string) {
			e.reasons, e.messages = append(e.reasons, about.Reason()), append(e.messages, message)
		},
		Todo:     Prepare(rotation.Cluster),
		NotAfter: prometheus.NewGauge(prometheus.GaugeOpts{}), Certificates: prometheus.NewGauge(prometheus.GaugeOpts{}),
	}
}

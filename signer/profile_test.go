package signer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

func TestValidityWithinBoundsOfProfileAndCA(t *testing.T) {
	const h = time.Hour
	now := time.Date(2030, 5, 6, 7, 8, 9, 999_999_999, time.FixedZone("x", 3600))
	second := now.UTC().Truncate(time.Second)
	far := second.Add(10 * 365 * 24 * h)
	for _, test := range []struct {
		name      string
		profile   signer.ProfileConfig
		ca        time.Time
		requested time.Duration
		ends      time.Duration // end of the validity, relative to now
	}{
		{name: "defaults", ca: far, ends: 365*24*h - 5*time.Minute},
		{name: "default", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, ends: 24*h - 5*time.Minute},
		{name: "requested less", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 12 * h, ends: 12*h - 5*time.Minute},
		{name: "requested more", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 48 * h, ends: 24*h - 5*time.Minute},
		{name: "requested more, within max", profile: signer.ProfileConfig{Default: 24 * h, Max: 72 * h}, ca: far, requested: 48 * h, ends: 48*h - 5*time.Minute},
		{name: "exactly max", profile: signer.ProfileConfig{Default: 24 * h, Max: 48 * h}, ca: far, requested: 48 * h, ends: 48*h - 5*time.Minute},
		{name: "more than max", profile: signer.ProfileConfig{Default: 24 * h, Max: 48 * h}, ca: far, requested: 48*h + 1, ends: 48*h - 5*time.Minute},
		{name: "8 h", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 8 * h, ends: 8*h - 5*time.Minute},
		{name: "less than 8 h", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 8*h - time.Second, ends: 8*h - time.Second},
		{name: "minimum of the API", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 10 * time.Minute, ends: 10 * time.Minute},
		{name: "below the minimum", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: 9 * time.Minute, ends: 10 * time.Minute},
		{name: "negative", profile: signer.ProfileConfig{Default: 24 * h}, ca: far, requested: -h, ends: 10 * time.Minute},
		{name: "configured minimum", profile: signer.ProfileConfig{Default: 24 * h, Min: h}, ca: far, requested: 30 * time.Minute, ends: h},
		{name: "short default is used unchanged", profile: signer.ProfileConfig{Default: 5 * time.Minute}, ca: far, ends: 5 * time.Minute},
		{name: "short maximum wins over the minimum", profile: signer.ProfileConfig{Default: 5 * time.Minute}, ca: far, requested: 10 * time.Minute, ends: 5 * time.Minute},
		{name: "CA ends first", profile: signer.ProfileConfig{Default: 24 * h}, ca: second.Add(h), ends: h},
		{name: "CA ends a second before", profile: signer.ProfileConfig{Default: h}, ca: second.Add(h - time.Second), ends: h - time.Second},
		{name: "CA ends at the same time", profile: signer.ProfileConfig{Default: h}, ca: second.Add(h), ends: h},
		{name: "CA ends a second from now", profile: signer.ProfileConfig{Default: h}, ca: second.Add(time.Second), ends: time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.profile.Usages = clientUsages
			begins, ends, err := must.Get(signer.NewProfile(test.profile)).Validity(test.ca, test.requested, now)
			if err != nil {
				t.Fatal(err)
			}
			if want := second.Add(-5 * time.Minute); !begins.Equal(want) {
				t.Errorf("begins %s, want %s", begins, want)
			}
			if want := second.Add(test.ends); !ends.Equal(want) {
				t.Errorf("ends %s, want %s", ends, want)
			}
			if begins.Location() != time.UTC || ends.Location() != time.UTC {
				t.Error("got times that are not in UTC")
			}
		})
	}
	for _, ca := range []time.Time{now, second, now.Add(-h)} {
		if _, _, err := (signer.Profile{}).Validity(ca, 0, now); !errors.Is(err, signer.ErrExpiredCA) {
			t.Errorf("CA expired %s ago: got error %v, want ErrExpiredCA", now.Sub(ca), err)
		}
	}
}

func TestNewProfileRefusesInvalidDurationsAndUsages(t *testing.T) {
	const h = time.Hour
	for _, test := range []struct {
		name    string
		profile signer.ProfileConfig
		want    string
	}{
		{name: "only usages", profile: signer.ProfileConfig{Usages: clientUsages}},
		{name: "three minutes", profile: signer.ProfileConfig{Usages: clientUsages, Default: 3 * time.Minute}},
		{name: "all", profile: signer.ProfileConfig{Usages: clientUsages, Min: h, Default: 2 * h, Max: 3 * h}},
		{name: "nothing", want: "without usages"},
		{name: "unknown usage", profile: signer.ProfileConfig{Usages: []certificates.KeyUsage{"flying"}}, want: `"flying"`},
		{name: "usage of a CA", profile: signer.ProfileConfig{Usages: []certificates.KeyUsage{certificates.UsageCertSign}}, want: `"cert sign"`},
		{name: "under three minutes", profile: signer.ProfileConfig{Usages: clientUsages, Default: 3*time.Minute - 1}, want: "renew"},
		{name: "least under three minutes", profile: signer.ProfileConfig{Usages: clientUsages, Min: time.Minute}, want: "shortest"},
		{name: "negative", profile: signer.ProfileConfig{Usages: clientUsages, Max: -h}, want: "longest"},
		{name: "default over max", profile: signer.ProfileConfig{Usages: clientUsages, Default: 3 * h, Max: 2 * h}, want: "default duration of certificates is 3h, want at most the longest duration 2h"},
		{name: "least over default", profile: signer.ProfileConfig{Usages: clientUsages, Min: h, Default: 5 * time.Minute, Max: 2 * h}, want: "default duration of certificates is 5m, want at least the shortest duration 1h"},
		{name: "default under the usual least", profile: signer.ProfileConfig{Usages: clientUsages, Default: 5 * time.Minute, Max: 2 * h}},
		{name: "least over max", profile: signer.ProfileConfig{Usages: clientUsages, Min: 3 * h, Default: 2 * h}, want: "shortest duration of certificates is 3h, want at most the longest duration 2h"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := signer.NewProfile(test.profile)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want %q", err, test.want)
			}
		})
	}
}

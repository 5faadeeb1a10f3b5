// Package issuancetest is the conformance suite for implementations of [issuance.Store]. It tests the promises in the
// documentation of the interface. Every implementation should call [Run] in a test.
package issuancetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
)

// Run runs the suite. Each test calls open once. open must return an empty store that stays usable until the test ends.
func Run(t *testing.T, open func(t *testing.T) issuance.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, issuance.Store)
	}{
		{"List", testList},
		{"ListAnyName", testListAnyName},
		{"Append", testAppend},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// Issued returns the entry of a certificate that was issued at the given time.
func Issued(at time.Time, serial string, lifetime time.Duration) issuance.Entry {
	return issuance.Entry{
		Time: at, Outcome: issuance.Issued, Signer: "kubernetes.io/kube-apiserver-client-kubelet", Requester: "system:bootstrap:qwertz", TokenID: "qwertz",
		Node: "worker-1", Subject: "CN=system:node:worker-1,O=system:nodes", Usages: []string{"digital signature", "client auth"},
		SPKI: "sha256:" + strings.Repeat("a1", 32), Serial: serial, NotBefore: at.Add(-5 * time.Minute), NotAfter: at.Add(lifetime),
		Certificate: "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("MIIB", 200) + "\n-----END CERTIFICATE-----\n", Approver: "kubejoin", Rule: "nodeclient",
		Evidence: []string{`"system:bootstrap:qwertz" may create certificatesigningrequests/nodeclient`},
	}
}

// Refused returns the entry of a refusal, with the number n as SPKI.
func Refused(at time.Time, n int) issuance.Entry {
	return issuance.Entry{Time: at, Outcome: issuance.Refused, Signer: "kubernetes.io/kubelet-serving", Requester: "system:node:worker-2", Node: "worker-2", SPKI: fmt.Sprint(n), Reason: "Bad", Message: "not today"}
}

// Add appends entries.
func Add(t testing.TB, r issuance.Store, entries ...issuance.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := r.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// List returns the serial numbers of matching certificates, and the SPKI of other entries.
func List(t testing.TB, r issuance.Store, q issuance.Query) []string {
	t.Helper()
	page, err := r.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range page.Entries {
		if e.Outcome == issuance.Issued {
			names = append(names, e.Serial)
		} else {
			names = append(names, e.SPKI)
		}
	}
	return names
}

func testList(t *testing.T, r issuance.Store) {
	start := time.Now().Add(-10 * time.Hour)
	for i := range 10 { // one entry an hour, every third one refused
		e := Issued(start.Add(time.Duration(i)*time.Hour), fmt.Sprintf("%x", 0xa0+i), time.Duration(100-10*i)*time.Hour)
		if i%3 == 2 {
			e = Refused(e.Time, i)
		}
		if i == 4 {
			e.CA = "sha256:new"
			e.TokenID, e.Requester, e.Node, e.Signer = "", "system:node:worker-4", "worker-4", "example.com/x"
		}
		Add(t, r, e)
	}
	hour := func(i int) time.Time { return start.Add(time.Duration(i) * time.Hour) }
	for name, test := range map[string]struct {
		q    issuance.Query
		want string
	}{
		"all, newest first":      {issuance.Query{}, "a9 8 a7 a6 5 a4 a3 2 a1 a0"},
		"of a token":             {issuance.Query{TokenID: "qwertz"}, "a9 a7 a6 a3 a1 a0"},
		"of no token":            {issuance.Query{TokenID: "wertz"}, ""},
		"of a node":              {issuance.Query{Node: "worker-1"}, "a9 a7 a6 a3 a1 a0"},
		"of a requesting node":   {issuance.Query{Node: "worker-4"}, "a4"},
		"of a part of a name":    {issuance.Query{Node: "4"}, ""},
		"refused":                {issuance.Query{Outcome: issuance.Refused}, "8 5 2"},
		"refused, since":         {issuance.Query{Outcome: issuance.Refused, Since: hour(5)}, "8 5"},
		"failed":                 {issuance.Query{Outcome: issuance.Failed}, ""},
		"of a signer":            {issuance.Query{Signer: "example.com/x"}, "a4"},
		"of a requester":         {issuance.Query{Requester: "system:node:worker-4"}, "a4"},
		"of a CA":                {issuance.Query{CA: "sha256:new"}, "a4"},
		"not of a CA, by end":    {issuance.Query{NotCA: "sha256:new", EndsBefore: hour(200)}, "a9 a7 a6 a3 a1 a0"},
		"since":                  {issuance.Query{Since: hour(7)}, "a9 8 a7"},
		"since a moment later":   {issuance.Query{Since: hour(7).Add(1)}, "a9 8"},
		"two of them":            {issuance.Query{Since: hour(1), TokenID: "qwertz", Limit: 2}, "a9 a7"},
		"by end":                 {issuance.Query{EndsBefore: hour(200)}, "a9 a7 a6 a4 a3 a1 a0"},
		"by end, some":           {issuance.Query{EndsAfter: hour(19), EndsBefore: hour(73)}, "a7 a6 a4"},
		"by end, up to the end":  {issuance.Query{EndsAfter: hour(64)}, "a3 a1 a0"}, // a4 ends at that time
		"by end, and of a token": {issuance.Query{EndsBefore: hour(73), TokenID: "qwertz"}, "a9 a7 a6"},
		"by end, and since":      {issuance.Query{EndsBefore: hour(200), Since: hour(3)}, "a9 a7 a6 a4 a3"},
		"by end, nothing":        {issuance.Query{EndsBefore: start}, ""},
		"refused, and by end":    {issuance.Query{EndsBefore: hour(200), Outcome: issuance.Refused}, ""},
		"negative times":         {issuance.Query{EndsAfter: time.Unix(-1e9, 0), Since: time.Unix(-1e9, 0)}, "a9 a7 a6 a4 a3 a1 a0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(List(t, r, test.q), " "); got != test.want {
				t.Errorf("List = %s, want %s", got, test.want)
			}
			// All page sizes must give the same entries.
			if test.q.Limit > 0 {
				return
			}
			for size := 1; size < 4; size++ {
				var got []string
				q := test.q
				q.Limit = size
				for pages := 0; ; pages++ {
					page, err := r.List(t.Context(), q)
					if err != nil || pages > 10 || len(page.Entries) > size || page.Next != "" && len(page.Entries) < size {
						t.Fatalf("page %d of size %d: %d entries, next %s, %v", pages, size, len(page.Entries), page.Next, err)
					}
					for _, e := range page.Entries {
						if e.Outcome == issuance.Refused {
							e.Serial = e.SPKI
						}
						got = append(got, e.Serial)
					}
					if q.After = page.Next; q.After == "" {
						break
					}
				}
				if strings.Join(got, " ") != test.want {
					t.Errorf("in pages of %d: got %s, want %s", size, got, test.want)
				}
			}
		})
	}
	for _, after := range []string{"x", "00", strings.Repeat("0", 34), "8w4usg.qwertzuiopasdfgh"} {
		if _, err := r.List(t.Context(), issuance.Query{After: after}); !errors.Is(err, issuance.ErrCursor) {
			t.Errorf("List after %s: got %v, want ErrCursor", after, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, listErr := r.List(ctx, issuance.Query{})
	_, getErr := r.Get(ctx, "1f")
	for what, err := range map[string]error{"List": listErr, "Get": getErr, "Append": r.Append(ctx, Issued(start, "1", time.Hour))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a canceled context: got %v", what, err)
		}
	}
}

// testListAnyName checks that a query finds an entry by each of its fields, regardless of the characters in them.
func testListAnyName(t *testing.T, r issuance.Store) {
	for i, name := range []string{"a/b", strings.Repeat("n", 254), "a\nb", "<&>\u2028", `a"b\c`} {
		serial := fmt.Sprintf("a%d", i)
		e := Issued(time.Now(), serial, time.Hour)
		e.Node, e.Requester, e.Signer = "worker-1", tokens.NodeUserPrefix+name, "example.com/"+name
		Add(t, r, e, Issued(time.Now(), "b1", time.Hour))
		for what, q := range map[string]issuance.Query{
			"node": {Node: name}, "requester": {Requester: e.Requester}, "signer": {Signer: e.Signer},
			"signer and outcome": {Signer: e.Signer, Outcome: issuance.Issued},
		} {
			if got := List(t, r, q); !slices.Equal(got, []string{serial}) {
				t.Errorf("%s %q: List = %v, want %s", what, name, got, serial)
			}
		}
	}
}

// testAppend checks that Append refuses entries that no query would find or that would never expire.
func testAppend(t *testing.T, r issuance.Store) {
	now := time.Now()
	for name, e := range map[string]issuance.Entry{
		"no outcome":                 {Time: now},
		"no time":                    {Outcome: issuance.Failed},
		"time in the distant past":   {Time: now.AddDate(-1000, 0, 0), Outcome: issuance.Failed},
		"time in the distant future": {Time: now.AddDate(1000, 0, 0), Outcome: issuance.Failed},
		"no serial":                  Issued(now, "", time.Hour),
		"serial in capitals":         Issued(now, "1F", time.Hour),
		"issued without end":         {Time: now, Outcome: issuance.Issued, Serial: "1f"},
		"serial of 41 digits":        Issued(now, strings.Repeat("1", 41), time.Hour),
	} {
		if err := r.Append(t.Context(), e); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	// A certificate that practically never expires is kept and sorted last.
	never := Issued(now, "1f", time.Hour)
	never.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	Add(t, r, never, Issued(now, "2f", 1000*time.Hour))
	if got := strings.Join(List(t, r, issuance.Query{EndsAfter: now}), " "); got != "2f 1f" {
		t.Errorf("got %s, want 2f 1f", got)
	}
	if got := List(t, r, issuance.Query{EndsBefore: now.AddDate(100, 0, 0)}); len(got) != 1 {
		t.Errorf("end within 100 years: got %v, want one", got)
	}
}

package issuance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
)

func TestQueryMatchesAllConditions(t *testing.T) {
	at := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	e := issuance.Entry{
		Time: at, Outcome: issuance.Issued, Signer: "example.com/a", Requester: "system:bootstrap:qwertz", TokenID: "qwertz", Node: "worker-1", NotAfter: at.Add(time.Hour), CA: "sha256:1",
	}
	for name, test := range map[string]struct {
		q    issuance.Query
		want bool
	}{
		"everything":            {issuance.Query{}, true},
		"token":                 {issuance.Query{TokenID: "qwertz"}, true},
		"another token":         {issuance.Query{TokenID: "qwerty"}, false},
		"node":                  {issuance.Query{Node: "worker-1"}, true},
		"another node":          {issuance.Query{Node: "worker"}, false},
		"requester":             {issuance.Query{Requester: "system:bootstrap:qwertz"}, true},
		"another requester":     {issuance.Query{Requester: "jane"}, false},
		"signer":                {issuance.Query{Signer: "example.com/a"}, true},
		"another signer":        {issuance.Query{Signer: "example.com/b"}, false},
		"outcome":               {issuance.Query{Outcome: issuance.Issued}, true},
		"another outcome":       {issuance.Query{Outcome: issuance.Failed}, false},
		"CA":                    {issuance.Query{CA: "sha256:1"}, true},
		"another CA":            {issuance.Query{CA: "sha256:2"}, false},
		"not the CA":            {issuance.Query{NotCA: "sha256:1"}, false},
		"not another CA":        {issuance.Query{NotCA: "sha256:2"}, true},
		"since then":            {issuance.Query{Since: at}, true},
		"since later":           {issuance.Query{Since: at.Add(1)}, false},
		"ends before":           {issuance.Query{EndsBefore: at.Add(time.Hour + 1)}, true},
		"ends at":               {issuance.Query{EndsBefore: at.Add(time.Hour)}, false},
		"ends after":            {issuance.Query{EndsAfter: at.Add(time.Hour - 1)}, true},
		"has ended":             {issuance.Query{EndsAfter: at.Add(time.Hour)}, false},
		"several, all match":    {issuance.Query{TokenID: "qwertz", Node: "worker-1", Outcome: issuance.Issued, Since: at}, true},
		"several, one does not": {issuance.Query{TokenID: "qwertz", Node: "worker-2", Outcome: issuance.Issued, Since: at}, false},
	} {
		if got := test.q.Match(e); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
	renewal := issuance.Entry{Outcome: issuance.Refused, Requester: "system:node:worker-1", Node: "worker-2"}
	for node, want := range map[string]bool{"worker-1": true, "worker-2": true, "worker-3": false} {
		if got := (issuance.Query{Node: node}).Match(renewal); got != want {
			t.Errorf("request of worker-1 for worker-2, query for %s: got %t", node, got)
		}
	}
	if q := (issuance.Query{NotCA: "sha256:1"}); q.Match(renewal) || !q.Match(issuance.Entry{Outcome: issuance.Issued}) {
		t.Error("a query for certificates of other CAs wants those of an unknown CA, and no refusal")
	}
	for name, q := range map[string]issuance.Query{"before": {EndsBefore: at}, "after": {EndsAfter: at.Add(-time.Hour)}} {
		if q.Match(issuance.Entry{Outcome: issuance.Refused, NotAfter: at.Add(-time.Minute)}) {
			t.Errorf("ends %s: a query for the end of certificates matches a refusal", name)
		}
	}
}

func TestParseSerialNormalizesHex(t *testing.T) {
	for s, want := range map[string]string{
		"1f": "1f", "1F": "1f", "00:1F:A0": "1fa0", "0x1f": "1f", "0X1F": "1f", "0001": "1", strings.Repeat("f", 40): strings.Repeat("f", 40), "00" + strings.Repeat("f", 40): strings.Repeat("f", 40),
		"": "", "0": "", "1g": "", "1 f": "", "-1": "", strings.Repeat("1", 41): "", "ſ": "",
	} {
		got, err := issuance.ParseSerial(s)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("ParseSerial(%q) = %q, %v, want %q", s, got, err, want)
		}
	}
}

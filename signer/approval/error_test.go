package approval_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a message for a client that repeats an error with the name of an internal host.
func TestErrorIsRefusal(t *testing.T) {
	cause := errors.New("dial 192.0.2.1")
	for _, test := range []struct {
		no      approval.Error
		problem string
		retry   bool
	}{
		{approval.Error{Decision: approval.Decision{Verdict: approval.Deny, Message: "spent"}}, "certificate-refused", false},
		{approval.Error{Decision: approval.Decision{Verdict: approval.None, Message: "no rule"}}, "certificate-not-permitted", false},
		{approval.Error{Decision: approval.Decision{Verdict: approval.Wait, Message: "no Node"}}, "certificate-waits", true},
		{approval.Error{Decision: approval.Decision{Verdict: approval.Wait, Message: "not yet: dial 192.0.2.1"}, Err: cause}, "certificate-waits", true},
	} {
		var r *tokens.Refusal
		if !errors.As(&test.no, &r) || r.Reason != test.problem || r.Retry != test.retry || errors.Is(&test.no, cause) != (test.no.Err != nil) {
			t.Errorf("%+v: got %+v, want %s, retry %t, and the cause", test.no, r, test.problem, test.retry)
		} else if strings.Contains(r.Message, "192.0.2.1") || test.no.Err == nil && r.Message != test.no.Message {
			t.Errorf("%+v: got message %q", test.no, r.Message)
		}
	}
}

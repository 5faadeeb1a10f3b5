package explain

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// RequestKind is the kind of a RequestExplanation; its apiVersion is api.Version.
const RequestKind = "CertificateSigningRequestExplanation"

// What has happened to a request already, in RequestExplanation.Status.
const (
	StatusPending  = "Pending"
	StatusApproved = "Approved"
	StatusDenied   = "Denied"
	StatusFailed   = "Failed"
	StatusIssued   = "Issued"
)

// A RequestExplanation says what kubejoin would do about a certificate request, by each of its
// rules. It holds no secrets.
type RequestExplanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Name       string `json:"name,omitempty"`
	SignerName string `json:"signerName"`
	Requester  string `json:"requester"`
	Subject    string `json:"subject,omitempty"`
	// Status is what has happened to the request, one of the Status constants.
	Status string `json:"status"`

	// Verdict is what would be decided now if it were pending: approve, deny, wait or none. Reason
	// is for machines, Message for people, Rule is what decided.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Rule    string `json:"rule,omitempty"`
	// WaitsUntil is when a request that waits is no longer looked at.
	WaitsUntil time.Time `json:"waitsUntil,omitzero"`
	// Rules are what all rules say, each for itself, in the order in which they are asked; then
	// "signer", what is checked whoever approves, and "node-admission", who may have which name.
	Rules []RuleVerdict `json:"rules"`
	// NotBefore and NotAfter are what the certificate would have, if it were signed now.
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	// Notes are what should be known beside, in words.
	Notes []string `json:"notes,omitempty"`
}

// A RuleVerdict is what one rule says.
type RuleVerdict struct {
	Rule     string   `json:"rule"`
	Verdict  string   `json:"verdict"`
	Reason   string   `json:"reason,omitempty"`
	Message  string   `json:"message,omitempty"`
	Evidence []string `json:"evidence,omitempty"`
}

// OfRequest is an explanation of a request that has that status, in the words of an authority. A
// request that could not be read is refused.
func OfRequest(r approval.Request, status string, refused error, authority *signer.Explanation) RequestExplanation {
	e := RequestExplanation{
		APIVersion: api.Version, Kind: RequestKind, Rules: []RuleVerdict{},
		Name: clean(r.Name), SignerName: clean(r.SignerName), Requester: clean(r.User), Status: status,
	}
	if refused != nil {
		e.Verdict, e.Reason, e.Message = approval.None.String(), approval.ReasonValidation, clean(refused.Error())+"; it is not approved, and fails if somebody approves it"
		return e
	}
	e.Subject = clean(r.CSR.Subject.String())
	d := authority.Decision
	e.Verdict, e.Reason, e.Message, e.Rule = d.Verdict.String(), d.Reason, clean(d.Message), d.Rule
	if d.Verdict == approval.Wait && !r.Created.IsZero() {
		e.WaitsUntil = r.Created.Add(approval.MaxWait).UTC()
	}
	for _, s := range authority.Steps {
		v := RuleVerdict{Rule: s.Rule, Verdict: s.Verdict.String(), Reason: s.Reason, Message: clean(s.Message)}
		for _, seen := range s.Evidence {
			v.Evidence = append(v.Evidence, clean(seen))
		}
		e.Rules = append(e.Rules, v)
	}
	e.NotBefore, e.NotAfter = authority.NotBefore, authority.NotAfter
	return e
}

// Granted reports whether the request has its certificate, or would be approved.
func (e RequestExplanation) Granted() bool {
	return e.Status == StatusIssued || (e.Status == StatusPending || e.Status == StatusApproved) && e.Verdict == approval.Approve.String()
}

// Text is for people: what would be decided and why, then what each rule says and has seen.
func (e RequestExplanation) Text() string {
	var out strings.Builder
	name := e.Name
	if name == "" {
		name = "the request"
	}
	fmt.Fprintf(&out, "%s is %s; kubejoin's verdict: %s", name, strings.ToLower(e.Status), e.Verdict)
	if e.Reason != "" {
		fmt.Fprintf(&out, " (%s)", e.Reason)
	}
	fmt.Fprintf(&out, ": %s\n", e.Message)
	if !e.WaitsUntil.IsZero() {
		fmt.Fprintf(&out, "  it is looked at until %s\n", e.WaitsUntil.Format(time.RFC3339))
	}
	fmt.Fprintf(&out, "  signer %s, requester %s, subject %s\n", e.SignerName, e.Requester, e.Subject)
	if !e.NotAfter.IsZero() {
		fmt.Fprintf(&out, "  signed now it would be valid from %s to %s\n", e.NotBefore.Format(time.RFC3339), e.NotAfter.Format(time.RFC3339))
	}
	if len(e.Rules) > 0 {
		table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "RULE\tVERDICT\tREASON\tMESSAGE")
		for _, r := range e.Rules {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", r.Rule, r.Verdict, r.Reason, r.Message)
			for _, seen := range r.Evidence {
				fmt.Fprintf(table, "\t\t\t  %s\n", seen)
			}
		}
		_ = table.Flush() // into memory
	}
	for _, note := range e.Notes {
		fmt.Fprintln(&out, "note:", note)
	}
	return out.String()
}

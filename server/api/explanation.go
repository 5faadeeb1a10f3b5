package api

import (
	"crypto/x509"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// KindNodeExplanation is the kind of a NodeExplanation; its apiVersion is Version.
const KindNodeExplanation = "NodeExplanation"

// A NodeState says how far a node has got, or what keeps it: one word that does not change. Package server/explain has them all.
type NodeState string

// The states of a node that has joined.
const (
	// Joined: the Node is there and Ready.
	Joined NodeState = "Joined"
	// JoinedNotReady: the Node is there and not Ready.
	JoinedNotReady NodeState = "JoinedNotReady"
)

// A Fact is something that may not be readable, in words.
type Fact string

// A NodeExplanation says why a machine has or has not joined. It holds no secrets.
type NodeExplanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node  string    `json:"node"`
	State NodeState `json:"state"`
	// Since is when the state began; zero if that is not known.
	Since time.Time `json:"since,omitzero"`
	// Sentence is for people: the node, what is, and what to do.
	Sentence string `json:"sentence"`
	// Next are the commands to go on with, the best first.
	Next []string `json:"next,omitempty"`
	// Evidence has the facts that lead to this state.
	Evidence Evidence `json:"evidence"`
	// Unread are facts that could not be read.
	Unread []UnreadFact `json:"unread,omitempty"`
}

// Evidence has the facts that lead to the state of a NodeExplanation.
type Evidence struct {
	// Requests are the latest certificate requests for the name, at most [MaxEvidence], of
	// RequestCount in all; the first is the newest.
	Requests     []RequestEvidence `json:"requests,omitempty"`
	RequestCount int               `json:"requestCount,omitempty"`
	// Refused is how many of them were denied or have failed.
	Refused int `json:"refused,omitempty"`
	// Token is the one that the deciding request was made with.
	Token *TokenEvidence `json:"token,omitempty"`
	// Tokens are those limited to the name, at most [MaxEvidence], of TokenCount in all.
	Tokens     []TokenEvidence `json:"tokens,omitempty"`
	TokenCount int             `json:"tokenCount,omitempty"`
	Claim      *ClaimEvidence  `json:"claim,omitempty"`
	Event      *EventEvidence  `json:"event,omitempty"`
	Object     *NodeEvidence   `json:"object,omitempty"`
	Leader     *LeaderEvidence `json:"leader,omitempty"`
}

// MaxEvidence is the most requests, and the most tokens, that a NodeExplanation names.
const MaxEvidence = 10

// A TokenEvidence is a bootstrap token without its secret.
type TokenEvidence struct {
	ID string `json:"id"`
	// Status says whether the node can use the token: one of the constants of Token.Status.
	Status string `json:"status"`
	// Signed says whether cluster-info has its signature; nil if cluster-info was not read.
	Signed  *bool     `json:"signed,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	// MaxNodes and NodeNames are its limits, Nodes what has used it up.
	MaxNodes  int      `json:"maxNodes,omitempty"`
	NodeNames []string `json:"nodeNames,omitempty"`
	Nodes     []string `json:"nodes,omitempty"`
}

// A ClaimEvidence is a node name that was taken with a token.
type ClaimEvidence struct {
	TokenID string    `json:"tokenID"`
	Created time.Time `json:"created"`
	// NodeUID is that of the Node that has registered.
	NodeUID string `json:"nodeUID,omitempty"`
	Keys    int    `json:"keys"`
}

// HasJoined reports whether there is a Node and nothing newer stands in its way.
func (e NodeExplanation) HasJoined() bool { return e.State == Joined || e.State == JoinedNotReady }

// Text is the sentence, and a line for each command that is not in it and each fact that could
// not be read.
func (e NodeExplanation) Text() string {
	var out strings.Builder
	out.WriteString(e.Sentence + "\n")
	for _, command := range e.Next {
		if !strings.Contains(e.Sentence, command) {
			out.WriteString("  " + command + "\n")
		}
	}
	for _, u := range e.Unread {
		out.WriteString("  " + string(u.Fact) + " could not be read: " + u.Reason + "\n")
	}
	return out.String()
}

// An UnreadFact is a fact that could not be read, and why.
type UnreadFact struct {
	Fact   Fact   `json:"fact"`
	Reason string `json:"reason"`
}

// A RequestEvidence is one certificate request for the node name.
type RequestEvidence struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid"`
	Signer  string    `json:"signer"`
	User    string    `json:"user"`
	Groups  []string  `json:"-"`
	Created time.Time `json:"created"`
	// Approved, Denied and Failed are its conditions.
	Approved *RequestCondition `json:"approved,omitempty"`
	Denied   *RequestCondition `json:"denied,omitempty"`
	Failed   *RequestCondition `json:"failed,omitempty"`
	// Certificate is what was issued on it.
	Certificate *CertificateEvidence `json:"certificate,omitempty"`
	// Permitted says whether RBAC lets the request be approved by itself; nil where that was
	// not asked.
	Permitted *bool `json:"permitted,omitempty"`
}

// A RequestCondition is a condition of a request.
type RequestCondition struct {
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}

// A CertificateEvidence is a certificate that was issued.
type CertificateEvidence struct {
	// Writer is the field manager that wrote it; empty if that is not known.
	Writer string `json:"writer,omitempty"`
	// At is when it was written.
	At time.Time `json:"at"`
	// Chain is the certificate and what else came with it; empty if it cannot be parsed.
	Chain []*x509.Certificate `json:"-"`
}

// A NodeEvidence describes a Node object.
type NodeEvidence struct {
	UID     string    `json:"uid"`
	Created time.Time `json:"created"`
	// Ready is the status of the condition Ready: True, False or Unknown; empty if the kubelet
	// has not reported it yet.
	Ready   string    `json:"ready"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// An EventEvidence is something that was reported about an object.
type EventEvidence struct {
	// Name and Namespace are the Event's own.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Kind, Object and UID are what it is about.
	Kind    string    `json:"kind"`
	Object  string    `json:"object"`
	UID     string    `json:"-"`
	Source  string    `json:"source"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// A LeaderEvidence is the holder of the Lease by which kubejoin's replicas lead.
type LeaderEvidence struct {
	Namespace string `json:"namespace"`
	Lease     string `json:"lease"`
	Holder    string `json:"holder"`
	// Renewed is when it was last known to lead.
	Renewed time.Time `json:"renewed,omitzero"`
	// Duration is how long the others wait for it to be renewed.
	Duration time.Duration `json:"-"`
}

// KindRequestExplanation is the kind of a RequestExplanation; its apiVersion is Version.
const KindRequestExplanation = "CertificateSigningRequestExplanation"

// What has happened to a request already, in RequestExplanation.Status.
const (
	RequestPending  = "Pending"
	RequestApproved = "Approved"
	RequestDenied   = "Denied"
	RequestFailed   = "Failed"
	RequestIssued   = "Issued"
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
	// Status is what has happened to the request, one of the Request constants.
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

// Granted reports whether the request has its certificate, or would be approved.
func (e RequestExplanation) Granted() bool {
	return e.Status == RequestIssued || (e.Status == RequestPending || e.Status == RequestApproved) && e.Verdict == "approve"
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

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

// A NodeState is how far a node has joined, or what blocks it: one word that never changes. Package server/explain
// defines the other states.
type NodeState string

// The states of a node that has joined.
const (
	// Joined: the Node object exists and is Ready.
	Joined NodeState = "Joined"
	// JoinedNotReady: the Node object exists and is not Ready.
	JoinedNotReady NodeState = "JoinedNotReady"
)

// A Fact names an input of an explanation, for example "tokens". Reading it can fail.
type Fact string

// A NodeExplanation describes why a machine has or has not joined. It contains no secrets.
type NodeExplanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Node  string    `json:"node"`
	State NodeState `json:"state"`
	// Since is when the state began; zero if unknown.
	Since time.Time `json:"since,omitzero"`
	// Sentence is for people: the node name, its state and what to do.
	Sentence string `json:"sentence"`
	// Next lists the commands to run next, the best one first.
	Next []string `json:"next,omitempty"`
	// Evidence holds the facts behind the state.
	Evidence Evidence `json:"evidence"`
	// Unread lists the facts that could not be read.
	Unread []UnreadFact `json:"unread,omitempty"`
}

// Evidence holds the facts behind the state of a NodeExplanation.
type Evidence struct {
	// Requests are the newest certificate requests for the name, newest first, at most [MaxEvidence]. RequestCount is
	// the number of all of them.
	Requests     []RequestEvidence `json:"requests,omitempty"`
	RequestCount int               `json:"requestCount,omitempty"`
	// Refused is how many of all requests were denied or have failed.
	Refused int `json:"refused,omitempty"`
	// Token is the token of the request that decides the state.
	Token *TokenEvidence `json:"token,omitempty"`
	// Tokens are the tokens limited to the name, at most [MaxEvidence]. TokenCount is the number of all of them.
	Tokens     []TokenEvidence `json:"tokens,omitempty"`
	TokenCount int             `json:"tokenCount,omitempty"`
	Claim      *ClaimEvidence  `json:"claim,omitempty"`
	// Revocation is the revocation of the node.
	Revocation *RevocationEvidence `json:"revocation,omitempty"`
	Object     *NodeEvidence       `json:"object,omitempty"`
	Leader     *LeaderEvidence     `json:"leader,omitempty"`
	// Turn is set if the node joins as a control plane now, or waits for its turn.
	Turn *TurnEvidence `json:"turn,omitempty"`
}

// MaxEvidence is the maximum number of requests, and of tokens, in an Evidence.
const MaxEvidence = 10

// A TokenEvidence is a bootstrap token without its secret.
type TokenEvidence struct {
	ID string `json:"id"`
	// Status says whether the node can use the token; see Token.Status.
	Status string `json:"status"`
	// Signed reports whether cluster-info has a signature by the token; nil if cluster-info was not read.
	Signed  *bool     `json:"signed,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	// MaxNodes and NodeNames are the limits of the token. Nodes are the node names that it holds.
	MaxNodes  int      `json:"maxNodes,omitempty"`
	NodeNames []string `json:"nodeNames,omitempty"`
	Nodes     []string `json:"nodes,omitempty"`
}

// A ClaimEvidence is the claim of the node name.
type ClaimEvidence struct {
	TokenID string    `json:"tokenID"`
	Created time.Time `json:"created"`
	// NodeUID is the UID of the Node object, if the node has registered.
	NodeUID string `json:"nodeUID,omitempty"`
	Keys    int    `json:"keys"`
	// What the Node gets, as in TokenSpec.
	NodeLabels     []string `json:"nodeLabels,omitempty"`
	NodeTaints     []string `json:"nodeTaints,omitempty"`
	NodeReadyAfter string   `json:"nodeReadyAfter,omitempty"`
}

// A RevocationEvidence is the revocation of a node.
type RevocationEvidence struct {
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Allowed is the number of valid certificates that kubejoin has issued to the node since.
	Allowed int `json:"allowed"`
}

// HasJoined reports whether the Node object exists, is not revoked, and no newer request blocks the name.
func (e NodeExplanation) HasJoined() bool { return e.State == Joined || e.State == JoinedNotReady }

// Text returns the sentence, one line for each command that the sentence does not contain, and one for each unread
// fact.
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

// An UnreadFact is a fact that could not be read, with the reason.
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
	// Approved, Denied and Failed are the conditions of the request.
	Approved *RequestCondition `json:"approved,omitempty"`
	Denied   *RequestCondition `json:"denied,omitempty"`
	Failed   *RequestCondition `json:"failed,omitempty"`
	// Certificate is the certificate issued for the request.
	Certificate *CertificateEvidence `json:"certificate,omitempty"`
	// Permitted reports whether RBAC allows automatic approval of the request; nil if that was not checked.
	Permitted *bool `json:"permitted,omitempty"`
}

// A RequestCondition is a condition of a CertificateSigningRequest.
type RequestCondition struct {
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at"`
}

// A CertificateEvidence is an issued certificate.
type CertificateEvidence struct {
	// Writer is the field manager that wrote it; empty if unknown.
	Writer string `json:"writer,omitempty"`
	// At is when it was written.
	At time.Time `json:"at"`
	// Chain is the certificate and the intermediates that follow it; empty if it cannot be parsed.
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

// A LeaderEvidence describes the leader election Lease of kubejoin's replicas.
type LeaderEvidence struct {
	Namespace string `json:"namespace"`
	Lease     string `json:"lease"`
	Holder    string `json:"holder"`
	// Renewed is when the holder last renewed the Lease.
	Renewed time.Time `json:"renewed,omitzero"`
	// Duration is how long the other replicas wait for the holder to renew the Lease.
	Duration time.Duration `json:"-"`
}

// A TurnEvidence says which control plane joins now. The others wait, because etcd accepts one new member at a time.
type TurnEvidence struct {
	// Holder is the node name of the machine that joins now; empty if no machine joins. It has the turn since Since,
	// and last renewed it at Renewed.
	Holder  string    `json:"holder,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Renewed time.Time `json:"renewed,omitzero"`
	// Learner is the peer URL of a new etcd member that does not vote yet, if this member keeps all machines from
	// taking the turn.
	Learner string `json:"learner,omitempty"`
	// Waiting are the machines that wait, the first one first.
	Waiting []WaitingEvidence `json:"waiting,omitempty"`
}

// A WaitingEvidence is a machine that waits for the turn.
type WaitingEvidence struct {
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
}

// KindRequestExplanation is the kind of a RequestExplanation; its apiVersion is Version.
const KindRequestExplanation = "CertificateSigningRequestExplanation"

// Values of RequestExplanation.Status: what has already happened to the request.
const (
	RequestPending  = "Pending"
	RequestApproved = "Approved"
	RequestDenied   = "Denied"
	RequestFailed   = "Failed"
	RequestIssued   = "Issued"
)

// A RequestExplanation describes what kubejoin would decide about a certificate request, with the verdict of each
// rule. It contains no secrets.
type RequestExplanation struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Name       string `json:"name,omitempty"`
	SignerName string `json:"signerName"`
	Requester  string `json:"requester"`
	Subject    string `json:"subject,omitempty"`
	// Status is one of the Request constants: what has already happened to the request.
	Status string `json:"status"`

	// Verdict is what kubejoin would decide now if the request were pending: approve, deny, wait or none. Reason is
	// for programs, Message for people. Rule is the rule that decides.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Rule    string `json:"rule,omitempty"`
	// WaitsUntil is when kubejoin stops checking a waiting request.
	WaitsUntil time.Time `json:"waitsUntil,omitzero"`
	// Rules holds the independent verdict of every rule, in order of evaluation. Two more entries follow: "signer"
	// for the checks that apply to every approver, and "node-admission" for whether the node name may be issued.
	Rules []RuleVerdict `json:"rules"`
	// NotBefore and NotAfter are the validity of the certificate if it were signed now.
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	// Notes are further remarks for people.
	Notes []string `json:"notes,omitempty"`
}

// A RuleVerdict is the verdict of one rule.
type RuleVerdict struct {
	Rule     string   `json:"rule"`
	Verdict  string   `json:"verdict"`
	Reason   string   `json:"reason,omitempty"`
	Message  string   `json:"message,omitempty"`
	Evidence []string `json:"evidence,omitempty"`
}

// Granted reports whether the certificate was issued, or the request would be approved.
func (e RequestExplanation) Granted() bool {
	return e.Status == RequestIssued || (e.Status == RequestPending || e.Status == RequestApproved) && e.Verdict == "approve"
}

// Text returns the explanation for people: the verdict and its reason, then the verdict and evidence of each rule.
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
		fmt.Fprintf(&out, "  kubejoin keeps checking it until %s\n", e.WaitsUntil.Format(time.RFC3339))
	}
	fmt.Fprintf(&out, "  signer %s, requester %s, subject %s\n", e.SignerName, e.Requester, e.Subject)
	if !e.NotAfter.IsZero() {
		fmt.Fprintf(&out, "  if signed now, it would be valid from %s to %s\n", e.NotBefore.Format(time.RFC3339), e.NotAfter.Format(time.RFC3339))
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
		_ = table.Flush() // writes to memory cannot fail
	}
	for _, note := range e.Notes {
		fmt.Fprintln(&out, "note:", note)
	}
	return out.String()
}

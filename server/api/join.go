package api

import "time"

// KindJoinList is the kind of a JoinList.
const KindJoinList = "JoinList"

// A JoinState is how far a machine has joined.
type JoinState string

// The states of a Join.
const (
	// JoinStuck: the machine has not joined. It needs help, or takes longer than usual.
	JoinStuck JoinState = "stuck"
	// JoinJoining: the machine is joining.
	JoinJoining JoinState = "joining"
	// JoinExpected: a token or a machine with a key of its own has the name, and no certificate request has arrived.
	JoinExpected JoinState = "expected"
	// JoinJoined: the Node is Ready.
	JoinJoined JoinState = "joined"
)

// JoinStates are all states, in the order of a JoinList.
var JoinStates = []JoinState{JoinStuck, JoinJoining, JoinExpected, JoinJoined}

// The names of the steps of a Join, in order.
const (
	StepToken      = "token"      // somebody created the token of the machine
	StepRequested  = "requested"  // the machine requested its certificate
	StepClaimed    = "claimed"    // the token or the key of the machine claimed the node name
	StepIssued     = "issued"     // the certificate was issued
	StepRegistered = "registered" // the kubelet created the Node
	StepReady      = "ready"      // the Node is Ready
)

// The states of a step.
const (
	StepDone    = "done"
	StepWaiting = "waiting" // the step has not happened
	StepRefused = "refused"
	StepUnknown = "unknown" // there is no evidence, for example because the request was deleted
)

// A JoinStep is one step of a Join.
type JoinStep struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// At is when the step was done or refused; zero in other states.
	At time.Time `json:"at,omitzero"`
}

// A Join is how far a machine has joined under a node name. It contains no secrets.
type Join struct {
	Node  string    `json:"node"`
	State JoinState `json:"state"`
	// Since is when the State began; zero if unknown.
	Since time.Time `json:"since,omitzero"`
	// Reason is the state of the node in its NodeExplanation.
	Reason NodeState `json:"reason"`
	// TokenID is the token with which the machine joins; empty if unknown.
	TokenID string     `json:"tokenID,omitempty"`
	Steps   []JoinStep `json:"steps"`
	// Sentence and Next are those of the NodeExplanation, of a machine that is stuck.
	Sentence string   `json:"sentence,omitempty"`
	Next     []string `json:"next,omitempty"`

	// SortKey orders the machines of a list. Version is 8 bytes that change when the machine changes. Both are empty in a response.
	SortKey string `json:"-"`
	Version string `json:"-"`
}

// ListJoins selects the machines of a JoinList. Without Node and Token, they are the machines that have not joined, and those
// that have registered within the last hour.
type ListJoins struct {
	// Node is one node name.
	Node string `json:"node,omitempty"`
	// Token is the ID of the token of the machines.
	Token string `json:"token,omitempty"`
	// State is one of the JoinStates.
	State string `json:"state,omitempty"`

	// Limit and Continue are as in ListPage; the largest page, and the default, is MaxJoins.
	Limit    int    `json:"limit,omitempty" zero:"want 1 to 200; leave it out for the default"`
	Continue string `json:"continue,omitempty"`

	// After is the Cursor of an earlier JoinList of the same machines. The list then has only the items that have changed, and
	// the call waits for a change, for at most Wait, a Go duration of at most MaxJoinsWait.
	After string `json:"after,omitempty"`
	Wait  string `json:"wait,omitempty"`
}

// MaxJoins is the maximum number of machines in a JoinList.
const MaxJoins = 200

// MaxJoinsWait is the longest time that ListJoins.Wait allows.
const MaxJoinsWait = time.Minute

// A JoinList has the machines that join, the stuck ones first.
type JoinList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Items are the machines of a page; with ListJoins.After, only those that have changed.
	Items []Join `json:"items"`
	// Order has the node names of all machines of the page; nil without ListJoins.After.
	Order []string `json:"order,omitempty"`
	// Counts has the number of machines by state, on all pages and regardless of ListJoins.State.
	Counts map[JoinState]int `json:"counts"`
	// Nodes is how many nodes can join with the Token of the request; zero without a limit, and without a Token.
	Nodes int `json:"nodes,omitempty"`
	// Cursor is for ListJoins.After. It changes when a machine on any page and in any state changes.
	Cursor string `json:"cursor"`
	// Continue is for ListJoins.Continue; empty on the last page.
	Continue string `json:"continue,omitempty"`
	// Unread lists the facts that could not be read.
	Unread []UnreadFact `json:"unread,omitempty"`
}

package api

import "time"

// What can be said of a token in one word.
const (
	// StatusActive is of use.
	StatusActive = "active"
	// StatusSpent: as many nodes have joined as may.
	StatusSpent = "spent"
	// StatusExpired is to be deleted.
	StatusExpired = "expired"
	// StatusUnsigned: it is for signing, and cluster-info has no signature by it.
	StatusUnsigned = "unsigned"
	// StatusInvalid: what is stored is no good; Token.Problem says why.
	StatusInvalid = "invalid"
)

// Usages of tokens.
const (
	UsageSigning        = "signing"
	UsageAuthentication = "authentication"
)

// A Token is a bootstrap token as the API shows it.
type Token struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	ID string `json:"id"`
	// Token is the whole token, in the answer to its creation and nowhere else.
	Token Secret `json:"token,omitempty"`
	// JoinCommand has the token in it: it is where Token is, once cluster-info is there.
	JoinCommand Secret `json:"joinCommand,omitempty"`

	// Status is one of the Status constants.
	Status string `json:"status"`
	// Problem is what is wrong with it, if anything is.
	Problem string `json:"problem,omitempty"`

	Description string    `json:"description,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	// Expires is zero, and left out, if it never does.
	Expires time.Time `json:"expires,omitzero"`
	Usages  []string  `json:"usages"`
	Groups  []string  `json:"groups"`

	// What it is good for; zero is anything. See tokens.Limits.
	MaxNodes            int      `json:"maxNodes,omitempty"`
	NodeNames           []string `json:"nodeNames,omitempty"`
	CertificateDuration string   `json:"certificateDuration,omitempty"`
	Role                string   `json:"role,omitempty"`
	ReplacesNode        *Node    `json:"replacesNode,omitempty"`
	// Nodes are the names that were taken with it.
	Nodes []string `json:"nodes,omitempty"`

	// DryRun is set in answers about what would be.
	DryRun bool `json:"dryRun,omitempty"`
	// Warnings are what the person who asked should know, in words.
	Warnings []string `json:"warnings,omitempty"`
}

// A Node is one Node object.
type Node struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// A TokenList is all tokens, or a page of them, in the order of their IDs.
type TokenList struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Items      []Token  `json:"items"`
	Warnings   []string `json:"warnings,omitempty"`
	// Continue is the ListPage.Continue of the next page; empty if this is the last.
	Continue string `json:"continue,omitempty"`
}

// MaxPage is the most items of a page.
const MaxPage = 1000

// ListPage asks for a part of a list of tokens or claims. What is there from the first page to the
// last is on one of them, once, whatever comes and goes meanwhile.
type ListPage struct {
	// Limit is the most items of a page, 1 to 1000; zero is all that are left.
	Limit int `json:"limit,omitempty"`
	// Continue goes on behind a page.
	Continue string `json:"continue,omitempty"`
}

// A TokenSpec says what a token is to be. The zero TokenSpec is a token as kubeadm makes it. Every
// field can be a query parameter, too; lists are repeated then, or have commas.
type TokenSpec struct {
	// TTL is a Go duration; "0" is for ever, empty is tokens.DefaultTTL.
	TTL string `json:"ttl,omitempty"`
	// Expires takes the place of TTL: a time of RFC 3339.
	Expires string `json:"expires,omitempty"`
	// Usages are of the Usage constants; nil is both.
	Usages []string `json:"usages,omitzero"`
	// Groups are the user's beside system:bootstrappers; nil is tokens.DefaultGroup, if the
	// token is for authentication.
	Groups      []string `json:"groups,omitzero"`
	Description string   `json:"description,omitempty"`

	// What it is to be good for; zero is anything, but NodeNames that are empty and not nil are
	// refused. See tokens.Limits.
	MaxNodes            int      `json:"maxNodes,omitempty"`
	NodeNames           []string `json:"nodeNames,omitzero"`
	CertificateDuration string   `json:"certificateDuration,omitempty"` // a Go duration
	Role                string   `json:"role,omitempty"`
	// ReplaceNode is the name of a Node that exists now, whose name the token may take.
	ReplaceNode string `json:"replaceNode,omitempty"`
}

// CreateToken asks for a token.
type CreateToken struct {
	// Token is the caller's own; empty is one that the server makes. A caller who has made it
	// with tokens.Generate has it also if the answer is lost, and may ask again: if that token is
	// there, and everything else is as it was, it is the answer. It is never a query parameter.
	Token Secret `json:"token,omitempty"`
	TokenSpec
	// Wait is how long to wait for the signature, a Go duration; empty is the server's, "0" is
	// not at all. If it takes longer the token stays, and the problem names it.
	Wait string `json:"wait,omitempty"`
	// DryRun stores nothing.
	DryRun bool `json:"dryRun,omitempty"`
}

// RenewToken asks for another end of a token.
type RenewToken struct {
	// TTL counts from now; see CreateToken.
	TTL     string `json:"ttl,omitempty"`
	Expires string `json:"expires,omitempty"`
	// Shorten lets the token end sooner than it would have.
	Shorten bool `json:"shorten,omitempty"`
	DryRun  bool `json:"dryRun,omitempty"`
}

// DeleteToken asks for a token to go.
type DeleteToken struct {
	// OnlyExpired leaves a token alone that has not expired.
	OnlyExpired bool `json:"onlyExpired,omitempty"`
	DryRun      bool `json:"dryRun,omitempty"`
}

package api

import "time"

// Values of Token.Status.
const (
	// StatusActive: each usage of the token works.
	StatusActive = "active"
	// StatusSpent: the token's node limit is used up.
	StatusSpent = "spent"
	// StatusExpired: the token has expired and awaits deletion.
	StatusExpired = "expired"
	// StatusUnsigned: the token has the usage signing, and cluster-info has no signature by it.
	StatusUnsigned = "unsigned"
	// StatusUnknown: the token has the usage signing, and cluster-info could not be read.
	StatusUnknown = "unknown"
	// StatusInvalid: the stored token is malformed; Token.Problem says why.
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
	// Token is the token with its secret. Only the response that creates the token contains it.
	Token Secret `json:"token,omitempty"`
	// JoinCommand contains the token. It is set if Token is set and cluster-info exists.
	JoinCommand Secret `json:"joinCommand,omitempty"`

	// Status is one of the Status constants.
	Status string `json:"status"`
	// Problem describes what is wrong with the token, if anything is.
	Problem string `json:"problem,omitempty"`

	Description string    `json:"description,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	// Expires is zero, and omitted, if the token never expires.
	Expires time.Time `json:"expires,omitzero"`
	Usages  []string  `json:"usages"`
	Groups  []string  `json:"groups"`
	// Owner is the object whose deletion deletes the token, as TokenSpec.Owner.
	Owner string `json:"owner,omitempty"`

	// The limits that apply to the token; zero means unlimited. See tokens.Limits.
	MaxNodes            int      `json:"maxNodes,omitempty"`
	NodeNames           []string `json:"nodeNames,omitempty"`
	CertificateDuration string   `json:"certificateDuration,omitempty"`
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`
	ReplacesNode        *Node    `json:"replacesNode,omitempty"`
	// LimitedBy names the rule of --token-limits for each limit that is stricter than the token's own limit. For
	// NodeNames, it lists rules, separated by commas: a name must also match the names of each of these rules.
	LimitedBy map[string]string `json:"limitedBy,omitempty"`
	// NodeLabels, NodeTaints and NodeReadyAfter are as in TokenSpec.
	NodeLabels     []string `json:"nodeLabels,omitempty"`
	NodeTaints     []string `json:"nodeTaints,omitempty"`
	NodeReadyAfter string   `json:"nodeReadyAfter,omitempty"`
	// Nodes are the node names that the token holds.
	Nodes []string `json:"nodes,omitempty"`

	// DryRun is true if nothing was changed and the response only shows the effect.
	DryRun bool `json:"dryRun,omitempty"`
	// Warnings are messages for the person who sent the request.
	Warnings []string `json:"warnings,omitempty"`
}

// A Node identifies a Node object.
type Node struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// A TokenList holds all tokens or one page of them, sorted by ID.
type TokenList struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Items      []Token  `json:"items"`
	Warnings   []string `json:"warnings,omitempty"`
	// Continue is the ListPage.Continue of the next page; empty on the last page.
	Continue string `json:"continue,omitempty"`
}

// MaxPage is the maximum page size.
const MaxPage = 1000

const (
	// MaxTTL is the longest lifetime of a token that expires.
	MaxTTL = 10 * 365 * 24 * time.Hour
	// MaxWait is the longest time that a client can request to wait for a signature.
	MaxWait = 5 * time.Minute
)

// ListPage requests a page of tokens or claims. An item that exists from the first page to the last is on exactly one
// page, even if other items are created or deleted meanwhile.
type ListPage struct {
	// Limit is the page size, 1 to 1000; zero means all remaining items.
	Limit int `json:"limit,omitempty" zero:"want 1 to 1000; leave it out for the default"`
	// Continue requests the page after another page.
	Continue string `json:"continue,omitempty"`
}

// A TokenSpec describes a token to create. The zero TokenSpec is a token with kubeadm's defaults. Every field can
// also be a query parameter; lists are then repeated or comma-separated.
type TokenSpec struct {
	// TTL is a Go duration; "0" means the token never expires, empty means tokens.DefaultTTL.
	TTL string `json:"ttl,omitempty"`
	// Expires is an RFC 3339 time and replaces TTL.
	Expires string `json:"expires,omitempty"`
	// Usages are Usage constants; nil means both.
	Usages []string `json:"usages,omitzero"`
	// Groups are extra groups of the token's user, besides system:bootstrappers. Nil means tokens.DefaultGroup if the
	// token has the usage authentication.
	Groups      []string `json:"groups,omitzero" empty:"allowed"` // a token without groups has fewer permissions
	Description string   `json:"description,omitempty" empty:"allowed"`
	// Owner is a cluster-scoped object, as tokens.OwnerForm. When it is deleted, Kubernetes deletes the token.
	Owner string `json:"owner,omitempty"`

	// The limits of the token; zero means unlimited. The server refuses an empty, non-nil NodeNames. See
	// tokens.Limits.
	MaxNodes            int      `json:"maxNodes,omitempty" zero:"want 1 to 1000; leave it out for any number"` // 1000 is tokens.MaxNodes
	NodeNames           []string `json:"nodeNames,omitzero"`
	CertificateDuration string   `json:"certificateDuration,omitempty"` // a Go duration
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`
	// ReplaceNode is the name of an existing Node object. The token may be used to replace that node.
	ReplaceNode string `json:"replaceNode,omitempty"`

	// NodeLabels and NodeTaints are the labels and taints that kubejoin adds to the Nodes of the token: KEY=VALUE,
	// and KEY=VALUE:EFFECT or KEY:EFFECT. NodeReadyAfter has the meaning of the same field of
	// tokens.NodeProperties.
	NodeLabels     []string `json:"nodeLabels,omitzero"`
	NodeTaints     []string `json:"nodeTaints,omitzero"`
	NodeReadyAfter string   `json:"nodeReadyAfter,omitempty"`
}

// CreateToken requests a token.
type CreateToken struct {
	// Token is a token that the caller generated; if it is empty, the server generates one. With a token from
	// tokens.Generate, the caller can retry when the response is lost. If that token exists and the rest of the
	// request is the same, the server returns it. Token is never a query parameter.
	Token Secret `json:"token,omitempty"`
	TokenSpec
	// Wait is how long the server waits for the signature, as a Go duration. Empty means the server's default. "0"
	// means no wait. If it takes longer, the token remains, and the problem names it.
	Wait string `json:"wait,omitempty"`
	// DryRun validates the request and stores nothing.
	DryRun bool `json:"dryRun,omitempty"`
}

// RenewToken changes the expiration of a token.
type RenewToken struct {
	// TTL is the new lifetime, from now on; see TokenSpec.
	TTL     string `json:"ttl,omitempty"`
	Expires string `json:"expires,omitempty"`
	// Shorten allows a new expiration that is earlier than the old one.
	Shorten bool `json:"shorten,omitempty"`
	DryRun  bool `json:"dryRun,omitempty"`
}

// DeleteToken deletes a token.
type DeleteToken struct {
	// OnlyExpired keeps a token that has not expired.
	OnlyExpired bool `json:"onlyExpired,omitempty"`
	DryRun      bool `json:"dryRun,omitempty"`
}

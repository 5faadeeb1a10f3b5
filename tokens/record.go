package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// DefaultGroup is the default of [Record.Groups]. The RBAC rules of kubeadm allow this group to join.
const DefaultGroup = BootstrappersGroup + ":kubeadm:default-node-token"

// DefaultTTL is how long a token lives unless something else is asked for, as with kubeadm.
const DefaultTTL = 24 * time.Hour

// MaxDescription is the most bytes of a description.
const MaxDescription = 1024

// MaxNewGroups is the most groups of a new token.
const MaxNewGroups = 32

// A Record is a bootstrap token and what it is good for: the content of one
// bootstrap.kubernetes.io/token Secret, or of one row of the file store.
type Record struct {
	Token Token
	// Expires ends every use of the token. The zero time is never.
	Expires time.Time
	// Signing lets the token sign cluster-info (usage-bootstrap-signing).
	Signing bool
	// Authentication lets kube-apiserver accept the token as the user system:bootstrap:ID
	// (usage-bootstrap-authentication).
	Authentication bool
	// Groups are what the user has beside system:bootstrappers (auth-extra-groups). Each
	// begins with "system:bootstrappers:".
	Groups []string
	// Description is free text for people, of at most [MaxDescription] bytes.
	Description string

	// Limits is what the token is good for.
	Limits Limits
	// Nodes are the names of the nodes that have joined on a token with [Limits.Most], in the
	// order in which they did: this is the count that the limit is about. A name is taken out
	// only when a person releases its claim.
	Nodes []string

	// Problem is what is wrong with a record that was stored by others, or nil. kube-apiserver
	// does not accept such a token. Where its secret cannot be used Token holds the ID only,
	// and a malformed expiration has passed, as upstream has it.
	Problem error

	// Creator is whom a bound on the tokens of one user counts the token for, as [CreatorOf] returns
	// it; empty is nobody. It is at most 64 bytes. A store that does not keep it bounds nobody.
	Creator string

	// Created, UID and Version are the store's: when this record was made, what tells it from
	// an earlier one of the same ID, and its revision. [Store.Create] sets them.
	Created time.Time
	UID     string
	Version string
}

// NewRecord is the record of a token to join nodes with, as kubeadm makes it: both usages,
// [DefaultGroup], and ttl to live from now, in whole seconds. A ttl of zero is for ever.
func NewRecord(t Token, ttl time.Duration, now time.Time) Record {
	r := Record{Token: t, Signing: true, Authentication: true, Groups: []string{DefaultGroup}}
	if ttl != 0 {
		r.Expires = now.Add(ttl).UTC().Truncate(time.Second)
	}
	return r
}

// Expired reports whether the token is of no use any more at the time now.
func (r Record) Expired(now time.Time) bool {
	return !r.Expires.IsZero() && !now.Before(r.Expires)
}

// Spent reports whether no new node can join with the token: as many have as its limits allow.
func (r Record) Spent() bool {
	most := r.Limits.NodeLimit()
	return most > 0 && len(r.Nodes) >= most
}

// Signs reports whether cluster-info is to be signed with the token at the time now.
func (r Record) Signs(now time.Time) bool {
	return r.Signing && r.Token.HasSecret() && !r.Expired(now)
}

// Clone returns a copy that shares no slice with r.
func (r Record) Clone() Record {
	r.Groups, r.Nodes, r.Limits.NodeNames = slices.Clone(r.Groups), slices.Clone(r.Nodes), slices.Clone(r.Limits.NodeNames)
	return r
}

// Edit calls change on a copy of r and returns the copy. It fails if a store must not accept the copy
// in place of r. Implementations of [Store] use it in Update.
func (r Record) Edit(change func(*Record) error) (Record, error) {
	after := r.Clone()
	if err := change(&after); err != nil {
		return Record{}, err
	}
	if after.Token != r.Token || after.UID != r.UID || !after.Created.Equal(r.Created) {
		return Record{}, fmt.Errorf("update token %s: its Token, Created or UID cannot be changed", r.Token.ID())
	}
	if err := after.Check(); err != nil {
		return Record{}, fmt.Errorf("update token %s: %w", r.Token.ID(), err)
	}
	return after, nil
}

const maxCreator = 64

var groupPattern = regexp.MustCompile(`\A` + BootstrappersGroup + `:[a-z0-9:-]{0,255}[a-z0-9]\z`)

// CreatorOf returns the [Record.Creator] of a user: a hash of the name, which has a bounded size and
// does not show the name. A reader of the store can check a name that they guess. No name is nobody.
func CreatorOf(user string) string {
	if user == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(user))
	return hex.EncodeToString(sum[:16])
}

// CheckNew is Check for a record that somebody asks for. It bounds what one token costs in memory
// further than Check, which records of earlier versions have to pass.
func (r Record) CheckNew() error {
	errs := []error{r.Check()}
	if n := len(r.Groups); n > MaxNewGroups {
		errs = append(errs, fieldErrorf("groups", "%d given, %d allowed", n, MaxNewGroups))
	}
	if n := len(r.Limits.NodeNames); n > MaxNewNodeNames {
		errs = append(errs, fieldErrorf("node-names", "%d names given, %d allowed; a pattern such as rack7-* stands for many", n, MaxNewNodeNames))
	}
	if n := len(strings.Join(r.Limits.NodeNames, ",")); n > MaxNewNodeNamesBytes && n <= MaxNodeNamesBytes {
		errs = append(errs, fieldErrorf("node-names", "%d bytes given, %d allowed", n, MaxNewNodeNamesBytes))
	}
	return errors.Join(errs...)
}

// Check says what is wrong with a record that is to be stored, or nil. It names the field and
// the value wanted, never a secret. All that it finds is joined.
func (r Record) Check() error {
	var errs []error
	if !r.Token.HasSecret() {
		errs = append(errs, fieldErrorf("token", "none given"))
	}
	if r.Problem != nil {
		errs = append(errs, r.Problem)
	}
	if !r.Authentication && len(r.Groups) > 0 {
		errs = append(errs, fieldErrorf("groups", "%s need usage authentication", strings.Join(r.Groups, ",")))
	}
	bad := len(errs)
	for i, g := range r.Groups {
		if len(errs)-bad == 10 { // nobody reads thousands of them
			errs = append(errs, fieldErrorf("groups", "%d more are not looked at", len(r.Groups)-i))
			break
		}
		switch {
		case !groupPattern.MatchString(g):
			errs = append(errs, fieldErrorf("groups", "%q does not match %s", g, groupPattern))
		case slices.Contains(r.Groups[:i], g):
			errs = append(errs, fieldErrorf("groups", "%q is given twice", g))
		}
	}
	if len(r.Description) > MaxDescription {
		errs = append(errs, fieldErrorf("description", "%d bytes given, %d allowed", len(r.Description), MaxDescription))
	}
	if !utf8.ValidString(r.Description) || strings.ContainsFunc(r.Description, unicode.IsControl) {
		errs = append(errs, fieldErrorf("description", "want one line of valid UTF-8 without control characters"))
	}
	if len(r.Creator) > maxCreator {
		errs = append(errs, fieldErrorf("creator", "%d bytes given, %d allowed", len(r.Creator), maxCreator))
	}
	if err := r.Limits.Check(); err != nil {
		errs = append(errs, err)
	}
	for i, name := range r.Nodes {
		if err := CheckNodeName(name); err != nil {
			errs = append(errs, &FieldError{"nodes", err})
		} else if slices.Contains(r.Nodes[:i], name) {
			errs = append(errs, fieldErrorf("nodes", "%q is given twice", name))
		}
	}
	// RFC 3339 has four digits for the year.
	if !r.Expires.IsZero() && (r.Expires.UTC().Year() < 1970 || r.Expires.UTC().Year() > 9999) {
		errs = append(errs, fieldErrorf("expiration", "year %d given, want 1970 to 9999", r.Expires.UTC().Year()))
	}
	return errors.Join(errs...)
}

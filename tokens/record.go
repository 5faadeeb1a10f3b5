package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// DefaultGroup is the default of [Record.Groups]. The RBAC rules of kubeadm allow this group to join.
const DefaultGroup = BootstrappersGroup + ":kubeadm:default-node-token"

// DefaultTTL is the default lifetime of a token, as in kubeadm.
const DefaultTTL = 24 * time.Hour

// MaxDescription is the maximum length of a description, in bytes.
const MaxDescription = 1024

// MaxNewGroups is the maximum number of groups of a new token.
const MaxNewGroups = 32

// A Record is a bootstrap token with its properties: the content of one Secret of type
// bootstrap.kubernetes.io/token, or of one row of the file store.
type Record struct {
	Token Token
	// Expires is when the token expires. The zero time means that it never expires.
	Expires time.Time
	// Signing allows the token to sign cluster-info (usage-bootstrap-signing).
	Signing bool
	// Authentication allows the token to authenticate to kube-apiserver as the user
	// system:bootstrap:ID (usage-bootstrap-authentication).
	Authentication bool
	// Groups are the groups of the user besides system:bootstrappers (auth-extra-groups). Each
	// begins with "system:bootstrappers:".
	Groups []string
	// Description is free text for people, of at most [MaxDescription] bytes.
	Description string

	// Owner is the object that owns the token. Only Secrets have one.
	Owner Owner

	// Limits restricts the use of the token.
	Limits Limits
	// Nodes are the node names counted against [Limits.NodeLimit], in the order in which they were added.
	// kubejoin removes a name only when a person releases its claim, or when another token was faster to claim it.
	Nodes []string
	// Marks has notes about names in Nodes. A [Claims] sets them, and only the same kind of Claims understands them.
	Marks map[string]string

	// Problem is why a stored record is invalid, or nil. kube-apiserver does not accept such a token either,
	// unless it is a published example. If the Secret has no secret for this ID, Token has only the ID. With a
	// malformed secret the token signs, as in Kubernetes. A malformed expiration counts as expired.
	Problem error

	// Creator identifies the user whose token quota counts this token, as [CreatorOf] returns it. If it
	// is empty, no quota counts the token. It is at most 64 bytes. In a store that does not keep it,
	// quotas have no effect.
	Creator string

	// Created, UID and Version are set by the store: the creation time, the identifier that differs
	// from that of any earlier record with the same ID, and the revision.
	Created time.Time
	UID     string
	Version string
}

// NewRecord returns the record of a token for joining nodes, as kubeadm creates it: with both usages
// and [DefaultGroup]. It expires at now plus ttl, in whole seconds. With a ttl of zero it never expires.
func NewRecord(t Token, ttl time.Duration, now time.Time) Record {
	r := Record{Token: t, Signing: true, Authentication: true, Groups: []string{DefaultGroup}}
	if ttl != 0 {
		r.Expires = now.Add(ttl).UTC().Truncate(time.Second)
	}
	return r
}

// Expired reports whether the token has expired at the time now.
func (r Record) Expired(now time.Time) bool {
	return !r.Expires.IsZero() && !now.Before(r.Expires)
}

// Lifetime returns until when the token is valid, as the end of a sentence about it.
func (r Record) Lifetime(now time.Time) string {
	if r.Expires.IsZero() {
		return "stays valid until it is deleted"
	}
	verb := "expires"
	if r.Expired(now) {
		verb = "expired"
	}
	return verb + " at " + r.Expires.UTC().Format(time.RFC3339)
}

// UploadDescription is the description of a token that owns an upload of certificates, as in kubeadm.
const UploadDescription = "Proxy for managing TTL for the kubeadm-certs secret"

// OwnsUpload reports whether the token owns the Secret kubeadm-certs. Such a token has no usages. When it expires or is
// deleted, Kubernetes deletes the Secret.
func (r Record) OwnsUpload() bool {
	return r.Description == UploadDescription && !r.Signing && !r.Authentication
}

// Spent reports whether the node limit of the token is used up, so that no new node can join with it.
func (r Record) Spent() bool {
	most := r.Limits.NodeLimit()
	return most > 0 && len(r.Nodes) >= most
}

// NodesBeyond returns the names that r counts and other does not, in the order of r. It costs little while one record has
// all names of the other, in the same order. That is so after a token has admitted more nodes.
func (r Record) NodesBeyond(other Record) []string {
	names, others := r.Nodes, other.Nodes // no record counts a name twice
	for len(names) > 0 && len(others) > 0 && names[0] == others[0] {
		names, others = names[1:], others[1:]
	}
	counted := map[string]bool{}
	for _, name := range others {
		counted[name] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return counted[name] })
}

// ProblemText returns in one line why the record or its limits are malformed, or "".
func (r Record) ProblemText() string {
	err := errors.Join(r.Problem, r.Limits.Problem)
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// Disable removes everything that the token may do, and keeps its limits, names and expiration. So it admits nobody, and its
// claims stay. Malformed limits become what could be read of them.
func (r *Record) Disable() {
	r.Signing, r.Authentication, r.Groups, r.Limits.Problem = false, false, nil, nil
}

// Signs reports whether the signer of cluster-info must sign with the token at the time now.
func (r Record) Signs(now time.Time) bool {
	return r.Signing && r.Token.HasSecret() && !r.Expired(now)
}

// Clone returns a copy that shares no slice or map with r.
func (r Record) Clone() Record {
	r.Groups, r.Nodes, r.Limits.NodeNames = slices.Clone(r.Groups), slices.Clone(r.Nodes), slices.Clone(r.Limits.NodeNames)
	r.Marks, r.Limits.Rules = maps.Clone(r.Marks), slices.Clone(r.Limits.Rules)
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

// CreatorOf returns the [Record.Creator] of a user: a hash of the name, which is short and does not show
// the name. However, anyone who can read the store can check whether a guessed name matches. For an empty
// name, it returns an empty string.
func CreatorOf(user string) string {
	if user == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(user))
	return hex.EncodeToString(sum[:16])
}

// CheckNew is Check for a new record. It has lower limits, so that one token takes less memory. Check
// keeps the higher limits for records that earlier versions stored.
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

// Check returns an error if a store must not accept the record. It joins all errors. Each names the
// field and the expected value, and none contains a secret.
func (r Record) Check() error {
	var errs []error
	if !r.Token.HasSecret() {
		errs = append(errs, fieldErrorf("token", "none given"))
	} else if _, err := New(r.Token.ID(), r.Token.RevealSecret()); err != nil { // of ForSigning
		errs = append(errs, fieldErrorf("token", "%w", err))
	}
	if r.Problem != nil {
		errs = append(errs, r.Problem)
	}
	if !r.Authentication && len(r.Groups) > 0 {
		errs = append(errs, fieldErrorf("groups", "%s given, but groups need usage authentication", strings.Join(r.Groups, ",")))
	}
	bad := len(errs)
	for i, g := range r.Groups {
		if len(errs)-bad == 10 { // nobody reads thousands of errors
			errs = append(errs, fieldErrorf("groups", "%d more are not checked", len(r.Groups)-i))
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
	if r.Owner != (Owner{}) {
		if err := r.Owner.Check(); err != nil {
			errs = append(errs, &FieldError{"owner", err})
		}
	}
	if err := r.Limits.Check(); err != nil {
		errs = append(errs, err)
	}
	counted := map[string]bool{}
	for _, name := range r.Nodes {
		if err := CheckNodeName(name); err != nil {
			errs = append(errs, &FieldError{"nodes", err})
		} else if counted[name] {
			errs = append(errs, fieldErrorf("nodes", "%q is given twice", name))
		}
		counted[name] = true
	}
	// A year in RFC 3339 has four digits.
	if !r.Expires.IsZero() && (r.Expires.UTC().Year() < 1970 || r.Expires.UTC().Year() > 9999) {
		errs = append(errs, fieldErrorf("expiration", "year %d given, want 1970 to 9999", r.Expires.UTC().Year()))
	}
	return errors.Join(errs...)
}

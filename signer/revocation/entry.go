package revocation

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// Reason is the reason for refusing a request with a revoked credential.
const Reason = "Revoked"

// CredentialIDKey is the key in a user's extra under which kube-apiserver stores the ID of the credential. The ID of
// a client certificate is "X509SHA256=" and the SHA-256 of its DER in hexadecimal digits.
const CredentialIDKey = "authentication.kubernetes.io/credential-id"

const credentialPrefix = "X509SHA256="

// A Fingerprint is the SHA-256 of a certificate's DER, in 64 lower-case hexadecimal digits.
type Fingerprint string

// FingerprintOf returns the fingerprint of a certificate.
func FingerprintOf(cert *x509.Certificate) Fingerprint {
	sum := sha256.Sum256(cert.Raw)
	return Fingerprint(hex.EncodeToString(sum[:]))
}

// fingerprintForm is the prefix of fingerprints in text, as of CA pins.
const fingerprintForm = "sha256:"

// ParseFingerprint parses a fingerprint with or without the prefix "sha256:". It accepts upper case and colons between
// bytes, as 'openssl x509 -noout -fingerprint -sha256' prints them.
func ParseFingerprint(s string) (Fingerprint, error) {
	lower := strings.ToLower(s)
	for _, prefix := range []string{"sha256 fingerprint=", fingerprintForm} {
		lower = strings.TrimPrefix(lower, prefix)
	}
	digits := strings.ReplaceAll(lower, ":", "")
	if sum, err := hex.DecodeString(digits); err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("invalid fingerprint %.100q: want the SHA-256 of a certificate in 64 hexadecimal digits", safetext.Redact(s))
	}
	return Fingerprint(digits), nil
}

// String returns the fingerprint with the prefix "sha256:".
func (f Fingerprint) String() string { return fingerprintForm + string(f) }

// CredentialID returns the credential ID that kube-apiserver gives to a user of the certificate.
func (f Fingerprint) CredentialID() string { return credentialPrefix + string(f) }

// key returns the form that is allowed as the key of a ConfigMap. Its upper case letters distinguish it from a
// node name.
func (f Fingerprint) key() string { return strings.Replace(f.CredentialID(), "=", ".", 1) }

// fingerprintOfKey is the inverse of Fingerprint.key.
func fingerprintOfKey(s string) (Fingerprint, bool) {
	digits, found := strings.CutPrefix(s, strings.Replace(credentialPrefix, "=", ".", 1))
	f, err := ParseFingerprint(digits)
	return f, found && err == nil && string(f) == digits
}

// A Subject is the user of a credential.
type Subject struct {
	// Node is the name of the node; empty if the user is not a node.
	Node string
	// Fingerprints are the fingerprints of the client certificates that authenticated the user: usually one; none
	// if the user has another credential or the API server does not report it.
	Fingerprints []Fingerprint
}

// SubjectOf returns the subject of an authenticated user. Extra has the credential ID under [CredentialIDKey].
func SubjectOf(user string, groups []string, extra map[string][]string) Subject {
	var s Subject
	if name, found := strings.CutPrefix(user, tokens.NodeUserPrefix); found && slices.Contains(groups, tokens.NodesGroup) {
		s.Node = name
	}
	for _, id := range extra[CredentialIDKey] {
		if digits, found := strings.CutPrefix(id, credentialPrefix); found {
			if f, err := ParseFingerprint(digits); err == nil {
				s.Fingerprints = append(s.Fingerprints, f)
			}
		}
	}
	return s
}

// SubjectOfCertificate returns the user of a client certificate.
func SubjectOfCertificate(cert *x509.Certificate) Subject {
	s := SubjectOf(cert.Subject.CommonName, cert.Subject.Organization, nil)
	s.Fingerprints = []Fingerprint{FingerprintOf(cert)}
	return s
}

// Keys returns the keys of all entries that may bar the subject.
func (s Subject) Keys() []Key {
	var keys []Key
	for _, f := range s.Fingerprints {
		keys = append(keys, f.Key())
	}
	if s.Node != "" && tokens.CheckNodeName(s.Node) == nil {
		keys = append(keys, Key(s.Node))
	}
	return keys
}

// A Key identifies an entry: a node name, or "X509SHA256." and a fingerprint. It is a valid key of a ConfigMap.
type Key string

// Key returns the key of an entry that bars one certificate.
func (f Fingerprint) Key() Key { return Key(f.key()) }

// NodeKey returns the key of an entry that bars a node.
func NodeKey(node string) (Key, error) {
	if err := tokens.CheckNodeName(node); err != nil {
		return "", err
	}
	return Key(node), nil
}

// ParseKey parses the input of a person: a node name, or a fingerprint with the prefix "sha256:".
func ParseKey(s string) (Key, error) {
	if strings.HasPrefix(strings.ToLower(s), fingerprintForm) {
		f, err := ParseFingerprint(s)
		return f.Key(), err
	}
	return NodeKey(s)
}

// String returns the form that [ParseKey] accepts.
func (k Key) String() string {
	if f, found := fingerprintOfKey(string(k)); found {
		return f.String()
	}
	return string(k)
}

// maxAllowed is how many certificates an entry allows. A node needs two: its current certificate and the next one.
const maxAllowed = 8

// MaxReason is the maximum length of [Entry.Reason] and [Entry.By], in bytes.
const MaxReason = 256

// An Entry bars a node or one certificate. Either Node or Fingerprint is set.
type Entry struct {
	Node        string
	Fingerprint Fingerprint

	// Since is when the entry was made. Decisions do not depend on it.
	Since time.Time
	// Until is when the last certificate that the entry bars expires; zero if unknown. With zero, the entry stays in
	// effect until it is removed.
	Until time.Time
	// Reason is the operator's reason, and By is the user who revoked; either may be empty.
	Reason, By string
	// TokenID is the token whose nodes were revoked together; empty for other entries.
	TokenID string
	// Allowed has the certificates that kubejoin has issued to the node since then, with their expirations.
	Allowed map[Fingerprint]time.Time

	// Malformed is the problem of a stored entry that cannot be read. Such an entry bars its node or certificate.
	Malformed error
}

// Key returns the key of the entry.
func (e Entry) Key() Key {
	if e.Node != "" {
		return Key(e.Node)
	}
	return e.Fingerprint.Key()
}

// Ended reports whether no certificate that the entry bars can still be valid.
func (e Entry) Ended(now time.Time) bool {
	return e.Malformed == nil && !e.Until.IsZero() && now.After(e.Until)
}

// Covers reports whether a new entry bars a certificate, or whether the certificate is a serving certificate of its node.
func (e Entry) Covers(c Certificate) bool {
	return e.Node != "" && c.Node == e.Node || e.Node == "" && c.Fingerprint == e.Fingerprint
}

// End returns when the last certificate that a new entry bars expires; zero if cas is zero. cas is when the last CA
// that may have signed such a certificate expires. End also considers issued certificates, which can outlive a CA that
// was renewed with the same key. rejoin is how long a node can rejoin with an expired certificate. An entry for one
// known certificate of a user ends when this certificate expires.
func (e Entry) End(cas time.Time, rejoin time.Duration, issued []Certificate) time.Time {
	end := cas
	for _, c := range issued {
		switch {
		case !e.Covers(c):
		case e.Node == "" && c.Node == "":
			return c.NotAfter.UTC()
		case !cas.IsZero() && c.NotAfter.After(end):
			end = c.NotAfter.UTC()
		}
	}
	if !end.IsZero() {
		end = end.Add(rejoin)
	}
	return end
}

// Bars reports whether the entry bars the credential of a subject. It bars a node without a known certificate.
func (e Entry) Bars(s Subject, now time.Time) bool {
	if e.Ended(now) {
		return false
	}
	if e.Node == "" {
		return slices.Contains(s.Fingerprints, e.Fingerprint)
	}
	if e.Node != s.Node {
		return false
	}
	for _, f := range s.Fingerprints {
		if _, allowed := e.Allowed[f]; !allowed {
			return true
		}
	}
	return len(s.Fingerprints) == 0
}

// Allow adds a certificate that kubejoin issues to the node. It drops expired certificates and, if there are too
// many, the certificates that expire first. It never drops the certificate that the requester uses, or used
// before it rejoined.
func (e Entry) Allow(f Fingerprint, until time.Time, requester Subject, now time.Time) Entry {
	e.Allowed = maps.Clone(e.Allowed)
	if e.Allowed == nil {
		e.Allowed = map[Fingerprint]time.Time{}
	}
	maps.DeleteFunc(e.Allowed, func(g Fingerprint, end time.Time) bool {
		return now.After(end) && !slices.Contains(requester.Fingerprints, g)
	})
	for len(e.Allowed) >= maxAllowed {
		first := Fingerprint("")
		for g, end := range e.Allowed {
			if !slices.Contains(requester.Fingerprints, g) && (first == "" || end.Before(e.Allowed[first])) {
				first = g
			}
		}
		delete(e.Allowed, first)
	}
	e.Allowed[f] = until.UTC()
	return e
}

// Message says in one sentence that the credential is revoked, and why.
func (e Entry) Message() string {
	what := "certificate " + e.Fingerprint.String() + " is revoked"
	if e.Node != "" {
		what = "this certificate of node " + e.Node + " is revoked"
	}
	if !e.Since.IsZero() {
		what += " since " + e.Since.UTC().Format(time.RFC3339)
	}
	if e.Reason != "" {
		what += ": " + e.Reason
	}
	return what
}

// row is the JSON of an entry. The ValidatingAdmissionPolicy looks for `"X509SHA256.…":"` in it: text that a person
// enters cannot contain it, because JSON escapes quotation marks.
type row struct {
	Since   time.Time         `json:"since"`
	Until   time.Time         `json:"until,omitzero"`
	Reason  string            `json:"reason,omitempty"`
	By      string            `json:"by,omitempty"`
	TokenID string            `json:"tokenID,omitempty"`
	Allowed map[string]string `json:"allowed,omitempty"`
}

// Encode returns the value of an entry in a store.
func Encode(e Entry) ([]byte, error) {
	if e.Malformed != nil {
		return nil, e.Malformed
	}
	r := row{
		Since: e.Since.UTC().Truncate(time.Second), Until: e.Until.UTC().Truncate(time.Second),
		Reason: safetext.Text(e.Reason, MaxReason), By: safetext.Text(e.By, MaxReason), TokenID: e.TokenID,
	}
	for f, until := range e.Allowed {
		if r.Allowed == nil {
			r.Allowed = map[string]string{}
		}
		r.Allowed[f.key()] = until.UTC().Format(time.RFC3339)
	}
	return json.Marshal(r)
}

// Decode returns the entry of a key and a value. If the value cannot be read, the entry is Malformed and bars its
// node or certificate. If the key is invalid, Decode returns an error.
func Decode(key string, value []byte) (Entry, error) {
	var e Entry
	if f, found := fingerprintOfKey(key); found {
		e.Fingerprint = f
	} else if err := tokens.CheckNodeName(key); err == nil {
		e.Node = key
	} else {
		return e, fmt.Errorf("invalid key %.100q of a revocation: want a node name or %s and 64 hexadecimal digits", safetext.Redact(key), strings.Replace(credentialPrefix, "=", ".", 1))
	}
	var r row
	err := json.Unmarshal(value, &r)
	if err == nil && r.Since.IsZero() {
		err = errors.New("since is missing")
	}
	allowed := map[Fingerprint]time.Time{}
	for key, end := range r.Allowed {
		f, found := fingerprintOfKey(key)
		until, timeErr := time.Parse(time.RFC3339, end)
		if !found || timeErr != nil {
			err = errors.Join(err, errors.New("allowed has an invalid fingerprint or time"))
			continue
		}
		allowed[f] = until
	}
	if err != nil {
		e.Malformed = fmt.Errorf("malformed revocation of %s: %.200s", e.Key(), safetext.Printable(safetext.Redact(err.Error())))
		e.Reason = "its entry is malformed"
		return e, nil
	}
	e.Since, e.Until, e.TokenID = r.Since, r.Until, r.TokenID
	e.Reason, e.By = safetext.Text(r.Reason, MaxReason), safetext.Text(r.By, MaxReason)
	if len(allowed) > 0 {
		e.Allowed = allowed
	}
	return e, nil
}

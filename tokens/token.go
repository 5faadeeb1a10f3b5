package tokens

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unique"

	"github.com/kubejoin/kubejoin/internal/foreign"
)

// The form of a bootstrap token, \A([a-z0-9]{6})\.([a-z0-9]{16})\z, as kubeadm and
// kube-apiserver read it.
const (
	idLength     = 6
	secretLength = 16
	alphabet     = "abcdefghijklmnopqrstuvwxyz0123456789"
)

var (
	// ErrMalformed is wrapped by errors about text that is not a bootstrap token or token ID.
	ErrMalformed = errors.New("malformed")
	// ErrPublicExample is wrapped by errors about tokens that documentation prints: their
	// secret is known to everybody.
	ErrPublicExample = errors.New("published example")
)

// A Token is a bootstrap token: a public ID and a secret. It is a comparable value made by
// [Parse], [New] or [Generate] (or by [OnlyID], where the secret is not known), and never prints
// its secret: every verb of fmt, slog and JSON show the ID only. [Token.Reveal] is the way to
// the secret.
//
// The zero Token is no token.
type Token struct {
	id string
	// A handle, not a string: fmt reaches the unexported fields of a struct that holds a
	// Token by reflection, past its methods, and finds a pointer here.
	secret unique.Handle[string]
}

// Parse reads a token of the form "abcdef.0123456789abcdef". Its errors never hold the text
// given, which may be a mistyped secret; they wrap [ErrMalformed] or [ErrPublicExample].
func Parse(s string) (Token, error) {
	id, secret, _ := strings.Cut(s, ".")
	if !isWord(id, idLength) || !isWord(secret, secretLength) {
		// A misplaced dot may have made a piece of the secret the ID: neither part is shown.
		return Token{}, fmt.Errorf("%w token of %d characters, with the first dot at %d: want 6 of [a-z0-9], a dot and 16 of [a-z0-9]",
			ErrMalformed, len(s), strings.IndexByte(s, '.')+1)
	}
	return New(id, secret)
}

// New makes a token of its two parts. Its errors wrap [ErrMalformed] or [ErrPublicExample] and
// hold neither part unless the ID alone is at fault.
func New(id, secret string) (Token, error) {
	if err := CheckID(id); err != nil {
		return Token{}, err
	}
	if !isWord(secret, secretLength) {
		return Token{}, fmt.Errorf("%w secret of token %s: want 16 characters of [a-z0-9], not %d", ErrMalformed, id, len(secret))
	}
	if publicExamples[id+"."+secret] {
		return Token{}, fmt.Errorf("token %s is a %w that anybody knows: make one with 'kubejoin token generate'", id, ErrPublicExample)
	}
	return Token{id: id, secret: unique.Make(secret)}, nil
}

// OnlyID makes a Token whose secret is not known: it signs nothing and equals nothing. Its
// error wraps [ErrMalformed].
func OnlyID(id string) (Token, error) {
	if err := CheckID(id); err != nil {
		return Token{}, err
	}
	return Token{id: id}, nil
}

// Tokens that the documentation of Kubernetes, kubeadm and common installers prints.
var publicExamples = map[string]bool{
	"abcdef.0123456789abcdef": true,
	"abcdef.1234567890abcdef": true,
	"07401b.f395accd246ae52d": true,
	"5didvk.d09sbcov8ph2amjw": true,
	"8ewj1p.9r9hcjoqgajrj4gi": true,
	"9vr73a.a8uxyaju799qwdjv": true,
	"783bde.3f89s0fje9f38fhf": true,
	"b0f7b8.8d1767876297d85c": true,
}

// Generate makes a token from the operating system's CSPRNG, each character uniform over
// [a-z0-9]. It cannot fail: crypto/rand ends the program rather than give weak randomness.
func Generate() Token {
	for {
		t, err := New(randomWord(idLength), randomWord(secretLength))
		if err == nil { // one in 10^34 is a published example
			return t
		}
	}
}

func randomWord(n int) string {
	word := make([]byte, 0, n)
	var buf [32]byte
	for {
		_, _ = rand.Read(buf[:]) // documented never to fail
		for _, b := range buf {
			// 252 is the largest multiple of 36 in a byte: above it a remainder would favour
			// the first four letters.
			if b >= 252 {
				continue
			}
			word = append(word, alphabet[b%36])
			if len(word) == n {
				return string(word)
			}
		}
	}
}

// CheckID says why s is not a token ID, or nil. The error wraps [ErrMalformed].
func CheckID(s string) error {
	if !isWord(s, idLength) {
		if len(s) > 2*idLength { // perhaps a whole token: not to be repeated
			return fmt.Errorf("%w token ID of %d characters: want 6 of [a-z0-9]", ErrMalformed, len(s))
		}
		return fmt.Errorf("%w token ID %q: want 6 characters of [a-z0-9]", ErrMalformed, s)
	}
	return nil
}

func isWord(s string, n int) bool {
	return len(s) == n && strings.Trim(s, alphabet) == ""
}

// ID is the public part: it names the Secret, the signature in cluster-info and the user
// system:bootstrap:ID.
func (t Token) ID() string { return t.id }

// IsZero reports whether t is the zero Token.
func (t Token) IsZero() bool { return t == Token{} }

// HasSecret reports whether the secret is known: t is neither zero nor made by [OnlyID].
func (t Token) HasSecret() bool { return t.secret != unique.Handle[string]{} }

// Reveal is the whole token in clear text, to be handed to the machine that joins. It is empty
// without a secret.
func (t Token) Reveal() string {
	if !t.HasSecret() {
		return ""
	}
	return t.id + "." + t.secret.Value()
}

// RevealSecret is the secret part in clear text: what a Secret stores and what cluster-info is
// signed with.
func (t Token) RevealSecret() string {
	if !t.HasSecret() {
		return ""
	}
	return t.secret.Value()
}

// Equal compares in time that does not depend on where secrets differ. Tokens without a secret
// equal nothing.
func (t Token) Equal(u Token) bool {
	return t.HasSecret() && subtle.ConstantTimeCompare([]byte(t.Reveal()), []byte(u.Reveal())) == 1
}

// Redact replaces the secret of everything in text that has the form of a token, whatever stands
// beside it, and keeps the ID. It is for what people have typed or pasted, and a log or an error
// repeats. Redact a value before it is quoted or cut.
func Redact(text string) string { return foreign.Redact(text) }

// String is the ID with the secret blotted out.
func (t Token) String() string {
	if t.IsZero() {
		return "<no token>"
	}
	return t.id + ".<redacted>"
}

// GoString redacts like [Token.String].
func (t Token) GoString() string { return "tokens.Token(" + t.String() + ")" }

// Format redacts whatever the verb.
func (t Token) Format(f fmt.State, verb rune) {
	if verb == 'v' && f.Flag('#') {
		_, _ = f.Write([]byte(t.GoString()))
		return
	}
	_, _ = f.Write([]byte(t.String()))
}

// LogValue redacts like [Token.String].
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText redacts like [Token.String]: what needs the secret in a file or an answer calls
// [Token.Reveal] and says so.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

package tokens

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"unique"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// kubeadm and kube-apiserver require bootstrap tokens to match \A([a-z0-9]{6})\.([a-z0-9]{16})\z.
const (
	idLength     = 6
	secretLength = 16
	alphabet     = "abcdefghijklmnopqrstuvwxyz0123456789"
)

var (
	// ErrMalformed is wrapped by errors about text that is not a bootstrap token or token ID.
	ErrMalformed = errors.New("malformed")
	// ErrPublicExample is wrapped by errors about tokens that are printed in public documentation. Everybody knows the
	// secrets of these tokens.
	ErrPublicExample = errors.New("published example")
)

// A Token is a bootstrap token: a public ID and a secret. It is a comparable value that [Parse], [New] and [Generate]
// return. [OnlyID] returns a Token without a secret. [ForSigning] returns a Token with which no machine can join.
//
// A Token never prints its secret: all verbs of fmt, slog and JSON show only the ID. To get the
// secret, call [Token.Reveal].
//
// The zero Token has neither an ID nor a secret.
type Token struct {
	id string
	// If a Token is in an unexported field of another struct, fmt cannot call its methods and
	// prints its fields by reflection. With a handle, fmt prints a pointer instead of the secret.
	secret unique.Handle[string]
}

// Parse reads a token of the form "abcdef.0123456789abcdef". Its errors wrap [ErrMalformed] or
// [ErrPublicExample]. They do not contain malformed text, which may be a mistyped secret.
func Parse(s string) (Token, error) {
	id, secret, _ := strings.Cut(s, ".")
	if !isWord(id, idLength) || !isWord(secret, secretLength) {
		// If the dot is misplaced, the ID may contain a part of the secret. So the error shows neither.
		return Token{}, fmt.Errorf("%w token of %d characters, with the first dot at %d: want 6 of [a-z0-9], a dot and 16 of [a-z0-9]",
			ErrMalformed, len(s), strings.IndexByte(s, '.')+1)
	}
	return New(id, secret)
}

// New returns the token with this ID and secret. Its errors wrap [ErrMalformed] or
// [ErrPublicExample] and never contain the secret.
func New(id, secret string) (Token, error) {
	if err := CheckID(id); err != nil {
		return Token{}, err
	}
	if !isWord(secret, secretLength) {
		return Token{}, fmt.Errorf("%w secret of token %s: want 16 characters of [a-z0-9], not %d", ErrMalformed, id, len(secret))
	}
	if publicExamples[id+"."+secret] {
		return Token{}, fmt.Errorf("token %s is a %w, so others know it: generate one with 'kubejoin token generate'", id, ErrPublicExample)
	}
	return Token{id: id, secret: unique.Make(secret)}, nil
}

// ForSigning returns the token of a Secret whose token-secret is not 16 characters of [a-z0-9]. It signs cluster-info
// as in kube-controller-manager, but kubeadm and kube-apiserver refuse it. The error wraps [ErrMalformed].
func ForSigning(id, secret string) (Token, error) {
	t, err := OnlyID(id)
	if err != nil {
		return Token{}, err
	}
	if secret == "" {
		return Token{}, fmt.Errorf("%w secret of token %s: want at least one character", ErrMalformed, id)
	}
	t.secret = unique.Make(secret)
	return t, nil
}

// OnlyID returns a Token without a secret. It cannot sign, and [Token.Equal] reports false for it.
// The error wraps [ErrMalformed].
func OnlyID(id string) (Token, error) {
	if err := CheckID(id); err != nil {
		return Token{}, err
	}
	return Token{id: id}, nil
}

// publicExamples are the tokens in the documentation of Kubernetes, kubeadm and common installers.
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

// Generate returns a new token from the CSPRNG of the operating system. Each character is uniformly
// distributed over [a-z0-9]. It cannot fail: without secure randomness, crypto/rand ends the program.
func Generate() Token {
	for {
		t, err := New(randomWord(idLength), randomWord(secretLength))
		if err == nil { // about one in 10^34 tokens is a published example
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
			// 252 is the largest multiple of 36 in a byte. From 252 on, the remainder would favour
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

// CheckID returns an error that wraps [ErrMalformed] if s is not a token ID.
func CheckID(s string) error {
	if !isWord(s, idLength) {
		if len(s) > 2*idLength { // s may be a whole token, so the error must not show it
			return fmt.Errorf("%w token ID of %d characters: want 6 of [a-z0-9]", ErrMalformed, len(s))
		}
		return fmt.Errorf("%w token ID %q: want 6 characters of [a-z0-9]", ErrMalformed, s)
	}
	return nil
}

func isWord(s string, n int) bool {
	return len(s) == n && strings.Trim(s, alphabet) == ""
}

// ID returns the public part of the token. It appears in the name of the Secret, in cluster-info as
// the name of the signature, and in the user name system:bootstrap:ID.
func (t Token) ID() string { return t.id }

// IsZero reports whether t is the zero Token.
func (t Token) IsZero() bool { return t == Token{} }

// HasSecret reports whether t has a secret. The zero Token and tokens from [OnlyID] have none.
func (t Token) HasSecret() bool { return t.secret != unique.Handle[string]{} }

// Reveal returns the whole token in clear text, for the machine that joins. It is empty if t has no
// secret.
func (t Token) Reveal() string {
	if !t.HasSecret() {
		return ""
	}
	return t.id + "." + t.secret.Value()
}

// RevealSecret returns the token secret in clear text. A Secret stores it, and it is the key of the
// signature in cluster-info. It is empty if t has no secret.
func (t Token) RevealSecret() string {
	if !t.HasSecret() {
		return ""
	}
	return t.secret.Value()
}

// Equal reports whether both tokens are the same. It takes constant time, wherever the secrets differ. If a token has no
// secret, Equal returns false, even for the token itself.
func (t Token) Equal(u Token) bool {
	return t.HasSecret() && subtle.ConstantTimeCompare([]byte(t.Reveal()), []byte(u.Reveal())) == 1
}

// Redact replaces the secrets of all tokens in text and keeps their IDs. It finds tokens in the
// middle of other text too. Use it for text from users that goes to a log or an error. Call it before
// the text is quoted or cut.
func Redact(text string) string { return safetext.Redact(text) }

// String returns the ID with a redacted secret.
func (t Token) String() string {
	if t.IsZero() {
		return "<no token>"
	}
	return t.id + ".<redacted>"
}

// GoString redacts like [Token.String].
func (t Token) GoString() string { return "tokens.Token(" + t.String() + ")" }

// Format redacts the secret for every verb.
func (t Token) Format(f fmt.State, verb rune) {
	if verb == 'v' && f.Flag('#') {
		_, _ = f.Write([]byte(t.GoString()))
		return
	}
	_, _ = f.Write([]byte(t.String()))
}

// LogValue redacts like [Token.String].
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText redacts like [Token.String]. Code that writes the secret to a file or a response must
// call [Token.Reveal].
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Package safetext makes untrusted text safe to show in logs, Events, conditions, errors and terminals. Examples are
// object names and the subjects of certificate requests.
//
// It imports only the standard library and internal/dnsname, so that every package can use it.
package safetext

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

// Limits for [Text], in bytes.
const (
	// MaxName limits the name of an object, a user or a signer, and the subject of a certificate.
	MaxName = 300
	// MaxMessage limits the message of an Event, a condition or an error. An API server accepts 1,024 bytes in an Event.
	MaxMessage = 1024
)

// The form of a bootstrap token: [a-z0-9]{6}\.[a-z0-9]{16}.
const (
	idLength     = 6
	secretLength = 16
	redacted     = "<redacted>"
)

// Text returns text without the secrets of bootstrap tokens and without unprintable characters, cut to at most most
// bytes of UTF-8. It redacts first: once a secret is cut or escaped, Redact no longer recognizes it.
func Text(text string, most int) string {
	const more = "…"
	text = Printable(Redact(text))
	if len(text) <= most {
		return text
	}
	end := most - len(more)
	if end < 0 {
		return ""
	}
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// Redact replaces the secret in everything that has the form of a bootstrap token. It keeps the token ID, which is public. It
// also finds a token with other text directly before or after it, and replaces letters and digits that follow the secret.
func Redact(text string) string {
	var kept strings.Builder
	copied := 0
	for i := 0; ; {
		dot := strings.IndexByte(text[i:], '.')
		if dot < 0 {
			break
		}
		dot += i
		i = dot + 1
		if dot < idLength || !isWord(text[dot-idLength:dot]) || len(text)-i < secretLength || !isWord(text[i:i+secretLength]) {
			continue
		}
		for i < len(text) && isWord(text[i:i+1]) {
			i++
		}
		kept.WriteString(text[copied:dot+1] + redacted)
		copied = i
	}
	if copied == 0 {
		return text
	}
	kept.WriteString(text[copied:])
	return kept.String()
}

// isWord reports whether s consists of the characters of a token.
func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Printable returns text on one line of valid UTF-8. White space becomes a space. Any other unprintable character,
// for example a terminal escape, becomes U+FFFD.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r): // including U+FFFD, which range returns for an invalid byte
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return utf8.RuneError
	}, text)
}

// Duration formats a duration in the form of Go without the zeros at its end: 24h, not 24h0m0s.
func Duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Args redacts the arguments of a fmt call in place: strings, bytes, lists of strings, errors and Stringers. Call it
// before formatting: a verb with a precision, for example %.40q, could cut a secret so that Redact does not find it.
// Args formats durations with [Duration].
func Args(args []any) {
	for i, arg := range args {
		switch v := arg.(type) {
		case nil:
		case string:
			args[i] = Redact(v)
		case []byte:
			args[i] = Redact(string(v))
		case []string:
			list := make([]string, len(v))
			for j, s := range v {
				list[j] = Redact(s)
			}
			args[i] = list
		case time.Duration:
			args[i] = Duration(v)
		case error, fmt.Stringer:
			args[i] = Redact(fmt.Sprint(v)) // Sprint survives a nil pointer
		default:
			if reflect.TypeOf(v).Kind() == reflect.String {
				args[i] = Redact(reflect.ValueOf(v).String())
			}
		}
	}
}

// SafeInShell reports whether a name is safe in a command that a person pastes into a shell. It must be an RFC 1123
// subdomain and contain no token secret. kube-apiserver accepts other names for a CertificateSigningRequest.
func SafeInShell(name string) bool {
	return dnsname.IsSubdomain(name) && Redact(name) == name
}

// Quote returns s as one word of a POSIX shell. It quotes only if needed.
func Quote(s string) string {
	if s == "" || strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,=", c)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// ShowCSR returns a command that shows a CertificateSigningRequest. It uses the UID if the name is unsafe in a shell.
func ShowCSR(name, uid string) string {
	switch {
	case SafeInShell(name):
		return "kubectl describe csr " + name
	case SafeInShell(uid):
		return `kubectl get csr -o jsonpath='{.items[?(@.metadata.uid=="` + uid + `")]}'`
	}
	return "kubectl get csr"
}

// List returns a list with a word before its last item, for example: a, b or c.
func List[T ~string](all []T, word string) (text string) {
	for i, item := range all {
		switch {
		case i > 0 && i == len(all)-1:
			text += " " + word + " "
		case i > 0:
			text += ", "
		}
		text += string(item)
	}
	return cmp.Or(text, "none")
}

// Few returns the first three of a list, and the number of the others.
func Few(all []string) string {
	text := strings.Join(all[:min(len(all), 3)], ", ")
	if more := len(all) - 3; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

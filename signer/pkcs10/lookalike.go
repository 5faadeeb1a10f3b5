package pkcs10

import (
	"strings"
	"unicode"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/text/unicode/norm"
)

// reservedPrefix begins the names of users and groups that Kubernetes itself gives a meaning.
const reservedPrefix = "system:"

// Letters of other alphabets, and colons, that look like those of ASCII and are not decomposed to
// them by Unicode.
var lookalikes = strings.NewReplacer(
	"а", "a", "е", "e", "о", "o", "р", "p", "с", "c", "у", "y", "х", "x", "ѕ", "s", "і", "i", "ј", "j", "ԁ", "d", "һ", "h", "м", "m", "т", "t", // Cyrillic
	"α", "a", "ε", "e", "ο", "o", "ρ", "p", "υ", "u", "ν", "v", "τ", "t", "ι", "i", "κ", "k", "γ", "y", "χ", "x", // Greek
	"ı", "i", "ɑ", "a", "ɡ", "g", "ꜱ", "s", "ʏ", "y", "ᴛ", "t", "ᴇ", "e", "ᴍ", "m", "ᴀ", "a", "ʀ", "r", "ɴ", "n", "ᴏ", "o", "ᴅ", "d",
	"∶", ":", "꞉", ":", "ː", ":", "˸", ":", "։", ":", "׃", ":", "։", ":",
)

// foldName is what a person, or a program that folds names, may take a name for: in lower case,
// without spaces, marks and what cannot be seen.
func foldName(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Cf, r) || unicode.IsSpace(r) || unicode.IsControl(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(name))
	return lookalikes.Replace(name)
}

// checkReserved says, with a [*approval.Refused], whether the name of a user or group only looks like one
// of Kubernetes' own. To kube-apiserver it is another one, but not to everybody who reads it.
func checkReserved(name string) error {
	as := foldName(name)
	if !strings.HasPrefix(as, reservedPrefix) {
		return nil
	}
	exact := strings.HasPrefix(name, reservedPrefix) && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	if !exact || as != name && (as == tokens.MastersGroup || as == tokens.NodesGroup) {
		return approval.Refuse("the subject has the name %+.100q, which reads as %.100q: names that begin with %q are written in visible ASCII and small letters", name, as, reservedPrefix)
	}
	return nil
}

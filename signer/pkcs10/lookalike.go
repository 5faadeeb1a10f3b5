package pkcs10

import (
	"strings"
	"unicode"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/text/unicode/norm"
)

// lookalikes maps letters of other alphabets and colons to the ASCII characters that they look like. Unicode
// decomposition does not map these characters to ASCII.
var lookalikes = strings.NewReplacer(
	"а", "a", "е", "e", "о", "o", "р", "p", "с", "c", "у", "y", "х", "x", "ѕ", "s", "і", "i", "ј", "j", "ԁ", "d", "һ", "h", "м", "m", "т", "t", // Cyrillic
	"α", "a", "ε", "e", "ο", "o", "ρ", "p", "υ", "u", "ν", "v", "τ", "t", "ι", "i", "κ", "k", "γ", "y", "χ", "x", // Greek
	"ı", "i", "ɑ", "a", "ɡ", "g", "ꜱ", "s", "ʏ", "y", "ᴛ", "t", "ᴇ", "e", "ᴍ", "m", "ᴀ", "a", "ʀ", "r", "ɴ", "n", "ᴏ", "o", "ᴅ", "d",
	"∶", ":", "꞉", ":", "ː", ":", "˸", ":", "։", ":", "׃", ":", "։", ":",
)

// foldName returns a name as a person, or a program that folds names, may read it: in lower case, without spaces,
// marks and invisible characters.
func foldName(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Cf, r) || unicode.IsSpace(r) || unicode.IsControl(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(name))
	return lookalikes.Replace(name)
}

// checkSystemName returns an [*approval.Error] for the name of a user or group that only looks like a name reserved by
// Kubernetes. kube-apiserver distinguishes the two, but people who read them may not.
func checkSystemName(name string) error {
	as := foldName(name)
	if !strings.HasPrefix(as, tokens.SystemPrefix) {
		return nil
	}
	exact := strings.HasPrefix(name, tokens.SystemPrefix) && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	if !exact || as != name && (as == tokens.MastersGroup || as == tokens.NodesGroup) {
		return approval.Refuse("the subject has name %+.100q, which looks like %.100q: names that begin with %q must be lower-case printable ASCII", name, as, tokens.SystemPrefix)
	}
	return nil
}

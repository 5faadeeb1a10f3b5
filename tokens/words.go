package tokens

import (
	"encoding/binary"
	"encoding/hex"
	"regexp"
	"strings"
)

// The letters of a proquint (arXiv:0901.4016), which shows 16 bits as five letters.
const (
	consonants = "bdfghjklmnprstvz"
	vowels     = "aiou"
	proquint   = "[" + consonants + "][" + vowels + "][" + consonants + "][" + vowels + "][" + consonants + "]"
)

var fourWords = regexp.MustCompile(`\A` + proquint + `(-` + proquint + `){3}\z`)

// Words returns the first 64 bits of a key in [Claim.Keys] as four words, such as lusab-babad-gutih-tugad. A person can
// compare them with those on a machine's console. If key has another form, Words returns "".
func Words(key string) string {
	digits, found := strings.CutPrefix(key, "sha256:")
	sum, err := hex.DecodeString(digits)
	if !found || err != nil || len(sum) != 32 || digits != strings.ToLower(digits) {
		return ""
	}
	var words []byte
	for ; len(words) < 24; sum = sum[2:] {
		n := binary.BigEndian.Uint16(sum)
		words = append(words, consonants[n>>12], vowels[n>>10&3], consonants[n>>6&15], vowels[n>>4&3], consonants[n&15], '-')
	}
	return string(words[:23])
}

// IsWords reports whether s has the form of [Words].
func IsWords(s string) bool { return fourWords.MatchString(s) }

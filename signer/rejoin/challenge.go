package rejoin

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// challengeTTL is how long a challenge is valid. The clocks of two replicas may differ by as much.
const challengeTTL = time.Minute

// purpose is the purpose of the CA's secret that challenges are made with.
const purpose = "kubejoin rejoin challenge v1"

// A challenge is its time in microseconds and a MAC of it, in base64url without padding. Every process with the key
// accepts it, and nobody else can make one, so that nobody signs challenges in advance.
const challengeSize = 8 + sha256.Size

func newChallenge(key []byte, now time.Time) string {
	at := binary.BigEndian.AppendUint64(nil, uint64(now.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(at, macOf(key, at)...))
}

// checkChallenge returns when a challenge was made. It reports false for any other text, and for one that is too old.
func checkChallenge(key []byte, text string, now time.Time) (made time.Time, ok bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// DecodeString ignores line breaks, which would give one challenge several texts.
	if err != nil || len(text) != base64.RawURLEncoding.EncodedLen(challengeSize) || !hmac.Equal(raw[8:], macOf(key, raw[:8])) {
		return time.Time{}, false
	}
	made = time.UnixMicro(int64(binary.BigEndian.Uint64(raw))).UTC()
	age := now.Sub(made)
	return made, age > -challengeTTL && age < challengeTTL
}

func macOf(key, text []byte) []byte {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write(text) // never fails
	return mac.Sum(nil)
}

package doctor

import (
	"errors"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
)

func checkTokens(f *Facts) []Finding {
	var all []Finding
	for _, r := range f.Tokens {
		id := r.Token.ID()
		switch {
		case errors.Is(r.Problem, tokens.ErrPublicExample):
			all = append(all, found("token-guessable", "kubejoin token delete "+id, "the secret of token %s is in public documentation", id))
			continue
		case r.Problem != nil:
			all = append(all, found("token-malformed", "kubejoin token delete "+id, "token %s is malformed: %s", id, oneLine(r.Problem)))
			continue
		case r.Expired(f.Time):
			continue // expired: the token-cleaner deletes it
		}
		if why := handPicked(r.Token.RevealSecret()); why != "" {
			all = append(all, found("token-guessable", "kubejoin token delete "+id,
				"the secret of token %s was picked by hand: %s; cluster-info lets anybody test guesses", id, why))
		}
		if r.Limits.Problem != nil {
			all = append(all, found("token-malformed", "kubejoin token delete "+id, "the limits of token %s are malformed, so it admits nobody: %s", id, oneLine(r.Limits.Problem)))
		}
		if f.UploadMissing && r.Limits.Role == tokens.RoleControlPlane && !r.Spent() {
			all = append(all, found("upload-missing", "kubejoin token create --print-join-command --control-plane",
				"token %s admits a control plane, and there are no uploaded certificates, so a join command with --certificate-key fails", id))
		}
		if r.Expires.IsZero() {
			all = append(all, found("token-never-expires", "kubejoin token renew "+id+" --ttl 24h --shorten", "token %s never expires", id))
		}
	}
	return all
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// words are parts of secrets that people pick.
var words = []string{"kubeadm", "kubernetes", "kubejoin", "password", "passwd", "secret", "default", "cluster", "qwerty", "qwertz", "asdfgh", "letmein", "bootstrap"}

// handPicked returns why a token secret looks picked by hand; empty if it looks random. A random secret looks picked
// with a probability below one in a million.
func handPicked(secret string) string {
	different := map[rune]bool{}
	for _, c := range secret {
		different[c] = true
	}
	switch {
	case len(different) <= 5:
		return "it has few different characters"
	case strings.Trim(secret, "0123456789") == "":
		return "it has only digits"
	case longestRun(secret) >= 6:
		return "it contains a sequence such as 123456 or aaaaaa"
	case len(secret)%2 == 0 && secret[:len(secret)/2] == secret[len(secret)/2:]:
		return "it repeats itself"
	}
	for _, word := range words {
		if strings.Contains(secret, word) {
			return "it contains a word"
		}
	}
	return ""
}

// longestRun returns the length of the longest part of s whose characters are equal, ascending or descending, for
// example aaa, abc or 321.
func longestRun(s string) int {
	longest := min(len(s), 1)
	for _, step := range []int{-1, 0, 1} {
		run := 1
		for i := 1; i < len(s); i++ {
			if int(s[i])-int(s[i-1]) == step {
				run++
			} else {
				run = 1
			}
			longest = max(longest, run)
		}
	}
	return longest
}

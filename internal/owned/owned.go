// Package owned checks that nobody but the caller and root can change a file or put another one in
// its place.
package owned

import (
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/internal/foreign"
)

// quote returns s as one word of a shell. A path that cannot be printed becomes a placeholder:
// another user may have chosen it.
func quote(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return "PATH"
	}
	return foreign.Quote(s)
}

// show returns a path for a message.
func show(path string) string {
	if strings.ContainsFunc(path, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.QuoteToASCII(path)
	}
	return path
}

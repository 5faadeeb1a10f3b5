// Package trustedpath checks that only the caller and root can change or replace a file.
package trustedpath

import (
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// quote quotes a path for a shell. An unprintable path becomes the placeholder PATH, because another user may have
// chosen it.
func quote(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return "PATH"
	}
	return safetext.Quote(s)
}

// show returns a path for a message, quoted if it is unprintable.
func show(path string) string {
	if strings.ContainsFunc(path, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.QuoteToASCII(path)
	}
	return path
}

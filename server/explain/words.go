package explain

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// span is a duration as a person says it.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// ago of the zero time is "at an unknown time".
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "at an unknown time"
	}
	return span(now.Sub(t)) + " ago"
}

// maxMessage is the most characters of another's message in a sentence.
const maxMessage = 700

// clean makes a message that others wrote fit into a sentence: one line, no control characters,
// not without end.
func clean(message string) string {
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	message = strings.TrimRight(message, " .")
	if runes := []rune(message); len(runes) > maxMessage {
		message = string(runes[:maxMessage]) + "…"
	}
	return message
}

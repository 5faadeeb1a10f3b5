package api

import "log/slog"

// A Secret is text that is sent in clear but redacted in output: all fmt verbs except %x, and slog, only show that it
// is set. JSON contains the text, because the API transports it.
type Secret string

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "<redacted>"
}

// GoString redacts like [Secret.String].
func (s Secret) GoString() string { return `api.Secret("` + s.String() + `")` }

// LogValue redacts like [Secret.String].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

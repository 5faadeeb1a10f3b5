package api

import "log/slog"

// A Secret is text that is sent in clear and printed nowhere: every verb of fmt but %x and
// slog show that there is one. JSON carries it, for that is what this package is about.
type Secret string

// Reveal is the text.
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

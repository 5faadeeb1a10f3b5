// Package logging creates the structured logger of the program. It removes secrets and control characters from
// untrusted text.
package logging

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"k8s.io/klog/v2"
)

// MaxVerbosity is the highest verbosity. From 8 on, client-go would log response bodies, which contain tokens if the
// object is a Secret.
const MaxVerbosity = 6

// maxLogged is the maximum size of one logged value, in bytes.
const maxLogged = 4096

// cleanAttr cleans every value, because libraries log untrusted text unchanged.
func cleanAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(safetext.Text(v, maxLogged))
	case slog.Level, time.Time, time.Duration: // these types format safely
	case error, fmt.Stringer:
		a.Value = slog.StringValue(safetext.Text(fmt.Sprint(v), maxLogged)) // Sprint survives a nil pointer
	}
	return a
}

// New returns a logger. format is text or json. verbosity has the same levels as in klog: 0 is for operators, 1 and
// more for debugging. 4 and more includes API calls.
func New(w io.Writer, format string, verbosity int) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: cleanAttr}
	if verbosity > 0 {
		options.Level = slog.Level(-4 * verbosity)
	}
	var h slog.Handler
	switch format {
	case "text":
		h = slog.NewTextHandler(w, options)
	case "json":
		h = slog.NewJSONHandler(w, options)
	default:
		return nil, fmt.Errorf("--log-format: %q given, want text or json", format)
	}
	return slog.New(h), nil
}

// RouteKlog sends the logs of client-go and other libraries to log. klog is global: call it once.
func RouteKlog(log *slog.Logger, verbosity int) error {
	if verbosity >= 4 {
		flags := flag.NewFlagSet("klog", flag.ContinueOnError)
		klog.InitFlags(flags)
		if err := flags.Set("v", strconv.Itoa(min(verbosity, MaxVerbosity))); err != nil {
			return err
		}
	}
	klog.SetSlogLogger(log)
	return nil
}

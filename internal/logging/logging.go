// Package logging makes the logger of the program: structured, and without secrets and control characters
// that others chose.
package logging

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"k8s.io/klog/v2"
)

// MaxVerbosity is the highest verbosity. From 8 on, client-go would log the bodies of responses, and
// those of Secrets hold tokens.
const MaxVerbosity = 6

// maxLogged is the most bytes of one value in the log.
const maxLogged = 4096

// cleanAttr cleans values once more: libraries log what others chose as it is.
func cleanAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(foreign.Text(v, maxLogged))
	case slog.Level, time.Time, time.Duration: // have a form of their own
	case error, fmt.Stringer:
		a.Value = slog.StringValue(foreign.Text(fmt.Sprint(v), maxLogged)) // Sprint survives a nil pointer
	}
	return a
}

// New returns a logger. format is text or json; verbosity is klog's: 0 is for operators, from 1 on for
// debugging, and from 4 on it includes calls to the API server.
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

// RouteKlog has client-go and other libraries log to log. klog is global: call it once.
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

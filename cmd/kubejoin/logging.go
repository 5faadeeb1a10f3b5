package main

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

// maxVerbosity is the most that client-go may log: from 8 on it is the bodies of answers, and
// those of Secrets hold tokens.
const maxVerbosity = 6

// maxLogged is the most bytes of one value in the log.
const maxLogged = 4096

// cleanAttr cleans what others chose once more, for libraries that log it as it is.
func cleanAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(foreign.Text(v, maxLogged))
	case slog.Level, time.Time, time.Duration: // which have a form of their own
	case error, fmt.Stringer:
		a.Value = slog.StringValue(foreign.Text(fmt.Sprint(v), maxLogged)) // Sprint survives a nil that is one
	}
	return a
}

// newLogger makes the program's logger. Verbosity is klog's: 0 is what an operator reads, from 1 on
// debugging, from 4 on each API call's.
func newLogger(w io.Writer, format string, verbosity int) (*slog.Logger, error) {
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

// routeKlog routes what client-go and other libraries log into the program's logger.
func routeKlog(log *slog.Logger, verbosity int) error {
	if verbosity >= 4 {
		flags := flag.NewFlagSet("klog", flag.ContinueOnError)
		klog.InitFlags(flags)
		if err := flags.Set("v", strconv.Itoa(min(verbosity, maxVerbosity))); err != nil {
			return err
		}
	}
	klog.SetSlogLogger(log)
	return nil
}

package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/tokens"
)

// loadTokenLimits loads and reloads the rules of --token-limits, and calls changed after a change. Without the flag, it
// returns nil.
func (c *connection) loadTokenLimits(changed func()) (func() []tokens.LimitRule, error) {
	file := c.TokenLimits
	if file == "" {
		return nil, nil
	}
	files, err := reload.Files[[]tokens.LimitRule]{
		Name: "token-limits", Paths: []string{file},
		Load: func() ([]tokens.LimitRule, error) { return config.LoadTokenLimits(file) },
		Changed: func(rules []tokens.LimitRule) error {
			changed()
			c.events.own(codes.TokenLimitsReplaced, fmt.Sprintf("The rules of --token-limits have changed, and %d are in use now.", len(rules)))
			return nil
		},
		Failed: func(err error) {
			c.events.own(codes.TokenLimitsUnusable, "kubejoin cannot use the new rules of --token-limits and keeps the last valid ones: "+firstOf(err))
		},
		Logger: c.log, Registerer: c.registry,
	}.Open()
	if errors.As(err, new(config.Errors)) {
		return nil, err // the error names the file
	}
	if err != nil {
		return nil, fmt.Errorf("--token-limits: %w", err)
	}
	c.log.Info("rules of --token-limits loaded", "file", file, "rules", len(files.Get()))
	c.goBackground(files.Run)
	c.check("token-limits", func(context.Context) error {
		if files.Err() != nil {
			return errors.New("the new rules of --token-limits cannot be used, and kubejoin keeps the last valid ones; see the log")
		}
		return nil
	})
	return files.Get, nil
}

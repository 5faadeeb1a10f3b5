package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxDays limits a duration in days, so that it cannot overflow.
const maxDays = 36500

// ParseDuration parses a Go duration, or a whole number of days up to 36500d. Its error does not repeat s, and says what is
// expected.
func ParseDuration(s string) (time.Duration, error) {
	if days, found := strings.CutSuffix(s, "d"); found {
		switch n, err := strconv.ParseUint(days, 10, 64); {
		case n > maxDays: // also after an overflow
			return 0, fmt.Errorf("want at most %dd", maxDays)
		case err == nil:
			return time.Duration(n) * 24 * time.Hour, nil //nolint:gosec // at most maxDays
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("want a duration such as 90s, 30m, 2h or 1d")
	}
	return d, nil
}

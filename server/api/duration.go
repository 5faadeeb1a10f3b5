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

const day = 24 * time.Hour

// ParseDuration parses a Go duration that may begin with a whole number of days, up to 36500d, for example 1d12h. Its error
// does not repeat s, and says what is expected.
func ParseDuration(s string) (time.Duration, error) {
	malformed := errors.New("want a duration such as 90s, 30m, 2h, 1d or 1d12h")
	var days uint64
	if number, rest, found := strings.Cut(s, "d"); found {
		var err error
		if days, err = strconv.ParseUint(number, 10, 64); days <= maxDays && (err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+")) {
			return 0, malformed
		}
		if s = rest; s == "" {
			s = "0"
		}
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, malformed
	case days > maxDays || days > 0 && d > time.Duration(maxDays-days)*day: //nolint:gosec // maxDays-days is in range
		return 0, fmt.Errorf("want at most %dd", maxDays)
	}
	return time.Duration(days)*day + d, nil //nolint:gosec // at most maxDays
}

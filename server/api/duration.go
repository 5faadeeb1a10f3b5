package api

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// maxDays caps a duration in days, so that it cannot overflow. It is longer than any certificate lasts.
const maxDays = 36500

// ParseDuration parses a Go duration, or a whole number of days such as 30d. It cuts days to 36500. Its error does not
// repeat s.
func ParseDuration(s string) (time.Duration, error) {
	if days, found := strings.CutSuffix(s, "d"); found {
		if n, err := strconv.ParseUint(days, 10, 32); err == nil {
			return time.Duration(min(n, maxDays)) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("want a duration such as 90s, 30m, 2h or 1d")
	}
	return d, nil
}

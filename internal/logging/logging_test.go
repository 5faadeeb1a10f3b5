package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Libraries may log hostile text. A log line must be bounded and contain no secrets or control characters.
func TestLogRedactsAndSanitizesHostileText(t *testing.T) {
	hostile := "8w4usg.qwertzuiopasdfgh_\x1b[31m\u202e" + strings.Repeat("x", 100_000)
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := must.Value(New(&out, format, 0))(t)
		log.Info("m", "string", hostile)
		log.Info(hostile, "number", 7, "none", nil)
		log.Info("m", "error", errors.New(hostile))
		log.With("with", hostile).WithGroup("g").Info("m", slog.Group("h", "in a group", hostile))
		log.Info(hostile, "no event", (*corev1.Event)(nil), "no error", error((*nilError)(nil)))
		log.Info("m", "object", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: hostile}})
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 6 {
			t.Fatalf("%d lines", len(lines))
		}
		for _, line := range lines {
			if len(line) > 4*maxLogged || strings.Contains(line, "qwertz") || !strings.Contains(line, "8w4usg.<redacted>_") && !strings.Contains(line, `8w4usg.\u003credacted\u003e_`) ||
				strings.Contains(line, "x1b") || strings.Contains(line, "u001b") || strings.Contains(line, "u202e") || strings.ContainsFunc(line, unicode.IsControl) {
				t.Errorf("%s: %d bytes: %.500s", format, len(line), line)
			}
			if format == "json" && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %.500s", line)
			}
		}
	}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kubejoin must log each change once. An unreachable API server must not change the result.
func TestReportsWhetherClaimsCanBeCreated(t *testing.T) {
	missing := fmt.Errorf("%w: kubejoin-system", secretstore.ErrNoNamespace)
	forbidden := fmt.Errorf("create: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("user-7 may not")))
	var log bytes.Buffer
	var answer error
	var events []string
	created := func(on *corev1.ObjectReference, e codes.Event, message string) {
		events = append(events, strings.Join([]string{on.Kind, on.Namespace + on.Name, e.Type(), e.Reason(), message}, " "))
	}
	c := &claimSpace{log: slog.New(slog.NewTextHandler(&log, nil)), events: created, ready: func(context.Context) error { return answer }}
	for i, step := range []struct {
		answer          error
		problem, logged string // empty means none
	}{
		{},
		{answer: errors.New("connection refused")},
		{answer: missing, problem: "namespace does not exist: kubejoin-system", logged: "cannot create claims of node names"},
		{answer: missing, problem: "namespace does not exist: kubejoin-system"},
		{answer: errors.New("connection refused"), problem: "namespace does not exist: kubejoin-system"},
		{answer: forbidden, problem: "may not create Leases in kubejoin-system"},
		{logged: "claims of node names can be created again"},
		{},
		{answer: forbidden, problem: "may not create Leases in kubejoin-system", logged: "user-7"},
	} {
		answer = step.answer
		log.Reset()
		events = nil
		next := must.Value(c.look(t.Context()))(t)
		problem := ""
		if err := c.get(); err != nil {
			problem = err.Error()
		}
		if (problem == "") != (step.problem == "") || !strings.Contains(problem, step.problem) || strings.Contains(problem, "user-7") {
			t.Errorf("step %d: %q, want %q", i, problem, step.problem)
		}
		if (log.Len() == 0) != (step.logged == "") || !strings.Contains(log.String(), step.logged) {
			t.Errorf("step %d: the log says %q, want %q", i, log.String(), step.logged)
		}
		if begins := problem != "" && step.logged != ""; begins != (len(events) == 1) || len(events) > 1 ||
			begins && (!strings.HasPrefix(events[0], "Namespace kubejoin-system Warning ClaimsUnavailable ") || !strings.HasSuffix(events[0], problem)) {
			t.Errorf("step %d: events %q", i, events)
		}
		if soon := !next.IsZero() && time.Until(next) <= namespaceRetry; soon != (problem != "") {
			t.Errorf("step %d: next at %s", i, next)
		}
	}
}

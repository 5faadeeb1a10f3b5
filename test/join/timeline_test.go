package join

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestTimelineFollowsMachines catches a kubejoin timeline that does not end when all machines of a token are Ready, or that misses a
// change. It also catches another result with a kubeconfig than at a server, and a stuck machine without its explanation.
func TestTimelineFollowsMachines(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	args, token := s.JoinArgsByCLI(t, "--max-nodes=2", "--node-name=worker-1,worker-2,worker-3")
	places := map[string][]string{
		"with a kubeconfig": {"--kubeconfig=" + s.Kubeconfig()},
		"at a server":       {"--url=https://" + s.Endpoint, "--curlrc=" + s.Curlrc()},
	}
	type watch struct {
		*exec.Cmd
		out, errs bytes.Buffer
	}
	watches := map[string]*watch{}
	for place, flags := range places {
		w := &watch{Cmd: exec.CommandContext(ctx, harness.Kubejoin(), append([]string{"timeline", "--watch", "--token", token.ID()}, flags...)...)}
		w.Stdout, w.Stderr = &w.out, &w.errs
		must.OK(t, w.Start())
		watches[place] = w
	}
	for _, name := range []string{"worker-1", "worker-2"} { // one after the other, for the order in the list
		must.Value(s.Join(ctx, name, args))(t)
		s.WaitExplain(t, name, 0, name+": joined ")
	}
	change := regexp.MustCompile(`(?m)^\S+ (worker-[123]) (expected|joining|joined) ([=.?]{6}) (\w+)$`)
	for place, w := range watches {
		if err := w.Wait(); err != nil {
			t.Errorf("%s: %v\n%s%s", place, err, w.out.String(), w.errs.String())
		}
		states := map[string][]string{}
		for _, m := range change.FindAllStringSubmatch(w.out.String(), -1) {
			states[m[1]] = append(states[m[1]], m[2]+" "+m[3])
		}
		for _, name := range []string{"worker-1", "worker-2"} {
			if all := states[name]; len(all) < 2 || all[len(all)-1] != "joined ======" || all[0] != "expected =....." || len(slices.Compact(all)) < len(all) {
				t.Errorf("%s: %s: got changes %q", place, name, all)
			}
		}
		if lines := strings.Count(w.out.String(), "\n"); lines != len(states["worker-1"])+len(states["worker-2"])+len(states["worker-3"]) {
			t.Errorf("%s: got\n%s", place, w.out.String())
		}
	}

	third := must.Value(s.StartNode("worker-3", args))(t)
	must.OK(t, third.WaitKubelet(ctx, "TokenSpent"))
	third.Stop()
	explained, _, code := s.RunKubejoin(t, "explain", "worker-3")
	if code != 3 {
		t.Errorf("explain: exit code %d\n%s", code, explained)
	}
	ago, csr := regexp.MustCompile(`\d+ (s|min) ago`), regexp.MustCompile(`describe csr \S+`)
	sample.Check(t, "docs/troubleshooting.md", csr.ReplaceAllString(ago.ReplaceAllString(s.CLI(t, "timeline"), "30 s ago"), "describe csr csr-1"))
	for place, flags := range places {
		run := func(args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, harness.Kubejoin(), slices.Concat([]string{"timeline"}, args, flags)...).Output()
			return string(out), err
		}
		machines, err := run("-o", `jsonpath={range .items[*]}{.node} {.state} {.reason} {.tokenID} {.steps[*].state}{"\n"}{end}`)
		want := fmt.Sprintf("worker-3 stuck TokenSpent %[1]s done done waiting refused waiting waiting\n"+
			"worker-2 joined Joined %[1]s done done done done done done\nworker-1 joined Joined %[1]s done done done done done done\n", token.ID())
		if err != nil || machines != want {
			t.Errorf("%s: got %v\n%s\nwant\n%s", place, err, machines, want)
		}
		text, err := run("--token", token.ID())
		if err != nil || !strings.HasSuffix(text, "\n2 of 2 joined, 1 wait: 1 TokenSpent\n") || !strings.Contains(ago.ReplaceAllString(text, ""), ago.ReplaceAllString(explained, "")) {
			t.Errorf("%s: got %v\n%s\nwant the explanation\n%s", place, err, text, explained)
		}
	}
}

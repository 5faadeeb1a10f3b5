package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
)

// If the server refuses a later part of a file, the command must print how many machines it has sent before. Its line numbers must be
// those of the file, not of the part.
func TestMachineAddStopsAtRefusedPart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rack.csv")
	text := "node,key\n"
	for i := range 250 {
		text += fmt.Sprintf("m-%d,sha256:%03d%061d\n", i, i, 0)
	}
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	for problem, want := range map[string]string{
		`{"type":"https://kubejoin.io/problems/store-unavailable","status":503,"detail":"retry"}`:                                                                                                               "retry; 200 of 250 machines were sent before: repeat the command",
		`{"type":"https://kubejoin.io/problems/invalid-field","status":400,"detail":"items[1].ttl: too long","errors":[{"field":"items[1].ttl","detail":"too long"},{"field":"items[49].key","detail":"odd"}]}`: "rack.csv: line 203, machine 202: ttl: too long\n" + file + ": line 251, machine 250: key: odd; 200 of 250",
	} {
		var sizes []int
		s := newWebServer(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var req api.AddMachines
				must.OK(t, json.NewDecoder(r.Body).Decode(&req))
				if sizes = append(sizes, len(req.Items)); len(sizes) == 3 {
					var p api.Problem
					must.OK(t, json.Unmarshal([]byte(problem), &p))
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(p.Status)
					_, _ = w.Write([]byte(problem))
					return
				}
				list := api.MachineList{Items: make([]api.Machine, len(req.Items))}
				for i, spec := range req.Items {
					list.Items[i] = api.Machine{Node: spec.Node, Result: api.MachineAdded}
				}
				must.OK(t, json.NewEncoder(w).Encode(list))
			})
		})
		for output, lines := range map[string]int{"text": 200, "name": 200, "jsonpath={range .items[*]}{.node}{\"\\n\"}{end}": 200} {
			sizes = nil
			out, err := s.run(t, "", "machine", "add", "-f", file, "-o", output)
			if err == nil || !strings.Contains(err.Error(), want) || !slices.Equal(sizes, []int{100, 100, 50}) || strings.Count(out, "\n") != lines {
				t.Errorf("-o %s: sent parts of %d, printed %d lines, %v, want %q", output, sizes, strings.Count(out, "\n"), err, want)
			}
		}
	}
}

// A request that exceeds a limit of the server would fail.
func TestSplitsMachinesIntoSmallRequests(t *testing.T) {
	var all []api.MachineSpec
	for i := range 300 {
		all = append(all, api.MachineSpec{Node: fmt.Sprint("m-", i), Key: strings.Repeat("<", i), NodeLabels: slices.Repeat([]string{strings.Repeat("a", 100)}, i%20)})
	}
	var joined []api.MachineSpec
	for _, part := range api.SplitMachines(all) {
		body := must.Value(json.Marshal(api.AddMachines{Items: part, DryRun: true}))(t)
		if len(part) == 0 || len(part) > api.MaxMachines || len(body) > web.MaxBody {
			t.Errorf("got a part of %d machines and %d bytes", len(part), len(body))
		}
		joined = append(joined, part...)
	}
	if got, want := must.Value(json.Marshal(joined))(t), must.Value(json.Marshal(all))(t); string(got) != string(want) {
		t.Errorf("got %d machines in all parts, want %d", len(joined), len(all))
	}
}

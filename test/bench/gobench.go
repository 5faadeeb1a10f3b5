package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\w+)/(?:(\S+)/)?(kubejoin|bare|cluster-bootstrap)(?:-\d+)?\s+\d+\s+(\d+(?:\.\d+)?) ns/op`)

// inProcess runs the benchmarks of the packages, which compare themselves with crypto/x509 and
// cluster-bootstrap.
func (b *bench) inProcess(ctx context.Context) error {
	b.say("go test -bench in signer and clusterinfo")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Issue|Sign)$", "-count", strconv.Itoa(b.rounds), "-benchtime", "0.5s", "./signer", "./clusterinfo")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	type pair struct{ ours, theirs []float64 }
	found := map[string]*pair{}
	var order []string
	for _, m := range benchmarkLine.FindAllStringSubmatch(string(out), -1) {
		ns, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return err
		}
		name := map[string]string{"Issue": "a certificate from a request, ", "Sign": "the JWS of a kubeconfig"}[m[1]] + m[2]
		if found[name] == nil {
			found[name] = &pair{}
			order = append(order, name)
		}
		if m[3] == "kubejoin" {
			found[name].ours = append(found[name].ours, ns/1000)
		} else {
			found[name].theirs = append(found[name].theirs, ns/1000)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| in process | kubejoin | crypto/x509, cluster-bootstrap | ratio |\n|---|---:|---:|---:|\n")
	for _, name := range order {
		p := found[name]
		if len(p.ours) == 0 || len(p.theirs) == 0 {
			return fmt.Errorf("benchmark %s has not both sides", name)
		}
		us, them := percentile(p.ours, 50), percentile(p.theirs, 50)
		fmt.Fprintf(&table, "| %s | %.1f µs | %.1f µs | %.2f |\n", name, us, them, us/them)
	}
	b.report.notes = append(b.report.notes, table.String())
	return nil
}

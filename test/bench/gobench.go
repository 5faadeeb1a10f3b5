package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

var (
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\w+)/(?:(\S+)/)?(kubejoin|bare|cluster-bootstrap|cfssl)(?:-\d+)?\s+\d+\s+(\d+(?:\.\d+)?) ns/op`)
	decisionLine  = regexp.MustCompile(`(?m)^BenchmarkDecide/(\S+?)(?:-\d+)?\s+\d+\s+(\d+(?:\.\d+)?) ns/op`)
)

// inProcess runs the Go benchmarks of the packages, which compare them with crypto/x509, cfssl and
// cluster-bootstrap.
func (b *bench) inProcess(ctx context.Context) error {
	b.say("go test -bench in signer, signer/approval and clusterinfo")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Issue|Sign|Decide)$", "-count", strconv.Itoa(b.rounds), "-benchtime", "0.5s",
		"./signer", "./signer/approval", "./clusterinfo")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	for _, table := range []func(string) (string, error){compared, decisions} {
		text, err := table(string(out))
		if err != nil {
			return err
		}
		b.report.notes = append(b.report.notes, text)
	}
	return nil
}

// times has the results of benchmarks in nanoseconds by name, and the names in the order of the output.
type times struct {
	order []string
	of    map[string][]float64
}

func (t *times) add(name, ns string) error {
	n, err := strconv.ParseFloat(ns, 64)
	if err != nil {
		return err
	}
	if t.of == nil {
		t.of = map[string][]float64{}
	}
	if t.of[name] == nil {
		t.order = append(t.order, name)
	}
	t.of[name] = append(t.of[name], n)
	return nil
}

// compared returns the table of the benchmarks that compare with other libraries.
func compared(out string) (string, error) {
	var ours, bare, cfssl times
	for _, m := range benchmarkLine.FindAllStringSubmatch(out, -1) {
		name := map[string]string{"Issue": "a certificate from a request, ", "Sign": "the JWS of a kubeconfig"}[m[1]] + m[2]
		side := map[string]*times{"kubejoin": &ours, "cfssl": &cfssl}[m[3]]
		if side == nil {
			side = &bare
		}
		if err := side.add(name, m[4]); err != nil {
			return "", err
		}
	}
	var table strings.Builder
	table.WriteString("| in process | kubejoin | crypto/x509, cluster-bootstrap | ratio | cfssl |\n|---|---:|---:|---:|---:|\n")
	for _, name := range ours.order {
		if len(bare.of[name]) == 0 {
			return "", fmt.Errorf("benchmark %s lacks one of the two compared results", name)
		}
		us, them, third := percentile(ours.of[name], 50)/1000, percentile(bare.of[name], 50)/1000, ""
		if all := cfssl.of[name]; len(all) > 0 {
			third = fmt.Sprintf("%.1f µs", percentile(all, 50)/1000)
		}
		fmt.Fprintf(&table, "| %s | %.1f µs | %.1f µs | %.2f | %s |\n", name, us, them, us/them, third)
	}
	return table.String(), nil
}

// decisions returns the table of the approval rules' times.
func decisions(out string) (string, error) {
	var found times
	for _, m := range decisionLine.FindAllStringSubmatch(out, -1) {
		if err := found.add(strings.ReplaceAll(m[1], "_", " "), m[2]); err != nil {
			return "", err
		}
	}
	if len(found.order) == 0 {
		return "", fmt.Errorf("output of go test -bench lacks the decisions:\n%s", out)
	}
	var table strings.Builder
	table.WriteString("| a decision, with facts of 5,000 nodes in memory | takes | on one processor |\n|---|---:|---:|\n")
	for _, name := range found.order {
		ns := percentile(found.of[name], 50)
		fmt.Fprintf(&table, "| %s | %.2f µs | %.0f /s |\n", name, ns/1000, 1e9/ns)
	}
	return table.String(), nil
}

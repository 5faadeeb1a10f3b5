package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// results are the results that a storm prints.
type results struct {
	Flags             map[string]string `json:"flags"`
	Machines          int               `json:"machines"`
	Seconds           float64           `json:"seconds"` // until the last machine was Ready, or time was up
	MachinesPerMinute float64           `json:"machinesPerMinute"`
	P50               float64           `json:"p50Seconds"` // from power-on to Ready
	P99               float64           `json:"p99Seconds"`
	Lost              int               `json:"lost"`
	Double            int               `json:"double"`
	OverLimit         int               `json:"overLimit"`
	Problems          []string          `json:"problems,omitempty"` // one text for each lost or double machine and each node over a limit
	Again             int               `json:"certificatesAgain"`  // certificates that machines requested again after an error
	Intruders         int               `json:"intruders"`
	Denied            int               `json:"denied"`
	Processes         []use             `json:"processesPerMachine"`
	Calls             []calls           `json:"callsPerMachine"`
	Marks             []mark            `json:"marks"`
	readyAt           []float64
}

// use has the CPU time and calls of a process for each machine. For kube-apiserver and etcd, Calls counts the requests that
// they received. For other processes, it counts the requests that they sent to kube-apiserver.
type use struct {
	Name  string  `json:"name"`
	Calls float64 `json:"calls"`
	CPU   float64 `json:"cpuSeconds"`
}

// A mark is something that happened during the storm.
type mark struct {
	At   float64 `json:"atSeconds"`
	What string  `json:"what"`
}

// finish computes the results.
func (w *world) finish(e evidence) {
	r := &w.results
	r.Machines = len(w.machines)
	lost, double, over, again := e.judge()
	r.Lost, r.Double, r.OverLimit, r.Again, r.Problems = len(lost), len(double), len(over), again, slices.Concat(lost, double, over)
	r.Denied, r.readyAt = e.denied, w.readyAt
	for _, t := range w.tokens {
		if t.spare != nil {
			r.Intruders += 2
		}
	}
	if n := len(w.took); n > 0 {
		slices.Sort(w.took)
		r.P50, r.P99 = w.took[(n-1)/2], w.took[(n-1)*99/100]
		r.MachinesPerMinute = float64(n) / r.Seconds * 60
	}
}

func (r *results) print(to io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(r.Flags)) {
		fmt.Fprintf(to, "-%s=%s ", name, r.Flags[name])
	}
	fmt.Fprintln(to)
	for _, m := range r.Marks {
		fmt.Fprintf(to, "%6.1f s  %s\n", m.At, m.What)
	}
	fmt.Fprintf(to, "%6.1f s  end\n\nmachines per minute: %.0f\npower-on to Ready: p50 %.1f s, p99 %.1f s\n", r.Seconds, r.MachinesPerMinute, r.P50, r.P99)
	fmt.Fprintf(to, "lost: %d, double: %d, over limit: %d\n", r.Lost, r.Double, r.OverLimit)
	for _, line := range r.Problems {
		fmt.Fprintln(to, "  "+line)
	}
	fmt.Fprintf(to, "intruders: %d, denied requests: %d, certificates again after an error: %d\n\n", r.Intruders, r.Denied, r.Again)
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "for each machine\tcalls\tCPU ms\t")
	for _, p := range r.Processes {
		fmt.Fprintf(table, "%s\t%.2f\t%.1f\t\n", p.Name, p.Calls, p.CPU*1000)
	}
	fmt.Fprintln(table, "\t\t\t\ncalls for each machine\tkubejoin\tkubelets\t")
	for _, c := range r.Calls {
		if c.Kubejoin+c.Kubelets >= 0.05 { // the table leaves out rare calls; JSON has all
			fmt.Fprintf(table, "%s\t%.2f\t%.2f\t\n", c.Kind, c.Kubejoin, c.Kubelets)
		}
	}
	_ = table.Flush() // ignore errors of standard output
}

// plot draws the Ready machines over time, as SVG.
func (r *results) plot(to io.Writer) {
	const width, height, left, top, points = 900.0, 420.0, 60.0, 40.0, 500
	seconds := max(r.Seconds, 0.001)
	x := func(at float64) float64 { return left + at/seconds*(width-left-20) }
	y := func(n int) float64 { return height - 40 - float64(n)/float64(r.Machines)*(height-40-top) }
	fmt.Fprintf(to, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %g %g" role="img">
<title>Ready machines over time</title>
<style>text { font: 13px Helvetica, Arial, sans-serif; fill: #1f2328 } .axis { stroke: #8c959f } .mark { stroke: #cf222e; stroke-dasharray: 4 4 }
.ready { fill: none; stroke: #0969da; stroke-width: 2 } @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }</style>
<text x="%g" y="20">%d machines: %.0f machines per minute</text>
<path class="axis" d="M%g %gV%gH%g" fill="none"/>
`, width, height, width, height, left, r.Machines, r.MachinesPerMinute, left, top, y(0), width-20)
	for i := range 5 {
		fmt.Fprintf(to, `<text x="%.0f" y="%.0f" text-anchor="end">%d</text>`+"\n", left-8, y(r.Machines*i/4)+4, r.Machines*i/4)
		fmt.Fprintf(to, `<text x="%.0f" y="%.0f" text-anchor="middle">%.0f s</text>`+"\n", x(seconds*float64(i)/4), y(0)+20, seconds*float64(i)/4)
	}
	for i, m := range r.Marks {
		fmt.Fprintf(to, `<path class="mark" d="M%.1f %gV%g"/><text x="%.1f" y="%g">%s</text>`+"\n", x(m.At), top, y(0), x(m.At)+4, top+16+float64(i)*18, m.What)
	}
	line := []string{fmt.Sprintf("M%g %g", x(0), y(0))}
	step := max(1, len(r.readyAt)/points)
	for i, at := range r.readyAt {
		if (i+1)%step == 0 || i == len(r.readyAt)-1 {
			line = append(line, fmt.Sprintf("L%.1f %.1f", x(at), y(i+1)))
		}
	}
	fmt.Fprintf(to, "<path class=\"ready\" d=\"%s\"/>\n</svg>\n", strings.Join(line, ""))
}

package main

import (
	"bytes"
	"flag"
	"fmt"
	"html"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/joining"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/test/cluster"
)

var update = flag.Bool("update", false, "write the pictures in docs")

var shell = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestReadmeTry runs the commands that README.md shows for the second terminal. It compares their output with README.md and
// with docs/try.svg.
func TestReadmeTry(t *testing.T) {
	need.Programs(t, "bash", "curl", "openssl")
	_, section, _ := strings.Cut(string(must.Value(os.ReadFile("../../README.md"))(t)), "\n## Try it without a cluster\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var typed strings.Builder
	for _, block := range shell.FindAllStringSubmatch(section, -1)[1:] { // the first one is for the first terminal
		typed.WriteString(block[1])
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(must.Value(cluster.FreePort())(t)))
	dir := t.TempDir()
	serve := exec.CommandContext(t.Context(), "kubejoin", "serve", "--data-dir", "./kubejoin-data", "--listen", address)
	serve.Dir, serve.Stderr = dir, t.Output()
	serve.Cancel = func() error { return serve.Process.Signal(syscall.SIGTERM) }
	must.OK(t, serve.Start())
	t.Cleanup(func() { _ = serve.Wait() })
	wait.OK(t, "kubejoin is ready", func() error {
		return exec.CommandContext(t.Context(), "curl", "-skf", "-o", os.DevNull, "https://"+address+"/readyz").Run()
	})
	bash := exec.CommandContext(t.Context(), "bash", "-v") // prints each command before it runs
	bash.Dir, bash.Env = dir, append(os.Environ(), "KUBEJOIN_URL=https://"+address)
	bash.Stdin = strings.NewReader(strings.ReplaceAll(typed.String(), "127.0.0.1:9443", address))
	printed := string(must.Value(bash.CombinedOutput())(t))

	shown := sample.Of(t, "README.md")
	picture, output := recording("A terminal: kubejoin returns a join command, signs a certificate for one machine, and refuses the next one", strings.ReplaceAll(printed, address, "127.0.0.1:9443"), typed.String(), shown)
	sample.Check(t, "README.md", output)
	checkPicture(t, "try.svg", picture)
}

// TestTimelinePicture draws docs/timeline.svg, and compares it with the file.
func TestTimelinePicture(t *testing.T) {
	t.Parallel()
	const typed = "kubejoin timeline\n"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	shown := screen(joining.Machines(now), now, math.MaxInt, math.MaxInt)
	picture, _ := recording("A terminal: kubejoin timeline shows twelve machines, why two of them are stuck, and the next commands", typed+shown, typed, shown)
	checkPicture(t, "timeline.svg", picture)
}

// checkPicture fails the test if a picture in docs differs. It writes the picture with -update.
func checkPicture(t *testing.T, name string, picture []byte) {
	t.Helper()
	file := filepath.Join("..", "..", "docs", name)
	if *update {
		must.OK(t, os.WriteFile(file, picture, 0o600))
	}
	if got := must.Value(os.ReadFile(file))(t); !bytes.Equal(got, picture) {
		t.Errorf("docs/%s differs from the output: run go test ./cmd/kubejoin -run %s -update", name, t.Name())
	}
}

// Sizes in pixels and characters. charWidth is the width in a wide monospaced font.
const (
	columns    = 100
	charWidth  = 7.3
	lineHeight = 18
	padding    = 16
)

// Each line appears after a delay. Without animation, all lines are visible: if the viewer does not support it, or if the
// reader prefers reduced motion.
const recordingStyle = `<style>
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1f2328; animation: appear 0.1s backwards }
.typed { font-weight: bold; fill: #0550ae }
rect { fill: #f6f8fa; stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.typed { fill: #79c0ff }
rect { fill: #0d1117; stroke: #3d444d }
}
@media (prefers-reduced-motion: reduce) { text { animation: none } }
@keyframes appear { from { opacity: 0 } }
</style>
`

// recording splits the output of a shell into typed lines and the output of commands, and draws both as in a terminal. The
// drawing shows the lines of shown instead of the output, because the output differs from run to run.
func recording(title, printed, typed, shown string) (svg []byte, output string) {
	var body strings.Builder
	commands, samples := strings.Split(typed, "\n"), strings.Split(shown, "\n")
	y, delay := padding, -1.6 // negative, so that the first line appears at once
	for line := range strings.Lines(printed) {
		class, text := "", samples[0]
		if strings.TrimSuffix(line, "\n") == commands[0] {
			class, text, commands = ` class="typed"`, "$ "+commands[0], commands[1:]
			if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "done") { // continues a command that began on a line above
				text = "> " + text[2:]
			} else {
				delay += 1.5
			}
		} else {
			output += line
			samples = samples[min(1, len(samples)-1):]
		}
		for text != "" {
			row := []rune(text)
			text = string(row[min(columns, len(row)):])
			y, delay = y+lineHeight, delay+0.1
			fmt.Fprintf(&body, `<text%s x="%d" y="%d" style="animation-delay: %.1fs">%s</text>`+"\n", class, padding, y-4, delay, html.EscapeString(string(row[:min(columns, len(row))])))
		}
	}
	width, height := int(columns*charWidth)+2*padding, y+padding
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" role="img" xml:space="preserve">
<title>%[7]s</title>
%[3]s<rect x="0.5" y="0.5" width="%[4]d" height="%[5]d" rx="8"/>
%[6]s</svg>
`, width, height, recordingStyle, width-1, height-1, body.String(), title), output
}

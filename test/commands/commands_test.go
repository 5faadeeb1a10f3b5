package commands

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// onCluster are the pages whose commands call a kubejoin that runs on the cluster, at https://127.0.0.1:9443. The
// commands of the other pages start a kubejoin themselves if they need one.
var onCluster = map[string]bool{
	"docs/tokens.md":          true,
	"docs/troubleshooting.md": true,
}

// TestDocsCommands runs the commands of each page in a folder of its own, as administrator of a new cluster. The
// cluster's CA is in /etc/kubernetes/pki, as on a control plane.
func TestDocsCommands(t *testing.T) {
	harness.Parallel(t)
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("want root, for a file system of the test's own")
		}
		t.Skip("needs root, for a file system of the test's own")
	}
	pages, err := filepath.Glob(harness.RepositoryFile(t, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, page := range append(pages, harness.RepositoryFile(t, "README.md")) {
		name := strings.TrimPrefix(page, harness.RepositoryFile(t, "")+"/")
		script, blocks := scriptOf(t, name, string(harness.ReadFile(t, page)))
		if blocks == 0 {
			continue
		}
		ran += blocks
		t.Run(name, func(t *testing.T) { run(t, script, onCluster[name]) })
	}
	if ran < 30 {
		t.Errorf("%d blocks of commands were found: the docs have more", ran)
	}
}

var (
	fence   = regexp.MustCompile("(?ms)^([^\n]*)\n```(sh|console)\n(.*?)^```$")
	notRun  = regexp.MustCompile(`^<!-- not run: [a-z].{4,} -->$`)
	prompts = regexp.MustCompile(`(?m)^\$ ((?:.*\\\n)*.*)$`)
	waits   = regexp.MustCompile(`(?m)^make run$`) // runs until it is stopped
)

// scriptOf returns the commands of a page as one script, and the number of blocks in it.
func scriptOf(t *testing.T, name, page string) (script string, blocks int) {
	t.Helper()
	var all strings.Builder
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		before, kind, commands := page[m[2]:m[3]], page[m[4]:m[5]], page[m[6]:m[7]]
		switch {
		case notRun.MatchString(before):
			continue
		case strings.HasPrefix(before, "<!--"):
			t.Errorf("%s: %q says no reason", name, before)
		}
		if kind == "console" {
			var typed []string
			for _, command := range prompts.FindAllStringSubmatch(commands, -1) {
				typed = append(typed, command[1])
			}
			commands = strings.Join(typed, "\n") + "\n"
		}
		commands = waits.ReplaceAllString(commands, "make run &\n"+ready)
		fmt.Fprintf(&all, "echo '--- %s:%d' >&2\n%s", name, strings.Count(page[:m[6]], "\n")+1, commands)
		blocks++
	}
	return all.String(), blocks
}

// ready waits for a kubejoin that was started in the background.
const ready = "curl -sk --retry 60 --retry-delay 1 --retry-all-errors --fail -o /dev/null https://127.0.0.1:9443/readyz\n"

// run runs a script as administrator of a new cluster. With serve, it first starts kubejoin on that cluster.
func run(t *testing.T, script string, serve bool) {
	t.Helper()
	s := harness.PrepareSite(t, cluster.Options{})
	work, bin, etc := t.TempDir(), t.TempDir(), t.TempDir()
	for name, program := range map[string]string{"kubejoin": harness.Kubejoin, "kubectl": filepath.Join(s.Bin, "kubectl"), "kubeadm": filepath.Join(s.Bin, "kubeadm")} {
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(harness.RepositoryFile(t, "deploy"), filepath.Join(work, "deploy")); err != nil {
		t.Fatal(err)
	}
	prepare := "cp -a /etc/. " + etc + "\n" +
		"mkdir -p " + etc + "/kubernetes/pki\n" +
		"cp " + s.CAFile() + " " + s.CAKeyFile() + " " + etc + "/kubernetes/pki/\n" +
		"mount --bind " + etc + " /etc\n" +
		"cd " + work + "\n"
	if serve {
		prepare += fmt.Sprintf("kubejoin serve --listen=127.0.0.1:9443 '%s' &\n", strings.Join(s.Flags, "' '")) + ready
	}
	var output bytes.Buffer
	// The processes that the script leaves behind end with it.
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", "set -euo pipefail\n"+prepare+script)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+s.Kubeconfig(), "HOME="+work,
		// git clone takes this repository.
		"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=url."+harness.RepositoryFile(t, "")+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/kubejoin/kubejoin",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		"GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOCACHE="+goEnv(t, "GOCACHE"))
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, output.String())
	}
}

// goEnv is a setting of the go command, which would depend on HOME.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

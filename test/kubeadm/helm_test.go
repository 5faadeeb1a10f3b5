package kubeadm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// helmVersion is that of the Makefile.
var helmVersion = regexp.MustCompile(`helm\.sh/helm/v3/cmd/helm@v\S+`)

// runHere is a block of commands that this test runs.
var runHere = regexp.MustCompile("(?ms)^<!-- run by TestHelmPage -->\n```sh\n(.*?)^```$")

// TestHelmPage runs docs/helm.md from the build of the image to the removal, one block after the other, on a control plane
// whose Node is not Ready.
func TestHelmPage(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	control := addMachine(t, c, "control-1")
	if err := c.Init(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(harness.RepositoryFile(t, "docs/helm.md"))
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(harness.RepositoryFile(t, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	clone, bin := filepath.Join(work, "kubejoin"), filepath.Join(work, "bin")
	// The machine has no connection to the internet, so fetch before what the commands need. In the machine root needs no
	// sudo. CI's clone may be a shallow one.
	host(t, harness.RepositoryFile(t, "."), "git", "clone", "--quiet", ".", clone)
	host(t, clone, "make", "--silent", "image")
	host(t, clone, "sh", "-euc", `
		GOBIN="$1" go install "$2"
		go build -o "$1/kubejoin" ./cmd/kubejoin
		printf '#!/bin/sh\nexec "$@"\n' > "$1/sudo"
		chmod 755 "$1/sudo"
		"$1/kubejoin" signer-config default > signers.yaml`, "prepare", bin, helmVersion.FindString(string(makefile)))
	values := regexp.MustCompile("(?ms)^```yaml\n(# values\\.yaml\n.*?)^```$").FindSubmatch(page)
	if values == nil {
		t.Fatal("docs/helm.md has no block that begins with # values.yaml")
	}
	if err := os.WriteFile(filepath.Join(clone, "values.yaml"), values[1], 0o600); err != nil {
		t.Fatal(err)
	}

	var script strings.Builder
	blocks := runHere.FindAllSubmatch(page, -1)
	for _, block := range blocks {
		script.Write(block[1])
		// After each block the page promises pods that are ready, or none.
		script.WriteString("kubectl --namespace kubejoin-system get pods --output wide || :\n")
	}
	cache := strings.Fields(host(t, clone, "go", "env", "GOCACHE", "GOMODCACHE"))
	cmd := control.Command(t.Context(), "bash", "-euxo", "pipefail", "-c", "cd "+clone+"\n"+script.String())
	for i, entry := range cmd.Env {
		if path, found := strings.CutPrefix(entry, "PATH="); found {
			cmd.Env[i] = "PATH=" + bin + ":" + path
		}
	}
	cmd.Env = append(cmd.Env, "GOCACHE="+cache[0], "GOMODCACHE="+cache[1], "GOPROXY=off", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if len(blocks) < 8 {
		t.Errorf("the page has %d blocks for this test, want at least 8", len(blocks))
	}
	for _, text := range []string{"print-join-command", "kube-controller-manager"} { // of the notes after the installation
		if !strings.Contains(string(output), text) {
			t.Errorf("the output does not contain %q:\n%s", text, output)
		}
	}
	pods, err := c.Kubectl(t.Context(), "--namespace=kubejoin-system", "get", "pods", "--output", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
	if err != nil || pods != "True" {
		t.Errorf("after the last block pods are ready: %q, %v", pods, err)
	}
}

// host runs a command on this machine, in a folder.
func host(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, output)
	}
	return string(output)
}

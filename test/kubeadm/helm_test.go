package kubeadm

import (
	"fmt"
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
	prepare(t, clone, bin)
	// The machine has no connection to the internet, so fetch before what the commands need.
	host(t, clone, "make", "--silent", "image")
	host(t, clone, "sh", "-euc", `
		GOBIN="$1" go install "$2"
		"$1/kubejoin" signer-config default > signers.yaml`, "fetch", bin, helmVersion.FindString(string(makefile)))
	values := regexp.MustCompile("(?ms)^```yaml\n(# values\\.yaml\n.*?)^```$").FindSubmatch(page)
	if values == nil {
		t.Fatal("docs/helm.md has no block that begins with # values.yaml")
	}
	if err := os.WriteFile(filepath.Join(clone, "values.yaml"), values[1], 0o600); err != nil {
		t.Fatal(err)
	}

	var script strings.Builder
	blocks := blocksOf(t, page)
	for _, block := range blocks {
		script.WriteString(block)
		// After each block the page promises pods that are ready, or none.
		script.WriteString("kubectl --namespace kubejoin-system get pods --output wide || :\n")
	}
	output := paste(t, control, bin, clone, script.String())
	for _, text := range []string{"print-join-command", "kube-controller-manager"} { // of the notes after the installation
		if !strings.Contains(output, text) {
			t.Errorf("the output does not contain %q:\n%s", text, output)
		}
	}
	pods, err := c.Kubectl(t.Context(), "--namespace=kubejoin-system", "get", "pods", "--output", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
	if err != nil || pods != "True" {
		t.Errorf("after the last block pods are ready: %q, %v", pods, err)
	}
}

// TestStaticPodOnControlPlane runs docs/host.md up to the static pod. It catches a manifest that a kubelet does not run.
func TestStaticPodOnControlPlane(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	control := addMachine(t, c, "control-1")
	if err := c.Init(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(harness.RepositoryFile(t, "docs/host.md"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	clone, bin := filepath.Join(work, "kubejoin"), filepath.Join(work, "bin")
	prepare(t, clone, bin)
	image := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(host(t, clone, filepath.Join(bin, "kubejoin"), "manifest", "static-pod"))
	if image == nil {
		t.Fatal("the manifest names no image")
	}
	if err := control.ImportProgram(t.Context(), image[1], filepath.Join(bin, "kubejoin")); err != nil {
		t.Fatal(err)
	}
	paste(t, control, bin, clone, strings.Join(blocksOf(t, page), ""))
	harness.Wait(t, "the static pod", func() error {
		ready, err := c.Kubectl(t.Context(), "--namespace=kubejoin-system", "get", "pod", "kubejoin-control-1", "--output", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err != nil || ready != "True" {
			return fmt.Errorf("ready: %q, %w", ready, err)
		}
		return nil
	})
	if line, err := c.JoinCommand(t.Context()); err != nil || !strings.HasPrefix(line, "kubeadm join ") {
		t.Errorf("no join command: %v", err)
	}
}

// blocksOf returns the commands of a page that name the running test.
func blocksOf(t *testing.T, page []byte) []string {
	t.Helper()
	pattern := regexp.MustCompile("(?ms)^<!-- run by " + t.Name() + " -->\n```sh\n(.*?)^```$")
	var blocks []string
	for _, m := range pattern.FindAllSubmatch(page, -1) {
		blocks = append(blocks, string(m[1]))
	}
	if len(blocks) == 0 {
		t.Fatal("the page has no commands for this test")
	}
	return blocks
}

// prepare clones the repository, and makes a folder with a static kubejoin and a sudo for root.
func prepare(t *testing.T, clone, bin string) {
	t.Helper()
	host(t, harness.RepositoryFile(t, "."), "git", "clone", "--quiet", ".", clone)
	host(t, clone, "sh", "-euc", `
		mkdir "$1"
		CGO_ENABLED=0 go build -trimpath -o "$1/kubejoin" ./cmd/kubejoin
		printf '#!/bin/sh\nexec "$@"\n' > "$1/sudo"
		chmod 755 "$1/sudo"`, "prepare", bin)
}

// paste runs commands on a machine, in a folder and with the programs of another one first.
func paste(t *testing.T, m *Machine, bin, dir, script string) string {
	t.Helper()
	cache := strings.Fields(host(t, dir, "go", "env", "GOCACHE", "GOMODCACHE"))
	cmd := m.Command(t.Context(), "bash", "-euxo", "pipefail", "-c", `cd "$1"`+"\n"+script, "paste", dir)
	for i, entry := range cmd.Env {
		if path, found := strings.CutPrefix(entry, "PATH="); found {
			cmd.Env[i] = "PATH=" + bin + ":" + path
		}
	}
	cmd.Env = append(cmd.Env, "GOCACHE="+cache[0], "GOMODCACHE="+cache[1], "GOPROXY=off")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
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

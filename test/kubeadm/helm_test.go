package kubeadm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// helmVersion is that of the Makefile.
var helmVersion = regexp.MustCompile(`helm\.sh/helm/v3/cmd/helm@v\S+`)

// TestHelmPage runs docs/helm.md on a cluster whose Nodes are not Ready, one section after the other. Workers join through
// kubejoin before, during and after an upgrade, and while the leader's machine is lost.
func TestHelmPage(t *testing.T) {
	harness.Parallel(t)
	before := takeStock(t)
	p := newPair(t)
	page, err := os.ReadFile(harness.RepositoryFile(t, "docs/helm.md"))
	p.must(err)
	makefile, err := os.ReadFile(harness.RepositoryFile(t, "Makefile"))
	p.must(err)
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
	here := strings.ReplaceAll(string(values[1]), "10.0.0.0/16", network+".0/24")
	p.must(os.WriteFile(filepath.Join(clone, "values.yaml"), []byte(here), 0o600))

	version := strings.TrimSpace(host(t, clone, "git", "describe", "--tags", "--always", "--dirty"))
	run := func(heading string) string {
		t.Helper()
		return paste(t, p.first, bin, clone, "VERSION="+version+"\n"+strings.Join(blocksOf(t, sectionOf(t, page, heading)), ""))
	}
	const repository = "ghcr.io/kubejoin/kubejoin:"
	image, next := repository+version, repository+version+"-next"
	run("Get the image")
	archive, err := os.Open(filepath.Join(clone, "dist", "kubejoin-"+version+"-linux-"+runtime.GOARCH+".image.tar"))
	p.must(err)
	defer archive.Close()
	p.must(p.second.Import(t.Context(), archive))
	for _, m := range []*Machine{p.first, p.second} {
		p.on(m, "ctr", "--namespace=k8s.io", "images", "tag", image, next)
	}
	p.checkNoLogs()
	if output := run("Install"); !strings.Contains(output, "WARNING: kube-controller-manager-control-1 still approves and signs") {
		t.Errorf("no warning that kube-controller-manager signs:\n%s", output)
	}
	notes := run("Set flags")
	run("Keep the CA in a Secret")
	run("Configure signers")
	p.must(p.HandOver(t.Context()))
	p.joinSecond()
	p.waitPods(image)

	p.checkWorker(p.worker("worker-1", lineOf(t, paste(t, p.first, bin, clone, commandsOf(t, notes)))))
	version += "-next"
	p.joinDuring("upgrade", func() {
		line := lineOf(t, run("Request join commands from any control plane"))
		run("Upgrade")
		p.worker("worker-2", line)
	})
	p.waitPods(next)
	p.joinDuring("rollback", func() {
		run("Roll back")
		p.worker("worker-3", p.request())
	})
	p.waitPods(image)
	version = strings.TrimSuffix(version, "-next")
	p.loseLeader(image)

	giveBack := strings.Join(blocksOf(t, sectionOf(t, page, "Give the work back to kube-controller-manager")), "")
	for _, m := range []*Machine{p.first, p.second} {
		paste(t, m, bin, clone, giveBack)
	}
	run("Remove")
	p.checkGivenBack()
	run("Install without Helm")
	p.waitPods(image)

	running := processesOf(p.Cluster)
	if err := p.Delete(); err != nil {
		t.Error(err)
	}
	before.compare(t, p.Cluster.name, running)
}

// commandsOf returns the commands in the notes of the chart.
func commandsOf(t *testing.T, notes string) string {
	t.Helper()
	_, notes, _ = strings.Cut(notes, "\nNOTES:\n")
	notes, _, _ = strings.Cut(notes, "\nWARNING: ")
	var commands strings.Builder
	for line := range strings.Lines(notes) {
		if command, found := strings.CutPrefix(line, "  "); found {
			commands.WriteString(command)
		}
	}
	if commands.Len() == 0 {
		t.Fatalf("no commands in the notes of the chart:\n%s", notes)
	}
	return commands.String()
}

// lineOf returns the join command in an output.
func lineOf(t *testing.T, output string) string {
	t.Helper()
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "kubeadm join ") {
			return line
		}
	}
	t.Fatalf("no join command in the output:\n%s", output)
	return ""
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

// sectionOf returns a section of a page.
func sectionOf(t *testing.T, page []byte, heading string) []byte {
	t.Helper()
	_, section, found := bytes.Cut(page, []byte("\n## "+heading+"\n"))
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	section, _, _ = bytes.Cut(section, []byte("\n## "))
	return append(section, '\n')
}

// blocksOf returns the commands of a page or section that name the running test.
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

package kubeadm

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// helmVersion finds the major versions of Helm and their releases in test/chart/go.mod.
var helmVersion = regexp.MustCompile(`helm\.sh/helm/v(\d) (v\S+)`)

// TestHelmPage runs docs/helm.md on a cluster whose Nodes are not Ready, one section after the other. It uses the image of
// docs/install.md, and the steps for Helm from the page on migration. Workers join through kubejoin before, during and
// after an upgrade, and while the leader's machine is lost. First, Helm 4 installs and changes the release with server-side
// apply. Then Helm 3 merges changes into these objects, and Helm 4 does the same after it.
func TestHelmPage(t *testing.T) {
	harness.Parallel(t)
	before := takeStock(t)
	p := newPair(t)
	chart, operate, migration := readPage(t, "docs/helm.md"), readPage(t, "docs/operate.md"), readPage(t, "docs/migrate-from-kube-controller-manager.md")
	image := readPage(t, "docs/install.md").blocks("Get the image")
	if len(image) != 2 {
		t.Fatalf("%d blocks of commands, want 2: in the clone, and on each control plane", len(image))
	}
	goMod := must.Value(os.ReadFile(harness.RepositoryFile(t, "test/chart/go.mod")))(t)
	work := t.TempDir()
	clone, bin := filepath.Join(work, "kubejoin"), filepath.Join(work, "bin")
	prepare(t, clone, bin)
	host(t, clone, "git", "tag", "20261e4") // --set would read this version as a number; the hashes of some commits also look like numbers
	// The tests of deploy/image build the image of the other architecture.
	platforms := "PLATFORMS=linux-" + runtime.GOARCH
	// The machine has no internet connection, so download everything that the commands need first.
	p.must(p.step("make image", func() error {
		host(t, clone, "make", "--silent", "image", platforms)
		return nil
	}))
	for _, v := range helmVersion.FindAllStringSubmatch(string(goMod), -1) {
		host(t, clone, "sh", "-euc", `GOBIN="$1" go install "helm.sh/helm/v$2/cmd/helm@$3"; mv "$1/helm" "$1/helm-$2"`, "fetch", bin, v[1], v[2])
	}
	useHelm := func(major string) {
		t.Helper()
		host(t, bin, "ln", "-sf", "helm-"+major, "helm")
		if version := host(t, bin, "./helm", "version", "--short"); !strings.HasPrefix(version, "v"+major+".") {
			t.Fatalf("helm has version %s, want %s", version, major)
		}
	}
	useHelm("4")
	host(t, clone, "sh", "-euc", `"$1/kubejoin" signer-config default > signers.yaml`, "signers", bin)
	values := regexp.MustCompile("(?ms)^```yaml\n(# values\\.yaml\n.*?)^```$").FindStringSubmatch(chart.content)
	if values == nil {
		t.Fatal("docs/helm.md has no block that begins with # values.yaml")
	}
	here := strings.ReplaceAll(values[1], "10.0.0.0/16", network+".0/24")
	p.must(os.WriteFile(filepath.Join(clone, "values.yaml"), []byte(here), 0o600))

	version := strings.TrimSpace(host(t, clone, "git", "describe", "--tags", "--always", "--dirty"))
	runOf := func(of page, heading string) string {
		t.Helper()
		began := time.Now()
		defer func() { t.Logf("%s: %.1f s", heading, time.Since(began).Seconds()) }()
		return paste(t, p.first, bin, clone, "VERSION="+version+"\n"+of.section(heading))
	}
	run := func(heading string) string { t.Helper(); return runOf(chart, heading) }
	const repository = "ghcr.io/kubejoin/kubejoin:"
	first, next := repository+version, repository+version+"-next"
	paste(t, p.first, bin, clone, "export "+platforms+"\n"+image[0])
	for _, m := range []*Machine{p.first, p.second} {
		paste(t, m, bin, filepath.Join(clone, "dist"), image[1])
		p.on(m, "ctr", "--namespace=k8s.io", "images", "tag", first, next)
	}
	p.checkNoLogs()
	if output := run("Install"); !strings.Contains(output, "WARNING: kube-controller-manager-control-1 still approves and signs") {
		t.Errorf("no warning that kube-controller-manager signs:\n%s", output)
	}
	notes := run("Set flags")
	if how := p.kubectl("--namespace=kubejoin-system", "get", "daemonset", "kubejoin", "--show-managed-fields",
		"--output=jsonpath={.metadata.managedFields[?(@.manager=='helm')].operation}"); strings.TrimSpace(how) != "Apply" {
		t.Errorf("Helm 4 changed the DaemonSet by %q, want server-side apply", how)
	}
	useHelm("3")
	run("Keep the CA in a Secret")
	useHelm("4")
	run("Configure signers")
	// Wait for the new pod: kube-controller-manager must create it before it is restarted.
	p.kubectl("--namespace=kubejoin-system", "rollout", "status", "daemonset/kubejoin", "--timeout=3m")
	p.migrate(migration, "With Helm", bin, clone)
	p.waitPods(first)

	p.checkWorker(p.worker("worker-1", lineOf(t, paste(t, p.first, bin, clone, commandsOf(t, notes)))))
	version += "-next"
	p.joinDuring("upgrade", func() {
		line := lineOf(t, run("Request join commands from any control plane"))
		runOf(operate, "Upgrade with Helm")
		p.worker("worker-2", line)
	})
	p.waitPods(next)
	useHelm("3")
	p.joinDuring("rollback", func() {
		runOf(operate, "Roll back with Helm")
		p.worker("worker-3", p.request())
	})
	p.waitPods(first)
	version = strings.TrimSuffix(version, "-next")
	p.loseLeader(first)

	useHelm("4")
	p.giveBack(migration, bin, clone, "")
	runOf(migration, "Remove the release")
	p.checkGivenBack()
	run("Install without Helm")
	p.waitPods(first)

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

// TestStaticPodOnControlPlane runs the sections of docs/host.md on static pods, and the steps for static pods from the page
// on migration, as [TestHelmPage] does for the chart.
func TestStaticPodOnControlPlane(t *testing.T) {
	harness.Parallel(t)
	p := newPair(t)
	page, operate, migration := readPage(t, "docs/host.md"), readPage(t, "docs/operate.md"), readPage(t, "docs/migrate-from-kube-controller-manager.md")
	work := t.TempDir()
	clone, bin, newBin := filepath.Join(work, "kubejoin"), filepath.Join(work, "bin"), filepath.Join(work, "new")
	prepare(t, clone, bin)
	host(t, clone, "sh", "-euc", `cp -r "$1" "$2"; CGO_ENABLED=0 go build -trimpath -ldflags="-X main.release=v99.0.0" -o "$2/kubejoin" ./cmd/kubejoin`,
		"build", bin, newBin)
	var images []string
	for _, folder := range []string{bin, newBin} {
		image := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(host(t, clone, filepath.Join(folder, "kubejoin"), "manifest", "static-pod"))
		if image == nil {
			t.Fatal("the manifest names no image")
		}
		images = append(images, image[1])
		for _, m := range []*Machine{p.first, p.second} {
			p.must(m.ImportProgram(t.Context(), image[1], filepath.Join(folder, "kubejoin")))
		}
	}
	flags := "FLAGS='--advertise=" + joinHost + ":9443 --serving-allowed-cidr=" + network + ".0/24 --reserved-node-names=control-* " + webhookFlags + "'\n"
	upgrade := flags + operate.section("Upgrade static pods")

	p.checkNoLogs()
	stolen, err := p.joinLight(t.Context(), "stolen", p.on(p.first, "kubeadm", "token", "create", "--print-join-command")) // here kube-controller-manager signs
	p.must(err)
	paste(t, p.first, bin, clone, page.section("Create the rights")+page.section("Create the kubeconfig")+page.section("Run a static pod")+upgrade)
	line := p.migrate(migration, "With static pods", bin, clone)
	paste(t, p.second, bin, clone, page.section("Create the kubeconfig")+upgrade)
	p.waitPods(images[0])
	worker := p.worker("worker-7", line)
	p.checkWorker(worker)
	var other *Machine
	p.joinDuring("upgrade", func() {
		paste(t, p.first, newBin, clone, upgrade)
		other = p.worker("worker-2", p.request())
		paste(t, p.second, newBin, clone, upgrade)
	})
	p.waitPods(images[1])
	p.joinDuring("rollback", func() {
		paste(t, p.second, bin, clone, upgrade)
		p.worker("worker-3", p.request())
		paste(t, p.first, bin, clone, upgrade)
	})
	p.waitPods(images[0])
	p.lockOut(clone, bin, stolen, worker, other)

	p.giveBack(migration, bin, clone, migration.section("Remove static pods"))
	paste(t, p.first, bin, clone, migration.section("Remove the rights"))
	p.checkGivenBack()
}

// A page is a page of the docs.
type page struct {
	t       *testing.T
	content string
	left    map[string]bool // blocks that name this test and that it has not run yet
}

// block is a block of commands, and the test in the comment above it.
var block = regexp.MustCompile("(?ms)^(?:<!-- run by (Test\\w+) -->\n)?```sh\n(.*?)^```$")

// readPage reads a page. The test fails unless it runs all blocks that name it.
func readPage(t *testing.T, name string) page {
	t.Helper()
	content := must.Value(os.ReadFile(harness.RepositoryFile(t, name)))(t)
	p := page{t, string(content), map[string]bool{}}
	for _, m := range block.FindAllStringSubmatch(p.content, -1) {
		if m[1] == t.Name() {
			p.left[m[2]] = true
		}
	}
	t.Cleanup(func() {
		if !t.Failed() && len(p.left) > 0 {
			t.Errorf("blocks of %s that were not run: %q", name, slices.Collect(maps.Keys(p.left)))
		}
	})
	return p
}

// section returns the commands of a section.
func (p page) section(heading string) string {
	p.t.Helper()
	return strings.Join(p.blocks(heading), "")
}

// blocks returns the commands of a section, block by block. It returns the blocks that name this test. If there are none,
// it returns the blocks that name any test, or else all blocks.
func (p page) blocks(heading string) (commands []string) {
	p.t.Helper()
	var own, others []string
	_, section, found := strings.Cut(p.content, "\n## "+heading+"\n")
	if !found {
		_, section, found = strings.Cut(p.content, "\n### "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n### ")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range block.FindAllStringSubmatch(section, -1) {
		if m[1] == "" {
			others = append(others, m[2])
			continue
		}
		if m[1] == p.t.Name() {
			own = append(own, m[2])
		}
		commands = append(commands, m[2])
		delete(p.left, m[2])
	}
	if len(own) > 0 {
		commands = own
	}
	if len(commands) == 0 {
		commands = others
	}
	if !found || len(commands) == 0 {
		p.t.Fatalf("no commands in section %q", heading)
	}
	return commands
}

// prepare clones the repository, and makes a folder bin with a static kubejoin and a sudo that works for root.
func prepare(t *testing.T, clone, bin string) {
	t.Helper()
	host(t, harness.RepositoryFile(t, "."), "git", "clone", "--quiet", ".", clone)
	host(t, clone, "sh", "-euc", `
		mkdir "$1"
		CGO_ENABLED=0 go build -trimpath -o "$1/kubejoin" ./cmd/kubejoin
		printf '#!/bin/sh\nexec "$@"\n' > "$1/sudo"
		chmod 755 "$1/sudo"`, "prepare", bin)
}

// paste runs commands on a machine in the folder dir, with the folder bin first in PATH.
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
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", args, err, output, &stderr)
	}
	return string(output)
}

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

	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// onCluster are the pages whose commands call a kubejoin that runs on the cluster, started as docs/host.md says. The
// commands of the other pages start kubejoin themselves if they need it.
var onCluster = map[string]bool{
	"docs/control-planes.md":  true,
	"docs/doctor.md":          true,
	"docs/library.md":         true,
	"docs/machines.md":        true,
	"docs/node-properties.md": true,
	"docs/rejoin.md":          true,
	"docs/revocation.md":      true,
	"docs/tokens.md":          true,
	"docs/troubleshooting.md": true,
}

// runOnCluster is the section that starts kubejoin on a cluster.
const runOnCluster = "docs/host.md#run-in-a-terminal"

// systemd is a script that does the work of systemd: it runs kubejoin as the unit says, with copies of the credentials. If
// no unit is installed, it runs kubejoin standalone.
const systemd = `
sudo() { "$@"; }
systemctl() {
	case $1 in
	start | enable)
		local units=/etc/systemd/system/kubejoin.service.d command='kubejoin serve'
		if [ -e $units ]; then
			export CREDENTIALS_DIRECTORY=$(mktemp -dp "$HOME") KUBEJOIN_FLAGS=
			while IFS=: read -r name file; do cp "$file" "$CREDENTIALS_DIRECTORY/$name"; done < <(sed -n 's/^LoadCredential=//p' $units/*)
			command=$(sed -n 's/^ExecStart=\(.\)/\1/p' $units/*)
		fi
		eval "in_terminal $command"
		;;
	is-active) kill -0 $server ;;
	stop | disable) kill $server && wait $server || true; server= ;;
	esac
}
`

// unit also creates what the systemd unit needs on a cluster: rights, and a kubeconfig with the address of the API server.
const unit = systemd + `
cat deploy/manifests/{namespace,rbac,admission,roles}.yaml | kubectl apply -f -
(umask 077; kubeadm kubeconfig user --config /etc/kubernetes/kubeadm-upload.yaml \
	--client-name system:serviceaccount:kubejoin-system:kubejoin > /etc/kubernetes/kubejoin.conf)
kubectl config --kubeconfig /etc/kubernetes/kubejoin.conf set-cluster kubernetes \
	--server "$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')"
`

// before are shell commands that prepare the machine for the commands of a page.
var before = map[string]string{
	"docs/ca.md": systemd + "systemctl start kubejoin\ncp kubejoin-data/ca.crt old.crt\n",
	// Create a token with kubeadm before kubejoin runs.
	"docs/diagnose.md": "kubeadm token create hx7kq2.4m9zt8cw1v5b6n3r\n",
	"docs/host.md":     unit,
	"docs/install.md":  systemd + "export STATE_DIRECTORY=$HOME/state\n",
	"docs/operate.md":  systemd + "systemctl start kubejoin\n",
	// kubejoin notices the right when it starts.
	"docs/node-properties.md": "kubectl apply -f deploy/node-properties.yaml\n",
	// main.go is the first Go block of the page. go get and go run use a new module cache. It reads all modules except
	// kubejoin from the usual cache.
	"docs/library.md": `
awk '/^package main$/ {block = 1} block && /^[^a-z)}\t]+$/ {exit} block' "$(readlink deploy)/../docs/library.md" > main.go
go() {
	case $1 in
	get | run) env GOPROXY="file://$(command go env GOMODCACHE)/cache/download,$(command go env GOPROXY)" \
		GOMODCACHE="$PWD/modules" GONOPROXY=github.com/kubejoin/kubejoin GONOSUMDB='*' "$(type -P go)" "$@" ;;
	*) command go "$@" ;;
	esac
}
`,
	// This script does the work of the kubelet: it runs kube-controller-manager from its manifest, and restarts it when the
	// manifest has changed.
	"docs/migrate-from-kube-controller-manager.md": unit + `
kubectl config --kubeconfig /etc/kubernetes/controller-manager.conf set-cluster kubernetes \
	--server "$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')"
kubeadm init phase control-plane controller-manager --config /etc/kubernetes/kubeadm-upload.yaml
kubectl create -f - <<END
{apiVersion: v1, kind: Node, metadata: {name: control-plane, labels: {node-role.kubernetes.io/control-plane: ""}}}
END
kubelet() {
	while cp /etc/kubernetes/manifests/kube-controller-manager.yaml running.yaml; do
		mapfile -t command < <(sed -nE 's/^    - (kube-controller-manager|--)/\1/p' running.yaml)
		"${command[@]}" --leader-elect=false &> kube-controller-manager.log &
		sed 's/^metadata:/&\n  annotations: {kubernetes.io\/config.mirror: x}/; s/^spec:/&\n  nodeName: control-plane/' running.yaml > pod.yaml
		kubectl delete --force --grace-period=0 --ignore-not-found -f pod.yaml # no kubelet ends it
		until kubectl create -f pod.yaml; do sleep 0.2; done # once it has created the service account
		while cmp -s /etc/kubernetes/manifests/kube-controller-manager.yaml running.yaml; do sleep 0.2; done
		kill $! && wait $! || true
	done
}
kubelet &> kubelet.log &
kubectl -n kube-system wait --for=create pod/kube-controller-manager --timeout=60s
(kubejoin doctor || true) | grep kcm-signs # otherwise the page waits for nothing
`,
	"docs/rejoin.md": `
kubectl create -f - <<END
{apiVersion: v1, kind: Node, metadata: {name: worker-7}} # which is not Ready
END
`,
	"docs/revocation.md": `
kubectl create -f - <<END
{apiVersion: v1, kind: Node, metadata: {name: worker-7}} # which is not Ready
END
kubeadm token create abcdef.0123456789abcdef
`,
	"docs/tokens.md": `
echo 127.0.0.1 join.example.com >> /etc/hosts
kubectl create -f - <<END
{apiVersion: v1, kind: Node, metadata: {name: worker-7}} # which is not Ready
END
`,
	"docs/troubleshooting.md": `
kubectl create -f - <<END
{apiVersion: v1, kind: Node, metadata: {name: worker-7}} # which is not Ready
END
`,
}

// after are shell commands that check the effect of the commands of a page.
var after = map[string]string{
	// The vendor's token must permit exactly the names that the page says.
	"docs/tokens.md": `
openssl verify -CAfile ca.crt vendor-1.crt
openssl req -new -key vendor-1.key -subj /O=system:nodes/CN=system:node:vendor-3 -out vendor-3.csr
test "$(curl -sS -K curlrc -o /dev/null -w '%{http_code}' --data-binary @vendor-3.csr https://join.example.com:9443/v1/certificate)" = 403
test "$(curl -sS -K curlrc -o /dev/null -w '%{http_code}' https://join.example.com:9443/v1/token)" = 401
`,
	"docs/library.md": "kill -0 $! # embed-server still runs\n",
	"docs/ca.md":      "test $(grep -c BEGIN kubejoin-data/ca.crt) = 1 && ! cmp kubejoin-data/ca.crt old.crt\n",
	// Catches steps back to kube-controller-manager after which it does not work.
	"docs/migrate-from-kube-controller-manager.md": `
ID=$(kubeadm token create | cut -d. -f1)
until kubectl -n kube-public get configmap cluster-info -o yaml | grep "jws-kubeconfig-$ID"; do sleep 0.2; done
`,
}

// TestDocsCommands runs the commands of each page in a separate folder, as administrator of a new cluster. /etc has the
// files of kubeadm, as on a control plane.
func TestDocsCommands(t *testing.T) {
	harness.Parallel(t)
	need.Long(t)
	need.Root(t) // to mount a separate file system for the test
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
		t.Run(name, func(t *testing.T) {
			first := before[name]
			if onCluster[name] { // in a separate folder and a subshell, so that no variable remains
				first += "pushd \"$(mktemp -dp \"$HOME\")\"\nln -s ../deploy\n" + sectionScript(t, runOnCluster) + "popd\nunset SERVER\n"
			}
			run(t, first+script+after[name])
		})
	}
	if ran < 60 {
		t.Errorf("%d blocks of commands were found: the docs have more", ran)
	}
}

var (
	fence    = regexp.MustCompile("(?ms)^([^\n]*)\n```(sh|console)\n(.*?)^```$")
	runBy    = regexp.MustCompile(`^<!-- run by Test\w+ -->$`) // test/docs checks that this test exists
	runAfter = regexp.MustCompile(`^<!-- run after (\S+) -->$`)
	prompts  = regexp.MustCompile(`(?m)^\$ ((?:.*\\\n)*.*)$`)
	servers  = regexp.MustCompile(`(?m)^(?:make run|kubejoin serve)\b(?:.*\\\n)*.*$`)
	explain  = regexp.MustCompile(`(?m)^( *kubejoin explain [^#\n]*)`) // exits with 3 if the machine has not joined
)

// scriptOf returns the commands of a page as one script, and the number of blocks in it.
func scriptOf(t *testing.T, name, page string) (script string, blocks int) {
	t.Helper()
	var all strings.Builder
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		comment, kind, commands := page[m[2]:m[3]], page[m[4]:m[5]], page[m[6]:m[7]]
		if after := runAfter.FindStringSubmatch(comment); after != nil {
			all.WriteString(sectionScript(t, after[1]))
		} else if runBy.MatchString(comment) {
			continue
		} else if strings.HasPrefix(comment, "<!--") {
			t.Errorf("%s: comment %q, want 'run by' a test or 'run after' a section", name, comment)
		}
		if kind == "console" {
			var typed []string
			for _, command := range prompts.FindAllStringSubmatch(commands, -1) {
				typed = append(typed, command[1])
			}
			commands = strings.Join(typed, "\n") + "\n"
		}
		commands = servers.ReplaceAllStringFunc(commands, func(command string) string {
			if strings.HasSuffix(command, "&") {
				return command
			}
			return "in_terminal " + command
		})
		commands = explain.ReplaceAllString(commands, "$1 || [ $$? = 3 ] ")
		fmt.Fprintf(&all, "echo '--- %s:%d' >&2\n%s", name, strings.Count(page[:m[6]], "\n")+1, commands)
		blocks++
	}
	return all.String(), blocks
}

// sectionScript returns the commands of a section, given as PAGE#ANCHOR.
func sectionScript(t *testing.T, link string) string {
	t.Helper()
	name, anchor, _ := strings.Cut(link, "#")
	page := string(harness.ReadFile(t, harness.RepositoryFile(t, name)))
	heading := regexp.MustCompile("(?im)^(##+) " + strings.ReplaceAll(anchor, "-", " ") + "$").FindStringSubmatchIndex(page)
	if heading == nil {
		t.Fatalf("there is no section %s", link)
	}
	section, level := page[heading[1]:], heading[3]-heading[2]
	if next := regexp.MustCompile(fmt.Sprintf("(?m)^#{2,%d} ", level)).FindStringIndex(section); next != nil {
		section = section[:next[0]]
	}
	above := strings.Repeat("\n", strings.Count(page[:heading[1]], "\n")) // empty lines keep the line numbers
	script, blocks := scriptOf(t, name, above+section)
	if blocks == 0 {
		t.Fatalf("section %s has no commands", link)
	}
	return script
}

// inTerminal runs a server as in a separate terminal, and waits until it is ready. The next server replaces this server, as
// after Ctrl-C.
const inTerminal = `
in_terminal() {
	if [ -n "${server-}" ]; then kill $server && wait $server || true; fi
	"$@" &
	server=$!
	for _ in {1..600}; do
		curl -skf -o /dev/null https://127.0.0.1:9443/readyz && return
		kill -0 $server # unless it has ended
		sleep 0.2
	done
	return 1
}
`

// run runs a script on a control-plane machine of a new cluster, as its administrator.
func run(t *testing.T, script string) {
	t.Helper()
	c := cluster.ForTest(t, cluster.Options{})
	repository := harness.RepositoryFile(t, "")
	work, bin, rest, etc, hooks := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	for link, target := range map[string]string{
		filepath.Join(bin, "kubejoin"):                harness.Kubejoin(),
		filepath.Join(bin, "kubectl"):                 filepath.Join(c.Bin, "kubectl"),
		filepath.Join(bin, "kubeadm"):                 filepath.Join(c.Bin, "kubeadm"),
		filepath.Join(bin, "kube-controller-manager"): filepath.Join(c.Bin, "kube-controller-manager"),
		filepath.Join(work, "deploy"):                 harness.RepositoryFile(t, "deploy"),
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	for program, script := range map[string]string{
		filepath.Join(bin, "sudo"):            `exec "$@"`,
		filepath.Join(hooks, "post-checkout"): "ln -s " + harness.RepositoryFile(t, "test/kube/bin") + " test/kube/bin", // each clone gets the built programs
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	prepare := "cp -a /etc/. " + etc + "\n" +
		"mkdir -p " + etc + "/kubernetes\n" +
		"cp -r " + c.Dir + "/pki " + c.Dir + "/*.conf " + c.Dir + "/kubeadm-upload.yaml " + etc + "/kubernetes/\n" +
		"mount --bind " + etc + " /etc\n" +
		"mount --bind /usr/local/bin " + rest + "\n" +
		"mount --bind " + bin + " /usr/local/bin\n" +
		"cd " + work + "\n"
	var output bytes.Buffer
	// When the script ends, the kernel kills all processes that it has left running.
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		"bash", "-c", "set -euo pipefail\n"+prepare+inTerminal+script)
	cmd.Env = append(os.Environ(), "PATH=/usr/local/bin:"+os.Getenv("PATH")+":"+rest, "KUBECONFIG=/etc/kubernetes/admin.conf", "HOME="+work,
		// git clone uses this repository instead of GitHub.
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=url."+repository+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/kubejoin/kubejoin",
		"GIT_CONFIG_KEY_1=safe.directory", "GIT_CONFIG_VALUE_1=*",
		"GIT_CONFIG_KEY_2=core.hooksPath", "GIT_CONFIG_VALUE_2="+hooks,
		"GOMODCACHE="+goEnv(t, "GOMODCACHE"), "GOCACHE="+goEnv(t, "GOCACHE"),
		// The clones share the build cache.
		"GOFLAGS=-trimpath "+goEnv(t, "GOFLAGS"), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, output.String())
	}
}

// goEnv returns a setting of the go command. The script needs it because its own HOME would change the setting.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

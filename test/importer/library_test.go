package importer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

var (
	goBlock     = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	packageName = regexp.MustCompile(`(?m)^package (\w+)$`)
)

// statements makes a Go file from a block that has only statements, as in the READMEs.
const statements = `package main

import (
	"context"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
)

func %s(ctx context.Context, cluster kubernetes.Interface) (mint.Minted, error) {
%s	return made, err
}
`

// pasted returns the folder of a new module. Each Go block of the docs is a package there, with its test from testdata/library.
func pasted(t *testing.T) string {
	t.Helper()
	checkout := the(filepath.Abs("../.."))(t)
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("testdata/library")))
	write := func(name, content string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666))
	}
	read := func(name string) string {
		t.Helper()
		content := the(os.ReadFile(filepath.Join(checkout, name)))(t)
		return string(content)
	}
	for i, page := range []string{"README.md", "README.zh-CN.md", "docs/library.md"} {
		blocks := goBlock.FindAllStringSubmatch(read(page), -1)
		if len(blocks) == 0 {
			t.Fatalf("%s has no Go block", page)
		}
		for _, m := range blocks {
			name := packageName.FindStringSubmatch(m[1])
			if name == nil {
				write(fmt.Sprintf("main/readme%d.go", i), fmt.Sprintf(statements, fmt.Sprintf("readme%d", i), m[1]))
				continue
			}
			file := "block.go"
			if strings.HasSuffix(name[1], "_test") {
				file = "block_test.go"
			}
			folder := strings.TrimSuffix(name[1], "_test")
			write(filepath.Join(folder, file), m[1])
			if tests, err := filepath.Glob(filepath.Join(dir, folder, "*_test.go")); err != nil || len(tests) == 0 {
				t.Errorf("%s: package %s has no test in testdata/library", page, name[1])
			}
		}
	}
	write("go.mod", "module example.com/installer\n\ngo 1.26.0\n\nrequire github.com/kubejoin/kubejoin v0.0.0\n\nreplace github.com/kubejoin/kubejoin => "+checkout+"\n")
	write("go.sum", read("go.sum"))
	return dir
}

// testPasted runs tests in the folder of pasted.
func testPasted(t *testing.T, dir string, args, env []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-mod=mod", "-count=1"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), append([]string{"GOWORK=off", "CGO_ENABLED=0", "KUBECONFIG="}, env...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}

// TestGoBlocksOfDocsWorkInNewModule catches a block that does not compile or does not work when somebody pastes it. The
// tests use a fake cluster from fake.NewClientset.
func TestGoBlocksOfDocsWorkInNewModule(t *testing.T) {
	testPasted(t, pasted(t), []string{"./..."}, nil)
}

// testJoinCommandOfDocs runs the first block of docs/library.md with a real API server.
func testJoinCommandOfDocs(t *testing.T, c *cluster.Cluster) {
	testPasted(t, pasted(t), []string{"./main"}, []string{"KUBECONFIG=" + c.Kubeconfig()})
}

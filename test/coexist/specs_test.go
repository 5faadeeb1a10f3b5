package coexist

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestKubernetesSpecs runs the specs of Kubernetes' end-to-end tests about bootstrap tokens and certificate requests.
// kubejoin does these jobs. kube-controller-manager only runs the controllers that every namespace needs.
func TestKubernetesSpecs(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	kcm := must.Value(s.StartKCM(ctx, "--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller,namespace-controller"))(t)
	defer kcm.Stop(0)

	bin := must.Value(cluster.BuildSpecs(ctx, t.Output()))(t)
	specs := exec.CommandContext(ctx, filepath.Join(bin, "specs"), "--provider=skeleton", "--kubeconfig="+s.Kubeconfig(),
		"--ginkgo.focus=Feature:BootstrapTokens|Certificates API", "--ginkgo.no-color", "--ginkgo.v")
	specs.Dir = t.TempDir()
	specs.Env = append(os.Environ(), "HOME="+specs.Dir)
	output, err := specs.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	ran := regexp.MustCompile(`Ran (\d+) of \d+ Specs`).FindSubmatch(output)
	if ran == nil {
		t.Fatalf("got no summary:\n%s", output)
	}
	// Three specs are about signing, two about the cleaner, and two about the API of certificate requests.
	if n, _ := strconv.Atoi(string(ran[1])); n != 7 {
		t.Errorf("%d specs ran, want 7:\n%s", n, output)
	}
}

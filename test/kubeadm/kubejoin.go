package kubeadm

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

//go:embed kubejoin.yaml
var daemonSet string

// AllSignersOff returns the folder of patches that switch off the approver and the signer of kube-controller-manager.
func AllSignersOff() (string, error) {
	root, err := cluster.Repository()
	return filepath.Join(root, "deploy", "kubeadm", "all-signers-off"), err
}

// Install runs an imported image of kubejoin on each control plane, with the rights in deploy/manifests and
// deploy/control-planes.yaml, and returns when it is ready. Unlike the DaemonSet in deploy/manifests, it approves serving
// certificates of all machines.
func (c *Cluster) Install(ctx context.Context, image string) error {
	root, err := cluster.Repository()
	if err != nil {
		return err
	}
	return c.step("installing kubejoin", func() error {
		if err := c.machines[0].writeFile(ctx, "/etc/kubernetes/kubejoin.yaml", strings.ReplaceAll(daemonSet, "IMAGE", image)); err != nil {
			return err
		}
		apply := []string{"apply"}
		for _, name := range []string{"namespace", "rbac", "admission", "roles"} {
			apply = append(apply, "--filename", filepath.Join(root, "deploy", "manifests", name+".yaml"))
		}
		apply = append(apply, "--filename", filepath.Join(root, "deploy", "control-planes.yaml"))
		if _, err := c.Kubectl(ctx, append(apply, "--filename", "/etc/kubernetes/kubejoin.yaml")...); err != nil {
			return err
		}
		_, err := c.Kubectl(ctx, "--namespace=kubejoin-system", "rollout", "status", "daemonset/kubejoin", "--timeout=3m")
		return err
	})
}

// JoinCommand requests a join command for one machine from kubejoin on the first control plane: see [Cluster.RequestJoin].
func (c *Cluster) JoinCommand(ctx context.Context) (line string, err error) {
	return c.RequestJoin(ctx, c.machines[0].Address, "maxNodes=1")
}

// permitControlPlanes permits the service account of RequestJoin to request join commands of control planes.
func (c *Cluster) permitControlPlanes(ctx context.Context) error {
	_, err := c.Kubectl(ctx, "create", "clusterrolebinding", "installer-control-planes",
		"--clusterrole=kubejoin:control-plane-issuer", "--serviceaccount=default:"+requester)
	return err
}

// requester is the service account of [Cluster.RequestJoin]. The docs use another name.
const requester = "requester"

// RequestJoin requests a join command with curl, as a service account that may create tokens, on a machine outside the
// cluster. Like the curl command in docs/helm.md, it retries, but longer: kubejoin may start slowly on a busy machine. host
// is the host on which kubejoin listens.
func (c *Cluster) RequestJoin(ctx context.Context, host, query string) (line string, err error) {
	output, err := c.requestJoin(ctx, host, query)
	return output[max(0, strings.LastIndex(output, "kubeadm join ")):], err // without the responses to failed attempts before it
}

// requestJoin is like RequestJoin, but for any format, and its output includes the responses to failed attempts.
func (c *Cluster) requestJoin(ctx context.Context, host, query string) (output string, err error) {
	curlrc := filepath.Join(c.outside.dir, "installer.curlrc")
	if _, err := os.Stat(curlrc); err != nil {
		if err := c.writeCurlrc(ctx, curlrc); err != nil {
			return "", err
		}
	}
	return run(ctx, c.outside.Command(ctx, "curl", "--config", curlrc, "--retry", strconv.Itoa(int(startTimeout/time.Second)), "--retry-delay", "1", "--retry-all-errors",
		"--connect-timeout", "5", "--request", "POST", "https://"+net.JoinHostPort(host, "9443")+"/v1/token/print-join-command?"+query))
}

// writeCurlrc creates the service account, and writes its token and the CA for curl. The token is not an argument, because
// every user of a machine can see arguments.
func (c *Cluster) writeCurlrc(ctx context.Context, curlrc string) error {
	const account = requester
	if _, err := c.Kubectl(ctx, "create", "serviceaccount", account); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "create", "clusterrolebinding", account, "--clusterrole=kubejoin:join-issuer", "--serviceaccount=default:"+account); err != nil {
		return err
	}
	bearer, err := c.Kubectl(ctx, "create", "token", account, "--audience=kubejoin")
	if err != nil {
		return err
	}
	ca, err := c.machines[0].ReadFile(ctx, "/etc/kubernetes/pki/ca.crt")
	if err != nil {
		return err
	}
	file := filepath.Join(c.outside.dir, "ca.crt")
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		return err
	}
	return os.WriteFile(curlrc, fmt.Appendf(nil, "cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n",
		file, strings.TrimSpace(bearer)), 0o600)
}

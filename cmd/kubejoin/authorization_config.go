package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// accessReviewPath is where kubejoin accepts SubjectAccessReviews from kube-apiserver.
const accessReviewPath = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

// Names of the files of authorization-config.
const (
	authorizationFile = "authorization.yaml"
	reviewsFile       = "webhook.conf"
	kubeadmFile       = "kubeadm.yaml"
)

// authorizationOptions are authorization-config's flags.
type authorizationOptions struct {
	url, caFile           string
	clientCert, clientKey string
	dir, outputDir        string
	failurePolicy         string
}

func authorizationConfigCommand() *cobra.Command {
	var o authorizationOptions
	cmd := &cobra.Command{
		Use:   "authorization-config",
		Short: "Print the configuration for kube-apiserver to refuse revoked certificates",
		Long: `Print the files that make kube-apiserver ask kubejoin about each request of a node.
kube-apiserver then refuses requests with a revoked certificate. The files:
  ` + authorizationFile + `  AuthorizationConfiguration for kube-apiserver's --authorization-config
  ` + reviewsFile + `        kubeconfig of the webhook, which that file names
  ` + kubeadmFile + `        ClusterConfiguration for kubeadm, to merge into kubeadm-config

Put the first two files into --dir on each control plane machine, before kube-apiserver
starts with them. kube-apiserver reaches kubejoin at --url and shows the certificate of
--client-certificate. Start 'kubejoin serve' with --webhook-client-ca-file and
--webhook-client-name to accept it.

With --failure-policy NoOpinion, revoked certificates work while no kubejoin responds. With
Deny, no node works then, so kubejoin must not depend on the cluster: run it as a static
pod or with systemd. See
` + docsURL + `revocation.md`,
		Example: `  kubejoin authorization-config --ca-file /etc/kubernetes/pki/ca.crt \
    --output-dir /etc/kubernetes/kubejoin`,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return authorizationConfig(o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "https://127.0.0.1:9443", "https://HOST:PORT of kubejoin, as kube-apiserver reaches it")
	f.StringVar(&o.caFile, "ca-file", "", "CA of the certificate that kubejoin serves; required")
	f.StringVar(&o.clientCert, "client-certificate", "/etc/kubernetes/pki/apiserver-kubelet-client.crt", "path, on the kube-apiserver machine, of its client certificate")
	f.StringVar(&o.clientKey, "client-key", "/etc/kubernetes/pki/apiserver-kubelet-client.key", "path, on the kube-apiserver machine, of the private key of --client-certificate")
	f.StringVar(&o.dir, "dir", "/etc/kubernetes/kubejoin", "folder of the files on the kube-apiserver machine")
	choiceVar(f, &o.failurePolicy, "failure-policy", "NoOpinion", "what kube-apiserver does while kubejoin does not respond: %s", "NoOpinion", "Deny")
	f.StringVar(&o.outputDir, "output-dir", "", "folder to write the files into, with mode 0600 (default: print them)")
	heading(f, "Output flags", "output-dir")
	return cmd
}

func (o *authorizationOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.url("--url", o.url)
	m.when(o.caFile == "", "--ca-file: none given, want the CA of the certificate that kubejoin serves")
	for _, given := range []struct{ flag, path string }{{"client-certificate", o.clientCert}, {"client-key", o.clientKey}, {"dir", o.dir}} {
		m.when(!filepath.IsAbs(given.path), "--%s: %q given, want an absolute path on the kube-apiserver machine", given.flag, given.path)
	}
	return m.err()
}

func authorizationConfig(o authorizationOptions, stdout io.Writer) error {
	cluster, err := reviewer(o.url, accessReviewPath, o.caFile, pkiDir)
	if err != nil {
		return err
	}
	user := &clientcmdapi.AuthInfo{ClientCertificate: o.clientCert, ClientKey: o.clientKey}
	kubeconfig, err := clientcmd.Write(oneCluster("kubejoin", cluster, "kube-apiserver", user))
	if err != nil {
		return err
	}
	// The kubeconfig comes first: kube-apiserver reads both files as soon as the AuthorizationConfiguration changes.
	for _, file := range []struct {
		name    string
		content []byte
	}{
		{reviewsFile, kubeconfig}, {authorizationFile, o.authorization()}, {kubeadmFile, o.kubeadm()},
	} {
		if o.outputDir == "" {
			_, err = fmt.Fprintf(stdout, "---\n# %s\n%s", filepath.Join(o.dir, file.name), file.content)
		} else if err = os.MkdirAll(o.outputDir, 0o700); err == nil {
			err = atomicfile.Write(filepath.Join(o.outputDir, file.name), file.content)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// authorization returns the AuthorizationConfiguration. kube-apiserver caches a response without an opinion as long as
// a denial, so unauthorizedTTL is how long a revoked certificate still works.
func (o authorizationOptions) authorization() []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: kubejoin
  webhook:
    connectionInfo:
      type: KubeConfigFile
      kubeConfigFile: %q
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    matchConditions:
    - expression: "'system:nodes' in request.groups"
    timeout: 1s
    authorizedTTL: 5s
    unauthorizedTTL: 5s
    failurePolicy: %s
- type: Node
  name: node
- type: RBAC
  name: rbac
`, filepath.Join(o.dir, reviewsFile), o.failurePolicy)
}

// kubeadm returns what to merge into the ClusterConfiguration. With authorization-config, kubeadm does not set
// --authorization-mode, which kube-apiserver would refuse.
func (o authorizationOptions) kubeadm() []byte {
	return fmt.Appendf(nil, `apiVersion: %s
kind: ClusterConfiguration
apiServer:
  extraArgs:
  - name: authorization-config
    value: %q
  extraVolumes:
  - name: kubejoin-authorization
    hostPath: %q
    mountPath: %q
    readOnly: true
    pathType: Directory
`, joinformat.ConfigAPIVersion, filepath.Join(o.dir, authorizationFile), o.dir, o.dir)
}

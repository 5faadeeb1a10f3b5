package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// A console says how to open the page of a kubejoin in a browser. It contains no secret.
type console struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	URL        string `json:"url"`
	// CAFile has the CA of the server; empty if the system trusts it. SaveCA is the command that writes the file; empty if it
	// exists already.
	CAFile string `json:"caFile,omitempty"`
	SaveCA string `json:"saveCA,omitempty"`
	// TokenFile has a bearer token. Without a file, TokenCommand prints one, after AccountCommands have run once.
	TokenFile       string   `json:"tokenFile,omitempty"`
	TokenCommand    string   `json:"tokenCommand,omitempty"`
	AccountCommands []string `json:"accountCommands,omitempty"`
}

func consoleCommand() *cobra.Command {
	var o remoteOutput
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print how to open the page of kubejoin in a browser",
		Long: `Print the URL of the page that shows machines and tokens, how to make a browser trust its CA,
and where to get a bearer token for it. The command prints no secret and changes nothing.

The page asks for the token, and keeps it until you close or reload the page. The page can do
what the token can do, and nothing else. On a cluster, the printed command makes a token that
expires after an hour, for a service account that can only read. For more, bind another role:
` + docsURL + `http-api.md#give-a-user-access
A standalone kubejoin writes the token of its admin to curlrc. That token never expires.

On a cluster, the URL is that of a Pod of kubejoin. If kubejoin runs with systemd, or you
reach it by another name, give --url.` + remoteHelp,
		Example: `  # the kubejoin of a cluster
  kubejoin console --kubeconfig admin.conf

  # a standalone kubejoin, after 'kubejoin serve'
  kubejoin console --curlrc ` + defaultCurlrc + `

  # only the URL
  kubejoin console -o jsonpath={.url}`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				c, err := o.console(ctx, r)
				if err != nil {
					return err
				}
				return o.text(cmd.OutOrStdout(), c, c.text())
			})
		},
	}
	o.registerFormats(cmd, "text", "json", "yaml")
	o.remoteOptions.register(cmd)
	return cmd
}

// console describes the page of the cluster or server that connect has chosen.
func (o *remoteOptions) console(ctx context.Context, r *remote) (console, error) {
	c, kubectl := console{APIVersion: api.GroupVersion, Kind: "Console", CAFile: o.trusted}, "kubectl"
	if r.server != nil {
		c.URL = strings.TrimSuffix(r.server.URL, "/") + "/console"
		if r.server.Bearer != "" {
			c.TokenFile = cmp.Or(o.bearerFile, o.curlrc, defaultCurlrc)
			return c, nil
		}
	} else {
		server, err := podURL(ctx, r.cluster.Client)
		if err != nil {
			return c, err
		}
		if o.kubeconfigFile != "" && o.kubeconfigFile != os.Getenv(clientcmd.RecommendedConfigPathEnvVar) && o.kubeconfigFile != clientcmd.RecommendedHomeFile {
			kubectl += " --kubeconfig " + safetext.Quote(o.kubeconfigFile)
		}
		if o.context != "" {
			kubectl += " --context " + safetext.Quote(o.context)
		}
		c.URL, c.CAFile = server+"/console", "kubejoin-ca.crt"
		c.SaveCA = kubectl + ` -n kubejoin-system get configmap kube-root-ca.crt -o jsonpath='{.data.ca\.crt}' > ` + c.CAFile
	}
	c.TokenCommand = kubectl + " -n kubejoin-system create token viewer --audience kubejoin --duration 1h"
	c.AccountCommands = []string{
		kubectl + " -n kubejoin-system create serviceaccount viewer",
		kubectl + " create clusterrolebinding kubejoin-console --clusterrole kubejoin:viewer --serviceaccount kubejoin-system:viewer",
	}
	return c, nil
}

// podURL returns the URL of a Pod of kubejoin. It ignores mirror Pods of workers: each kubelet can create one, and the
// caller will send a token to this URL.
func podURL(ctx context.Context, client kubernetes.Interface) (string, error) {
	pods, err := client.CoreV1().Pods(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubejoin"})
	if err != nil {
		return "", err
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || pod.Status.HostIP == "" || len(pod.Spec.Containers[0].Ports) == 0 {
			continue
		}
		if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" {
			node, err := client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			if _, controlPlane := node.Labels["node-role.kubernetes.io/control-plane"]; !controlPlane {
				continue
			}
		}
		return "https://" + net.JoinHostPort(pod.Status.HostIP, strconv.Itoa(int(pod.Spec.Containers[0].Ports[0].ContainerPort))), nil
	}
	return "", errors.New("no Pod of kubejoin runs in namespace kubejoin-system: give the address of kubejoin with --url https://HOST:PORT")
}

// text is for people.
func (c console) text() string {
	text := c.URL + "\n"
	if c.CAFile != "" {
		text += "\nThe browser must trust the CA of kubejoin. Anyone who has the key of this CA can then pose as\n" +
			"any website in that browser, so use a separate browser profile.\n"
		if c.SaveCA != "" {
			text += "  save the CA       " + c.SaveCA + "\n"
		}
		file := safetext.Quote(c.CAFile)
		text += "  Chromium, Linux   mkdir -p ~/.pki/nssdb && certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n kubejoin -i " + file + "\n" +
			"  macOS             security add-trusted-cert -r trustRoot -p ssl -k ~/Library/Keychains/login.keychain-db " + file + "\n" +
			"  Windows           certutil -user -addstore Root " + file + "\n" +
			"  Firefox           Settings > Privacy & Security > View Certificates > Authorities > Import: " + c.CAFile + "\n"
	}
	if c.TokenFile != "" {
		return text + "\nThe page asks for a bearer token. Yours is in " + c.TokenFile + "\n"
	}
	return text + "\nThe page asks for a bearer token. This one can only read, and expires after an hour:\n  " + c.TokenCommand +
		"\nCreate its service account once:\n  " + strings.Join(c.AccountCommands, "\n  ") + "\n"
}

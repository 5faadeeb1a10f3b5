package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func kubeconfigCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "kubeconfig",
		Short: "Create and check kubeconfig files",
	}, bootstrapKubeconfigCommand(), nodeKubeconfigCommand(), userKubeconfigCommand(), checkKubeconfigCommand())
}

// credentialOptions are the flags of kubeconfig node and kubeconfig user.
type credentialOptions struct {
	remoteOptions
	caKey string
	// caKeyPassphrase is the file with the passphrase of caKey.
	caKeyPassphrase string
	apiServer       string
	duration        time.Duration
	groups          []string
	wait            time.Duration
	outputFile      string
	force           bool
}

// credentialHelp ends the help of kubeconfig node and kubeconfig user.
const credentialHelp = `

The command makes the key, and sends only a certificate request. One of these signs it:
  --kubeconfig        the cluster: the command creates and approves a CertificateSigningRequest,
                      so you need the permission to approve
  --url or --curlrc   a kubejoin server, where you need the permission to sign
  --ca-file, --ca-key a CA on this machine

The signer may shorten or extend --duration. The command then warns about it.` + remoteHelp

func nodeKubeconfigCommand() *cobra.Command {
	o := &credentialOptions{}
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Create the kubeconfig of a kubelet, without TLS bootstrap",
		Long: `Create /etc/kubernetes/kubelet.conf for a machine that joins without TLS bootstrap. kubeadm
calls this custom kubelet credentials. If kubejoin signs, it refuses the name of an existing
Node. With --ca-key, nothing checks whether the Node exists.` + credentialHelp,
		Example: `  # on the machine that joins, then: kubeadm join … \
  #   --ignore-preflight-errors=FileAvailable--etc-kubernetes-kubelet.conf
  kubejoin kubeconfig node worker-7 --url https://join.example.com:9443 --ca-file ca.crt \
    --bearer-file token --output-file /etc/kubernetes/kubelet.conf

  # with the CA key
  kubejoin kubeconfig node worker-7 --ca-file ca.crt --ca-key ca.key \
    --api-server https://api.example.com:6443 --output-file kubelet.conf`,
	}
	return o.complete(cmd, func(name string) (credentials.ClientIdentity, error) { return credentials.Node(name) })
}

func userKubeconfigCommand() *cobra.Command {
	o := &credentialOptions{}
	cmd := &cobra.Command{
		Use:   "user NAME",
		Short: "Create the kubeconfig of a user",
		Long: `Create a kubeconfig with a client certificate for a user and groups. A certificate cannot be
revoked, so prefer a short --duration.` + credentialHelp,
		Example: `  kubejoin kubeconfig user jane --group developers --duration 24h --output-file jane.conf

  # with the CA key
  kubejoin kubeconfig user jane --group developers --duration 24h --ca-file ca.crt \
    --ca-key ca.key --api-server https://api.example.com:6443 --output-file jane.conf`,
	}
	listVar(cmd.Flags(), &o.groups, "group", nil, "group of the user (repeatable; default: none)")
	return o.complete(cmd, func(name string) (credentials.ClientIdentity, error) { return credentials.User(name, o.groups) })
}

// complete adds the flags and the code that both commands share.
func (o *credentialOptions) complete(cmd *cobra.Command, identity func(name string) (credentials.ClientIdentity, error)) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := o.check(args, identity)
		if err != nil {
			return err
		}
		defer waiting{"for the certificate", o.wait}.begin(cmd)()
		return o.hint(explain(o.run(cmd, id)))
	}
	f := cmd.Flags()
	durationVar(f, &o.duration, "duration", 0, "requested lifetime, at least 10m (default: the signer's)")
	durationVar(f, &o.wait, "wait", time.Minute, "how long to wait for the certificate")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server to write into the file (default: that in cluster-info)")
	f.StringVar(&o.caKey, "ca-key", "", "private key of the CA in --ca-file, to sign on this machine")
	f.StringVar(&o.caKeyPassphrase, "ca-key-passphrase-file", "", "file with the passphrase of --ca-key, in one line (default: the key is not encrypted)")
	f.StringVar(&o.outputFile, "output-file", "", "file to write, with mode 0600 (- or default: standard output)")
	f.BoolVar(&o.force, "force", false, "replace the file of --output-file if it exists")
	heading(f, "Output flags", "output-file", "force")
	o.register(cmd)
	return cmd
}

func (o *credentialOptions) check(args []string, identity func(name string) (credentials.ClientIdentity, error)) (credentials.ClientIdentity, error) {
	var m mistakes
	var id credentials.ClientIdentity
	var err error
	m.when(len(args) != 1, "NAME: %d given, want one", len(args))
	if len(args) == 1 {
		id, err = identity(args[0])
		m.in("NAME", err)
	}
	m.when(o.given("duration") && o.duration < 10*time.Minute, "--duration: %s given, want at least 10m", o.duration)
	m.when(o.wait <= 0, "--wait: %s given, want more than 0", o.wait)
	m.when(o.caKey == "" && o.caKeyPassphrase != "", "--ca-key-passphrase-file: needs --ca-key, the key that it decrypts")
	if o.caKey != "" {
		m.when(o.caFile == "", "--ca-file: needed with --ca-key, as the certificate of this key")
		m.when(o.apiServer == "", "--api-server: needed with --ca-key, as https://HOST:PORT")
		m.excludes(o.given, "excludes --ca-key, which signs on this machine", "kubeconfig", "context", "url", "curlrc", "bearer-file", "client-certificate")
	}
	m.url("--api-server", o.apiServer)
	m.when(o.force && o.outputFile == "", "--force: needs --output-file")
	return id, m.err()
}

func (o *credentialOptions) run(cmd *cobra.Command, id credentials.ClientIdentity) (err error) {
	toFile := !isStdout(o.outputFile)
	if toFile && !o.force && exists(o.outputFile) {
		return fmt.Errorf("--output-file: %s exists; replace it with --force", o.outputFile)
	}
	var to *atomicfile.Replacement // checked before the request
	if toFile {
		if to, err = atomicfile.Prepare(o.outputFile); err != nil {
			return fmt.Errorf("--output-file: %w", err)
		}
		defer to.Drop()
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.wait)
	defer cancel()
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil { // else a single request took too long
			err = fmt.Errorf("%w: --wait %s", err, safetext.Duration(o.wait))
		}
	}()
	sign, kubeconfig, stop, err := o.signer(ctx, cmd)
	if err != nil {
		return err
	}
	defer stop()
	cluster, err := clusterOf(kubeconfig)
	if err != nil {
		return err
	}
	cluster.Server = cmp.Or(o.apiServer, cluster.Server)
	made, err := id.Issue(ctx, sign, o.duration)
	if err != nil {
		return err
	}
	content, err := clientcmd.Write(oneCluster("kubernetes", cluster, id.User, &clientcmdapi.AuthInfo{ClientCertificateData: made.Chain, ClientKeyData: made.Key}))
	if err != nil {
		return err
	}
	if to != nil {
		err = to.Write(content, 0o600)
	} else {
		_, err = cmd.OutOrStdout().Write(content)
	}
	if err != nil {
		return err
	}
	end := made.Certificate.NotAfter
	cmd.PrintErrln("kubejoin: the certificate for", sanitize(id.User), "ends at", end.UTC().Format(time.RFC3339))
	// Allow for 5 minutes: the signer backdates each certificate by 5 minutes, and so a long-lived certificate also ends 5
	// minutes earlier.
	if differs := time.Until(end) - o.duration; o.duration > 0 && differs.Abs() > 10*time.Minute {
		warn(cmd, "the signer does not issue certificates for "+safetext.Duration(o.duration))
	}
	return nil
}

// clusterOf returns the cluster in cluster-info, for a kubeconfig.
func clusterOf(info []byte) (*clientcmdapi.Cluster, error) {
	server, cas, err := clusterinfo.ParseKubeconfig(info)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle(cas)}, nil
}

// signer returns a function that signs, and the kubeconfig in cluster-info.
func (o *credentialOptions) signer(ctx context.Context, cmd *cobra.Command) (sign credentials.SignFunc, kubeconfig []byte, stop func(), err error) {
	if o.caKey != "" {
		ca, err := signer.LoadEncryptedCA(o.caFile, o.caKey, o.caKeyPassphrase)
		if err != nil {
			return nil, nil, nil, err
		}
		signers := map[string]signer.Signer{} // only for client certificates: the CA must sign no others
		for _, name := range []string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeAPIServerClientSignerName} {
			if signers[name], err = signer.NewSigner(name, signer.Fixed(ca), signer.ProfileConfig{Usages: signer.KubernetesUsages(name)}, nil); err != nil {
				return nil, nil, nil, err
			}
		}
		kubeconfig, err = clusterinfo.Kubeconfig(o.apiServer, ca.Bundle())
		return credentials.SignLocally(signers), kubeconfig, func() {}, err
	}
	r, stop, err := o.connect(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if kubeconfig, err = r.clusterInfo(ctx); err != nil {
		stop()
		return nil, nil, nil, err
	}
	if r.cluster != nil {
		return credentials.SignByCSRObject(r.cluster.Client, func(message string) { progress(cmd, "%s", message) }), kubeconfig, stop, nil
	}
	return overHTTPS(cmd, r, o.wait), kubeconfig, stop, nil
}

// overHTTPS returns a SignFunc that requests the certificate from a kubejoin server, and retries for at most wait.
func overHTTPS(cmd *cobra.Command, r *remote, wait time.Duration) credentials.SignFunc {
	return func(ctx context.Context, asked credentials.SigningRequest) ([]byte, error) {
		one := signOptions{signer: asked.Signer, duration: asked.Duration, wait: wait}
		for _, u := range asked.Usages {
			one.usages = append(one.usages, string(u))
		}
		return one.sign(ctx, cmd, r, asked.CSR)
	}
}

// oneCluster returns a kubeconfig with one cluster, one user and one context.
func oneCluster(name string, cluster *clientcmdapi.Cluster, userName string, user *clientcmdapi.AuthInfo) clientcmdapi.Config {
	context := userName + "@" + name
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{userName: user},
		Contexts:       map[string]*clientcmdapi.Context{context: {Cluster: name, AuthInfo: userName}},
		CurrentContext: context,
	}
}

// kubeconfigOf returns the discovery kubeconfig for an API server and the CAs in a file.
func kubeconfigOf(caFile, apiServer string) ([]byte, error) {
	cas, err := readCAs(caFile)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := clusterinfo.Kubeconfig(apiServer, cas)
	if err != nil {
		return nil, fmt.Errorf("--ca-file and --api-server: %w", err)
	}
	return kubeconfig, nil
}

func checkKubeconfigCommand() *cobra.Command {
	var o struct {
		output
		node    string
		offline bool
	}
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Find what is wrong with a kubeconfig",
		Long: `Find what is wrong with a kubeconfig, for example /etc/kubernetes/kubelet.conf: in the file,
its certificate, its key and its CA, and at the API server, with two requests that change
nothing. The requests take the same way as kubectl's, and run the exec plugin that the file
names. Each finding is one line with a remedy.

The exit code is 0 if there is no finding. It is 1 if there are findings. It is 2 if no
finding was made but a check could not run, or if the command cannot read the file.`,
		Example: `  kubejoin kubeconfig check /etc/kubernetes/kubelet.conf --node worker-7

  kubejoin kubeconfig check jane.conf -o jsonpath='{.findings[*].id}'`,
		Args: oneArg("FILE", "one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer waiting{what: "for the checks"}.begin(cmd)()
			report, err := credentials.Checker{Node: o.node, Offline: o.offline}.Check(cmd.Context(), args[0])
			if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			return cmp.Or(o.text(cmd.OutOrStdout(), report, report.Text()), exitOf(len(report.Findings), len(report.Unchecked)))
		},
	}
	f := cmd.Flags()
	nodeVar(f, &o.node, "node", "node that the file is for (default: any)")
	f.BoolVar(&o.offline, "offline", false, "check only the file, not the API server")
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}

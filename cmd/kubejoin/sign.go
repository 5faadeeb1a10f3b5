package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
)

// The shortest and the longest delay before a retry.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

func signCommand() *cobra.Command {
	o := &signOptions{}
	cmd := &cobra.Command{
		Use:   "sign [FILE|-]",
		Short: "Get a certificate from a kubejoin server, without a CertificateSigningRequest",
		Long: `Get a certificate from a kubejoin server, without a CertificateSigningRequest object.
FILE is a CSR in PEM; - or no FILE reads standard input. The command prints the
certificate in PEM, followed by its intermediate certificates.

The credential decides which certificates you can get:
  bootstrap token (--bearer-file)     the first client certificate of a node
  node (--client-certificate)         renewal of its own client certificate, or its
                                      serving certificate if the CSR has DNS names or IPs
  user who may sign for --signer      any certificate that the signer allows

On a cluster without a kubejoin server, create a CertificateSigningRequest and run 'kubectl
certificate approve'.

The exit code is 3 if the server refuses the certificate or cannot issue it yet. It is 1
if the command cannot reach the server.` + serverHelp,
		Example: `  # a machine that joins; its private key stays on the machine
  openssl ecparam -name prime256v1 -genkey -noout -out node.key
  openssl req -new -key node.key -subj /O=system:nodes/CN=system:node:worker-7 |
    kubejoin sign --url https://join.example.com:9443 --ca-file ca.crt \
      --bearer-file token --output-file node.crt

  # the same with curl; the file auth contains the line 'Authorization: Bearer TOKEN'
  curl --cacert ca.crt -H @auth --data-binary @node.csr \
    https://join.example.com:9443/v1/certificate

  # the node renews its client certificate, and gets its serving certificate
  kubejoin sign node.csr --url https://join.example.com:9443 --ca-file ca.crt \
    --client-certificate node.crt --client-key node.key --output-file node.crt
  openssl req -new -key node.key -subj /O=system:nodes/CN=system:node:worker-7 \
    -addext subjectAltName=DNS:worker-7.example.com |
    kubejoin sign --url https://join.example.com:9443 --ca-file ca.crt \
      --client-certificate node.crt --client-key node.key --wait 1m

  # a control plane without CA keys, after 'kubeadm certs generate-csr'
  kubejoin sign --kubeadm-dir /etc/kubernetes --url https://ca.example.com:9443 \
    --ca-file kubejoin-ca.crt --bearer-file operator.token

  # an admin gets a client certificate for a user
  kubejoin sign jane.csr --signer kubernetes.io/kube-apiserver-client --duration 24h`,
		Args:    cobra.ArbitraryArgs,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.kubeadmDir != "" {
				return o.signKubeadm(cmd)
			}
			file := "-"
			if len(args) == 1 {
				file = args[0]
			}
			request, err := readCSR(cmd, file)
			if err != nil {
				return err
			}
			o.waits = waiting{"for the certificate", o.wait + serverWait}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				to, err := o.destination(cmd.OutOrStdout())
				if err != nil {
					return fmt.Errorf("--output-file: %w", err)
				}
				defer to.drop()
				chain, err := o.sign(ctx, cmd, r, request)
				if err != nil {
					return err
				}
				if err := to.write(chain); err != nil {
					return fmt.Errorf("--output-file: %w", err)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.signer, "signer", "", "name of the signer (default for machines: "+certificates.KubeAPIServerClientKubeletSignerName+", or "+certificates.KubeletServingSignerName+" for a node whose CSR has DNS names or IPs)")
	durationVar(f, &o.duration, "duration", 0, "requested lifetime, at least 10m (default: the signer's)")
	listVar(f, &o.usages, "usage", nil, `key usage, for example "client auth" (repeatable; default: the usual ones for the signer)`)
	f.StringVar(&o.file, "output-file", "-", "file to write the certificate to; - is standard output")
	heading(f, "Output flags", "output-file")
	durationVar(f, &o.wait, "wait", 0, "how long to retry while the server cannot issue the certificate yet (0: do not retry)")
	complete(cmd, "signer", certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName)
	complete(cmd, "usage", string(certificates.UsageDigitalSignature), string(certificates.UsageKeyEncipherment), string(certificates.UsageClientAuth), string(certificates.UsageServerAuth))
	f.StringVar(&o.kubeadmDir, "kubeadm-dir", "", "sign everything that 'kubeadm certs generate-csr' wrote below this folder, for example /etc/kubernetes")
	o.pki.register(f, "with --kubeadm-dir: ")
	o.serverOnly = true
	o.register(cmd)
	return cmd
}

// signKubeadm signs the requests of a control plane.
func (o *signOptions) signKubeadm(cmd *cobra.Command) error {
	host, sign, stop, err := o.kubeadmSigner(cmd, o.kubeadmDir, o.pki, o.wait)
	if err != nil {
		return err
	}
	defer stop()
	names, err := host.Sign(cmd.Context(), sign)
	for _, name := range names {
		cmd.PrintErrln("kubejoin: signed", name)
	}
	if err == nil && len(names) == 0 {
		cmd.PrintErrln("kubejoin: all certificates are valid already")
	}
	if sa := filepath.Join(o.kubeadmDir, "pki", "sa.key"); err == nil && !exists(sa) {
		warn(cmd, sa+" is missing, and kubeadm does not create it in external CA mode; copy sa.key and sa.pub from another control plane, "+
			"or for the first one run 'kubeadm init phase certs sa --cert-dir DIR' with an empty DIR")
	}
	return o.hint(explain(err))
}

type signOptions struct {
	remoteOptions
	signer   string
	duration time.Duration
	usages   []string
	file     string
	wait     time.Duration

	kubeadmDir string
	pki        caKeys
}

func (o *signOptions) check(_ *cobra.Command, args []string) error {
	var m mistakes
	if o.kubeadmDir != "" {
		m.excludes(o.given, "excludes --kubeadm-dir, which has one signer for each certificate", "signer", "duration", "usage", "output-file")
		m.when(len(args) > 0, "FILE: excludes --kubeadm-dir")
	}
	m.when(o.kubeadmDir == "" && o.pki.dir != "", "--pki-dir: needs --kubeadm-dir")
	o.pki.check(&m)
	m.when(len(args) > 1, "FILE: %d given, want one, or none for standard input", len(args))
	m.when(len(args) == 1 && args[0] == "", "FILE: is empty; leave it out for standard input")
	m.when(o.clusterFlag() != "", "%s: sign needs a kubejoin server, want --url https://HOST:PORT; on a cluster without one, "+
		"create a CertificateSigningRequest with 'kubectl apply' and run 'kubectl certificate approve'", o.clusterFlag())
	m.when(o.given("duration") && o.duration <= 0, "--duration: %s given, want 10m or more", o.duration)
	m.when(o.wait < 0, "--wait: %s given, want 0 or more", o.wait)
	return m.err()
}

// readCSR reads a CSR. It refuses a malformed one before any server is called.
func readCSR(cmd *cobra.Command, file string) ([]byte, error) {
	content, err := readInput(cmd, file, server.MaxBody)
	if err != nil {
		return nil, err
	}
	if file == "-" {
		file = "standard input"
	}
	if _, err := pkcs10.Parse(content); err != nil {
		return nil, fmt.Errorf("%s: %w; create a CSR with: openssl req -new -key KEY -subj SUBJECT", file, err)
	}
	return content, nil
}

// sign requests a certificate. It retries until the server issues or refuses it, or --wait is over.
func (o *signOptions) sign(ctx context.Context, cmd *cobra.Command, r *remote, request []byte) ([]byte, error) {
	asked := api.SignCertificate{CSR: request, Signer: o.signer, Usages: o.usages}
	if o.duration > 0 {
		asked.Duration = o.duration.String()
	}
	start, told := time.Now(), ""
	for {
		chain, err := r.server.Certificate(ctx, asked)
		if err == nil {
			return chain, nil
		}
		var p *api.Problem
		if !errors.As(err, &p) {
			return nil, err
		}
		left := o.wait - time.Since(start)
		if p.Status != http.StatusServiceUnavailable && p.Status != http.StatusTooManyRequests || left <= 0 {
			return nil, o.refused(p)
		}
		delay := min(max(p.RetryAfter, minRetry), maxRetry, left)
		if silence := max(0, longWait-time.Since(start)); withReason(p) != told && silence < delay {
			if err := loop.Sleep(ctx, silence); err != nil {
				return nil, err
			}
			told, delay = withReason(p), delay-silence
			progress(cmd, "waiting: %s", told)
		}
		if err := loop.Sleep(ctx, delay); err != nil {
			return nil, err
		}
	}
}

func withReason(p *api.Problem) string {
	if p.Reason == "" {
		return p.Detail
	}
	return p.Detail + " (" + p.Reason + ")"
}

// refused returns why the server issued no certificate, and what to do next.
func (o *signOptions) refused(p *api.Problem) error {
	next := ""
	switch {
	case p.Named(api.ProblemCertificateRefused):
	case p.Named(api.ProblemCertificateNotPermitted):
		next = "\nhint: a user who may sign for the signer can run the same command with their own credential"
	case p.Named(api.ProblemCertificateWaits):
		next = "\nhint: retry until the certificate can be issued: kubejoin sign --wait 5m"
	case p.Status == http.StatusNotFound:
		return errors.New("the server has no CA and signs no certificates; start it with --cluster-signing-cert-file and --cluster-signing-key-file")
	default:
		for i, e := range p.Errors {
			if e.Field == "usages" {
				p.Errors[i].Field = "usage" // the flag is --usage
			}
		}
		return p
	}
	p.Detail = "no certificate: " + withReason(p) + next
	return p
}

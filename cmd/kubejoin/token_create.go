package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tokenCreateOptions are the flags of token create.
type tokenCreateOptions struct {
	remoteOptions
	output
	spec             api.TokenSpec
	ttl, duration    time.Duration
	groups           []string
	wait             time.Duration
	dryRun, chosen   bool // chosen: the caller has given the token
	printJoinCommand bool
	joinFormat       string
	withRejoin       string
	certificateKey   string
	controlPlane     bool
	key              joinformat.CertificateKey
	withoutCluster   offlineOptions
}

func tokenCreateCommand() *cobra.Command {
	var o tokenCreateOptions
	cmd := &cobra.Command{
		Use:   "create [TOKEN | -]",
		Short: "Create a bootstrap token",
		Long: `Create a bootstrap token, wait until cluster-info is signed with it, and print it.

TOKEN is a token of your own, for example from 'kubejoin token generate'; - reads it
from standard input, which keeps it out of the process list. If you repeat a command
with the same TOKEN, it prints that token and creates no second one.

Without limits, any machine can join with the token, under any free node name and any
number of times. The limits (--max-nodes, --node-name, --certificate-duration, --role,
--replace-node) apply when kubejoin issues the certificate. Other signers ignore them.

If cluster-info is not signed within --wait, the command still prints the token, which
stays stored, and the exit code is 1. With --print-join-command it prints no token then.` + remoteHelp + offlineHelp,
		Example: `  # a join command for any number of workers, valid for a day
  kubejoin token create --print-join-command

  # for one machine with this node name, valid for an hour
  kubejoin token create --ttl 1h --max-nodes 1 --node-name worker-7 --print-join-command

  # cloud-init user data for a machine that joins when it boots
  kubejoin token create --max-nodes 1 --print-join-command --format cloud-config

  # for a machine of a tenant, whose Node gets a label that the machine cannot change
  kubejoin token create --max-nodes 1 --node-label node-restriction.kubernetes.io/tenant=a

  # to replace a broken machine whose Node object still exists
  kubejoin token create --replace-node worker-7 --print-join-command

  # for one control plane; run it on a control plane, or with --url
  kubejoin token create --print-join-command --control-plane

  # on a standalone kubejoin server
  kubejoin token create --curlrc kubejoin-data/curlrc

  # for a cluster that does not exist yet
  kubejoin token create --offline --ca-file ca.crt \
    --api-server https://api.example.com:6443 --output-dir token`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := o.request(cmd, args)
			if err != nil {
				return err
			}
			if o.spec.NodeReadyAfter != "" && !o.printJoinCommand {
				warn(cmd, "with the token alone, a machine registers without the taint "+tokens.JoiningTaint+", and pods run on it at once; give --print-join-command and --format script")
			}
			if o.withoutCluster.offline {
				return o.withoutCluster.run(cmd, asked, o.format)
			}
			if o.waits = (waiting{"for a signature by the token in cluster-info", o.wait + serverWait}); o.controlPlane || o.wait == 0 {
				o.waits = waiting{}
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if o.controlPlane {
					return o.createControlPlane(ctx, cmd, r, asked.TokenSpec)
				}
				return o.create(ctx, cmd, r, asked)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	durationVar(f, &o.ttl, "ttl", tokens.DefaultTTL, "lifetime of the token, for example 90s, 30m, 3h or 1d (0: never expires)")
	f.StringVar(&o.spec.Expires, "expires", "", "time when the token expires, instead of --ttl, for example 2030-01-31T12:00:00Z")
	listVar(f, &o.spec.Usages, "usages", []string{api.UsageSigning, api.UsageAuthentication}, "usages of the token: signing for discovery, authentication to request a certificate")
	listVar(f, &o.groups, "groups", []string{tokens.DefaultGroup}, "groups of a machine that authenticates with the token; each begins with system:bootstrappers:")
	f.StringVar(&o.spec.Description, "description", "", "description of the token")
	f.StringVar(&o.spec.Owner, "owner", "", "cluster-scoped object whose deletion deletes the token: "+tokens.OwnerForm+"; UID is optional with a kubeconfig")
	durationVar(f, &o.wait, "wait", mint.DefaultSignTimeout, "how long to wait for the signature in cluster-info (0: do not wait)")
	f.BoolVar(&o.dryRun, "dry-run", false, "check the request, but store nothing")
	heading(f, "Token flags")
	f.IntVar(&o.spec.MaxNodes, "max-nodes", 0, fmt.Sprintf("maximum number of nodes that may join, 1 to %d (default: unlimited)", tokens.MaxNodes))
	listVar(f, &o.spec.NodeNames, "node-name", nil, "allowed node name, or a pattern such as 'worker-*' (repeatable; default: any)")
	certificateFlags(f, &o.duration, &o.spec.Role, &o.spec.Rejoin)
	f.StringVar(&o.spec.ReplaceNode, "replace-node", "", "name of an existing Node that one machine may replace")
	heading(f, "Limit flags")
	propertyFlags(f, &o.spec.NodeLabels, &o.spec.NodeTaints, &o.spec.NodeReadyAfter, "with --print-join-command: ")
	heading(f, "Node flags")
	f.BoolVar(&o.printJoinCommand, "print-join-command", false, "print the join command instead of the token, in the format of --format")
	f.StringVar(&o.joinFormat, "format", api.FormatText, "with --print-join-command: "+safetext.List(joinformat.Formats(), "or")+"; text is the 'kubeadm join' command; all have the secret of the token")
	f.StringVar(&o.withRejoin, "with-rejoin", "", "with --format script: https://HOST:PORT of a kubejoin server; the script sets the machine up to rejoin there after its certificate has expired")
	f.StringVar(&o.certificateKey, "certificate-key", "", "with --print-join-command: join as control plane, with this key from 'kubejoin certs upload' or 'kubeadm init phase upload-certs --upload-certs'")
	f.BoolVar(&o.controlPlane, "control-plane", false, "with --print-join-command: join as control plane, and upload the certificates for it (implies --ttl 2h --max-nodes 1 --role control-plane, unless given)")
	registerPKIDir(f, &o.pkiDir, "with --control-plane on a cluster: ")
	heading(f, "Join command flags")
	o.output.register(cmd, "text", "wide", "csv")
	o.remoteOptions.register(cmd)
	o.withoutCluster.register(f)
	heading(f, "Flags for a cluster that does not exist yet")
	o.offerFlag(cmd, "replace-node", listNodes)
	complete(cmd, "usages", api.UsageSigning, api.UsageAuthentication)
	complete(cmd, "format", joinformat.Formats()...)
	complete(cmd, "groups", tokens.DefaultGroup)
	return cmd
}

// certificateFlags adds the flags for the certificates of nodes, which tokens and machines have.
func certificateFlags(f *pflag.FlagSet, duration *time.Duration, role, rejoin *string) {
	durationVar(f, duration, "certificate-duration", 0, "lifetime of the node certificates, within the limits of the signer (default: the signer's)")
	choiceVar(f, role, "role", "", "role of the nodes: %s, which may use reserved node names (default: they may not)", tokens.RoleControlPlane)
	choiceVar(f, rejoin, "rejoin", "", "%s that a node rejoins with an expired certificate, if 'kubejoin serve' has --rejoin-window (default: allow)", tokens.RejoinAllow, tokens.RejoinDeny)
}

// propertyFlags adds the flags for the properties of Nodes, which tokens and machines have.
func propertyFlags(f *pflag.FlagSet, labels, taints *[]string, readyAfter *string, when string) {
	listVar(f, labels, "node-label", nil, "label that kubejoin adds to the new Nodes: KEY=VALUE or KEY= (repeatable; default: none)")
	listVar(f, taints, "node-taint", nil, "taint that kubejoin adds, as for kubectl: KEY=VALUE:EFFECT or KEY:EFFECT (repeatable; default: none)")
	choiceVar(f, readyAfter, "node-ready-after", "", when+"%s: keep pods off new Nodes until they have these labels and taints, or also a serving certificate (default: do not)", tokens.ReadyAfterLabels, tokens.ReadyAfterServingCertificate)
}

// request returns the request for the flags. It generates the token here, not on the server, so that the client knows
// the token even if the response is lost.
func (o *tokenCreateOptions) request(cmd *cobra.Command, args []string) (api.CreateToken, error) {
	asked := api.CreateToken{DryRun: o.dryRun, Wait: o.wait.String()}
	var m mistakes
	m.when(o.given("ttl") && o.spec.Expires != "", "--expires: excludes --ttl, and both are given")
	m.in("--ttl", checkTTL(o.ttl))
	m.when(o.wait < 0 || o.wait > api.MaxWait, "--wait: %s given, want at most %s, or 0 to not wait", o.wait, api.MaxWait)
	m.when(o.given("max-nodes") && o.spec.MaxNodes < 1, "--max-nodes: %d given, want 1 to %d; leave it out for no limit", o.spec.MaxNodes, tokens.MaxNodes)
	m.when(o.given("certificate-duration") && o.duration <= 0, "--certificate-duration: %s given, want %s or more; leave it out for the signer's default", o.duration, tokens.MinCertificateDuration)
	both := slices.Contains(o.spec.Usages, api.UsageSigning) && slices.Contains(o.spec.Usages, api.UsageAuthentication)
	m.when(o.printJoinCommand && !both, "--print-join-command: needs both usages, want --usages signing,authentication")
	o.checkJoinFormat(&m)
	m.when(o.printJoinCommand && o.given("output"), "--output: excludes --print-join-command, which prints only the join command; use --format instead")
	o.withoutCluster.caFile = o.caFile
	o.withoutCluster.join = o.join
	if err := cmp.Or(m.first(), o.withoutCluster.check(o.given, o.format)); err != nil {
		return asked, err
	}
	if o.controlPlane && len(args) > 0 {
		return asked, usagef("TOKEN: excludes --control-plane, for which kubejoin generates the token")
	}
	o.chosen = len(args) > 0
	t, err := chosenToken(cmd, args)
	if err != nil {
		return asked, &usageError{err: err}
	}
	asked.Token = api.Secret(t.Reveal())
	asked.TokenSpec = o.spec
	if o.spec.Expires == "" {
		asked.TTL = o.ttl.String()
	}
	if o.given("groups") {
		asked.Groups = o.groups
	}
	if o.given("certificate-duration") {
		asked.CertificateDuration = o.duration.String()
	}
	return asked, nil
}

// chosenToken returns the token in the argument, or for "-" the token on standard input. Without an argument, it returns a
// new token. Its errors do not contain the token.
func chosenToken(cmd *cobra.Command, args []string) (tokens.Token, error) {
	switch {
	case len(args) == 0:
		return tokens.Generate(), nil
	case len(args) > 1:
		return tokens.Token{}, fmt.Errorf("TOKEN: %d arguments given, want one or none", len(args))
	case args[0] != "-":
		return tokens.Parse(args[0])
	}
	content, err := readInput(cmd, "-", maxTokenFile)
	if err != nil {
		return tokens.Token{}, fmt.Errorf("TOKEN: %w", err)
	}
	return tokens.Parse(strings.TrimSpace(string(content)))
}

func (o *tokenCreateOptions) create(ctx context.Context, cmd *cobra.Command, r *remote, asked api.CreateToken) error {
	made, err := r.CreateToken(ctx, asked)
	if err != nil {
		switch {
		case made.ID == "": // a dry run: the token does not exist
		case o.printJoinCommand:
			err = o.notPrinted(err, made.ID)
		default:
			_, printErr := fmt.Fprintln(cmd.OutOrStdout(), asked.Token.Reveal())
			err = errors.Join(err, printErr)
		}
		return err
	}
	warn(cmd, made.Warnings...)
	if !o.key.IsZero() && r.cluster != nil {
		if _, err := (&kubeadmcerts.Uploader{Client: r.cluster.Client}).Get(ctx); errors.Is(err, kubeadmcerts.ErrNotFound) {
			warn(cmd, "--certificate-key: "+err.Error()+", so no machine can join as control plane with this key; upload the certificates with 'kubejoin certs upload'")
		}
	}
	if o.dryRun {
		cmd.PrintErrln("kubejoin: dry run: nothing was stored")
	}
	made.Warnings = nil
	w := cmd.OutOrStdout()
	switch {
	case o.printJoinCommand && made.JoinCommand == "":
		return o.notPrinted(fmt.Errorf("token %s was created, but there is no join command: cluster-info cannot be read", made.ID), made.ID)
	case o.printJoinCommand:
		return o.printJoin(ctx, cmd, r, made)
	case o.format == "text":
		_, err = fmt.Fprintln(w, made.Token.Reveal())
	default:
		err = o.tokens(w, made, []api.Token{made})
	}
	return o.unwritten(err, made.ID)
}

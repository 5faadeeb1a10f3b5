package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

// tokenCreateOptions are the flags of token create.
type tokenCreateOptions struct {
	remoteOptions
	output
	ttl, duration    time.Duration
	expires          string
	usages, groups   []string
	description      string
	maxNodes         int
	nodeNames        []string
	role, replace    string
	wait             time.Duration
	dryRun           bool
	printJoinCommand bool
	joinFormat       string
	certificateKey   string
	key              joinformat.CertificateKey
	withoutCluster   offlineOptions
}

func tokenCreateCommand() *cobra.Command {
	var o tokenCreateOptions
	cmd := &cobra.Command{
		Use:   "create [TOKEN | -]",
		Short: "Make a bootstrap token that works when it is printed",
		Long: `Make a bootstrap token and print it, once cluster-info is signed with it: a machine
can join at once. TOKEN is one of your own, as 'kubejoin token generate' prints;
with - it is read from standard input, which keeps it out of the command line. The
same command again prints it again, and makes no second one.

A token lets in any machine, under any free name, as often as it likes, unless
flags say what it is good for. Such limits hold when a certificate is issued,
so that kubejoin has to be what issues them.

If nobody signs cluster-info within --wait the token stays and is printed, and the
exit code is 1.` + remoteHelp + offlineHelp,
		Example: `  # a join command for any number of workers, good for a day
  kubejoin token create --print-join-command

  # for one machine of that name, within the hour
  kubejoin token create --ttl 1h --max-nodes 1 --node-name worker-7 --print-join-command

  # user data for a machine that joins when it boots
  kubejoin token create --max-nodes 1 --print-join-command --format cloud-config

  # for a machine in place of a broken one that is still registered
  kubejoin token create --replace-node worker-7 --print-join-command

  # from a kubejoin server with no cluster
  kubejoin token create --curlrc kubejoin-data/curlrc

  # for a cluster that is still to be made
  kubejoin token create --offline --ca-file ca.crt --api-server https://api.example.com:6443 --out-dir token`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := o.request(cmd.InOrStdin(), args)
			if err != nil {
				return usageOf(cmd, err)
			}
			if o.withoutCluster.offline {
				return usageOf(cmd, o.withoutCluster.run(cmd, asked, o.format))
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.create(ctx, cmd, r, asked) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.DurationVar(&o.ttl, "ttl", tokens.DefaultTTL, "how long the token lives, such as 1s, 2m or 3h; 0 is for ever")
	f.StringVar(&o.expires, "expires", "", "when it ends, in place of --ttl: a time such as 2030-01-31T12:00:00Z")
	f.StringSliceVar(&o.usages, "usages", []string{api.UsageSigning, api.UsageAuthentication}, "what it may be used for: signing (discovery), authentication (asking for a certificate) or both")
	f.StringSliceVar(&o.groups, "groups", []string{tokens.DefaultGroup}, "groups of who authenticates with it; each begins with system:bootstrappers:")
	f.StringVar(&o.description, "description", "", "what it is for, in words")
	f.BoolVar(&o.printJoinCommand, "print-join-command", false, "print how to join in place of the token: the 'kubeadm join' line, or another --format")
	f.StringVar(&o.joinFormat, "format", api.FormatText, "with --print-join-command: "+strings.Join(server.JoinFormats(), ", ")+"; text is the line, and all of them hold the token")
	f.StringVar(&o.certificateKey, "certificate-key", "", "with --print-join-command: join a control plane, with the key that 'kubeadm init phase upload-certs --upload-certs' printed")
	f.IntVar(&o.maxNodes, "max-nodes", 0, fmt.Sprintf("how many nodes may join with it, 1 to %d (default any number)", tokens.MaxNodes))
	f.StringSliceVar(&o.nodeNames, "node-name", nil, "name that a node may join under, or a pattern such as 'worker-*' (repeatable; default any)")
	f.DurationVar(&o.duration, "certificate-duration", 0, "how long the certificates of these nodes are valid, within the bounds of the signer (default the signer's)")
	f.StringVar(&o.role, "role", "", tokens.RoleControlPlane+" is for nodes that may take reserved names (default a worker)")
	f.StringVar(&o.replace, "replace-node", "", "name of a Node that exists, which one machine may take")
	f.DurationVar(&o.wait, "wait", server.DefaultSignTimeout, "how long to wait for the signature in cluster-info; 0 is not at all")
	f.BoolVar(&o.dryRun, "dry-run", false, "check everything, and store nothing")
	o.output.register(cmd, "text", "wide", "csv")
	o.remoteOptions.register(cmd)
	o.withoutCluster.register(f)
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("usages", api.UsageSigning, api.UsageAuthentication)
	complete("format", server.JoinFormats()...)
	complete("role", tokens.RoleControlPlane)
	complete("groups", tokens.DefaultGroup)
	return cmd
}

// request is what the command line asks for. The token is made here, so that it is known also if
// the answer is lost.
func (o *tokenCreateOptions) request(stdin io.Reader, args []string) (api.CreateToken, error) {
	asked := api.CreateToken{DryRun: o.dryRun, Wait: o.wait.String()}
	usage := func(format string, args ...any) (api.CreateToken, error) {
		return asked, &usageError{err: fmt.Errorf(format, args...)}
	}
	if err := o.check(); err != nil {
		return asked, err
	}
	if o.given("ttl") && o.expires != "" {
		return usage("--expires: give this or --ttl")
	}
	if err := checkTTL(o.ttl); err != nil {
		return asked, err
	}
	if o.wait < 0 || o.wait > server.MaxWait {
		return usage("--wait: %s given, want up to %s, or 0 for not at all", o.wait, server.MaxWait)
	}
	if o.given("max-nodes") && o.maxNodes < 1 {
		return usage("--max-nodes: %d given, want 1 to %d; leave it out for any number", o.maxNodes, tokens.MaxNodes)
	}
	if o.given("certificate-duration") && o.duration <= 0 {
		return usage("--certificate-duration: %s given, want %s or more; leave it out for the signer's", o.duration, tokens.MinCertificateDuration)
	}
	both := slices.Contains(o.usages, api.UsageSigning) && slices.Contains(o.usages, api.UsageAuthentication)
	if o.printJoinCommand && !both {
		return usage("--print-join-command: needs a token of both --usages, signing and authentication")
	}
	if err := o.checkJoinFormat(); err != nil {
		return asked, &usageError{err: err}
	}
	if o.printJoinCommand && o.given("output") {
		return usage("--output: does not go with --print-join-command, which prints how to join alone; see --format")
	}
	o.withoutCluster.caFile = o.caFile
	o.withoutCluster.join = o.join
	if err := o.withoutCluster.check(o.given, o.format); err != nil {
		return asked, &usageError{err: err}
	}
	t, err := chosenToken(stdin, args)
	if err != nil {
		return asked, &usageError{err: err}
	}
	asked.Token = api.Secret(t.Reveal())
	asked.TokenSpec = api.TokenSpec{
		Expires: o.expires, Usages: o.usages, Description: o.description,
		MaxNodes: o.maxNodes, NodeNames: o.nodeNames, Role: o.role, ReplaceNode: o.replace,
	}
	if o.expires == "" {
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

// checkTTL is the server's rule, in the terms of the command line.
func checkTTL(d time.Duration) error {
	if d != 0 && (d < time.Second || d > server.MaxTTL) {
		return &usageError{err: fmt.Errorf("--ttl: %s given, want 1s to %s, or 0 for ever", d, server.MaxTTL)}
	}
	return nil
}

// chosenToken is the argument, a line of standard input, or a new token. The errors hold none.
func chosenToken(stdin io.Reader, args []string) (tokens.Token, error) {
	switch {
	case len(args) == 0:
		return tokens.Generate(), nil
	case len(args) > 1:
		return tokens.Token{}, fmt.Errorf("TOKEN: %d arguments given, want one or none", len(args))
	case args[0] != "-":
		return tokens.Parse(args[0])
	}
	line, err := bufio.NewReader(io.LimitReader(stdin, 1<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return tokens.Token{}, fmt.Errorf("TOKEN from standard input: %w", err)
	}
	return tokens.Parse(strings.TrimSpace(line))
}

func (o *tokenCreateOptions) create(ctx context.Context, cmd *cobra.Command, r *remote, asked api.CreateToken) error {
	made, err := r.CreateToken(ctx, asked)
	if maybeApplied(err) && ctx.Err() == nil { // asked again for the same token, no second one is made
		made, err = r.CreateToken(ctx, asked)
	}
	if err != nil {
		return o.notCreated(ctx, cmd, r, asked, err)
	}
	warn(cmd, made.Warnings...)
	if o.dryRun {
		cmd.PrintErrln("kubejoin: dry run: nothing was stored")
	}
	made.Warnings = nil
	w := cmd.OutOrStdout()
	switch {
	case o.printJoinCommand && made.JoinCommand == "":
		if _, err := fmt.Fprintln(w, made.Token.Reveal()); err != nil {
			return err
		}
		return fmt.Errorf("token %s was made, and there is no join command: cluster-info cannot be read", made.ID)
	case o.printJoinCommand:
		return o.printJoin(ctx, w, r, made)
	case o.format == "text":
		_, err := fmt.Fprintln(w, made.Token.Reveal())
		return err
	}
	return o.tokens(w, made, []api.Token{made})
}

// maybeApplied reports whether what was asked for may have been done in spite of an error.
func maybeApplied(err error) bool {
	var p *api.Problem
	var dial *net.OpError
	return err != nil && !errors.As(err, &p) && !(errors.As(err, &dial) && dial.Op == "dial") // nothing was sent
}

// notCreated returns err, and prints the token if the server stored it or may have stored it.
func (o *tokenCreateOptions) notCreated(ctx context.Context, cmd *cobra.Command, r *remote, asked api.CreateToken, err error) error {
	id, _, _ := strings.Cut(asked.Token.Reveal(), ".")
	var p *api.Problem
	switch {
	case errors.As(err, &p) && p.TokenID == "", asked.DryRun:
		return err
	case errors.As(err, &p):
	case !maybeApplied(err):
		return err
	default:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reachTimeout)
		defer cancel()
		_, lookErr := r.GetToken(ctx, id)
		var none *api.Problem
		switch {
		case errors.As(lookErr, &none) && none.Status == http.StatusNotFound:
			return err
		case lookErr == nil:
			err = fmt.Errorf("%w; token %s was created, but cluster-info may not be signed with it yet: check with 'kubejoin token get %s -o wide'", err, id, id)
		default:
			err = fmt.Errorf("%w; token %s may have been created: check with 'kubejoin token get %s'", err, id, id)
		}
	}
	if _, printErr := fmt.Fprintln(cmd.OutOrStdout(), asked.Token.Reveal()); printErr != nil {
		return errors.Join(err, printErr)
	}
	return err
}

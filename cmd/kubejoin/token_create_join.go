package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

// checkJoinFormat refuses an invalid --format or --certificate-key, and combinations that do not work.
func (o *tokenCreateOptions) checkJoinFormat(m *mistakes) {
	var err error
	if o.certificateKey != "" {
		o.key, err = joinformat.ParseCertificateKey(o.certificateKey)
	}
	m.when(err != nil, "--certificate-key: want 64 hexadecimal digits, not %d characters", len(o.certificateKey))
	if !o.printJoinCommand {
		m.excludes(o.given, "needs --print-join-command", "format", "certificate-key", "control-plane", "with-rejoin")
	}
	m.when(!slices.Contains(joinformat.Formats(), o.joinFormat), "--format: %q given, want one of %s", o.joinFormat, strings.Join(joinformat.Formats(), ", "))
	if o.withRejoin != "" {
		m.in("--with-rejoin", joinformat.CheckRejoinURL(o.withRejoin))
		m.when(o.joinFormat != api.FormatScript, "--with-rejoin: needs --format %s, which installs what a rejoin needs", api.FormatScript)
	}
	if f, err := joinformat.FindFormat(o.joinFormat); err == nil && o.printJoinCommand && o.spec.NodeReadyAfter != "" {
		m.in("--node-ready-after", f.CheckTaint())
		m.when(!o.key.IsZero(), "--certificate-key: excludes --node-ready-after, which is for workers")
	}
	kubeconfig := o.joinFormat == api.FormatKubeconfig
	m.when(kubeconfig && !o.key.IsZero(), "--certificate-key: a kubeconfig cannot contain it; give it to kubeadm join --certificate-key together with the kubeconfig")
	m.when(o.given("pki-dir") && !o.controlPlane, "--pki-dir: needs --control-plane")
	if o.controlPlane {
		m.excludes(o.given, "excludes --control-plane, which uploads the certificates under a new key", "certificate-key", "offline", "dry-run", "wait")
		m.when(kubeconfig, "--format: a kubeconfig cannot contain the certificate key of --control-plane")
	}
}

// createControlPlane prints a join command for a control plane.
func (o *tokenCreateOptions) createControlPlane(ctx context.Context, cmd *cobra.Command, r *remote, spec api.TokenSpec) error {
	if r.cluster == nil && o.given("pki-dir") {
		return usagef("--pki-dir: only for a cluster; a kubejoin server has its own")
	}
	if !o.given("ttl") {
		spec.TTL = "" // the default for control planes
	}
	j, err := r.JoinControlPlane(ctx, spec)
	if err != nil {
		return err
	}
	warn(cmd, append(j.Warnings, ofLoopback(j.Endpoint)...)...)
	j.RejoinURL, j.Warnings = o.withRejoin, nil
	join, err := j.Write(o.joinFormat)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(join)
	return o.unwritten(err, j.Token.ID())
}

// unwritten adds to the error of a write to standard output that a token was created, and what to do.
func (o *tokenCreateOptions) unwritten(err error, id string) error {
	switch {
	case err == nil || o.dryRun:
		return err
	case o.chosen:
		return fmt.Errorf("token %s was created, but cannot be printed: %w; repeat the command to print it", id, err)
	}
	return o.notPrinted(fmt.Errorf("token %s was created, but cannot be printed: %w", id, err), id)
}

// notPrinted adds the command that removes the token to an error. kubejoin does not print this token, because a script
// would take text on standard output for a join command.
func (o *tokenCreateOptions) notPrinted(err error, id string) error {
	if o.chosen || o.dryRun { // chosen: the caller has the token, and machines may use it. dryRun: the token does not exist.
		return err
	}
	return fmt.Errorf("%w; nothing was printed, so remove the token with: kubejoin token delete %s", err, id)
}

// printJoin prints the join command of a new token in the requested format.
func (o *tokenCreateOptions) printJoin(ctx context.Context, cmd *cobra.Command, r *remote, made api.Token) error {
	if command, err := clusterinfo.ParseJoinCommand(made.JoinCommand.Reveal()); err == nil {
		warn(cmd, ofLoopback(command.Endpoint)...)
	}
	var kubeconfig []byte
	var err error
	if o.joinFormat != api.FormatText {
		kubeconfig, err = r.clusterInfo(ctx)
	}
	var join []byte
	if err == nil {
		join, err = o.join(made, kubeconfig)
	}
	if err != nil {
		return o.notPrinted(fmt.Errorf("token %s was created, but cannot be printed as --format=%s: %w", made.ID, o.joinFormat, err), made.ID)
	}
	_, err = cmd.OutOrStdout().Write(join)
	return o.unwritten(err, made.ID)
}

// ofLoopback returns a warning if the endpoint of a join command is a loopback address, where each machine connects to itself.
func ofLoopback(endpoint string) []string {
	if !clusterinfo.IsLoopback(endpoint) {
		return nil
	}
	return []string{"no other machine can join with this command: " + endpoint + " is a loopback address; to change it, see kubejoin explain --code loopback-address"}
}

// join returns the join command of a token in the requested format. The client renders it, so that the server never
// sees the certificate key of the control plane. All formats except text need the kubeconfig in cluster-info.
func (o *tokenCreateOptions) join(made api.Token, kubeconfig []byte) ([]byte, error) {
	if o.joinFormat == api.FormatText {
		line := made.JoinCommand.Reveal()
		if !o.key.IsZero() {
			line += " --control-plane --certificate-key " + o.key.Reveal()
		}
		return []byte(line + "\n"), nil
	}
	command, err := clusterinfo.ParseJoinCommand(made.JoinCommand.Reveal())
	if err != nil {
		return nil, err
	}
	apiServer, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return joinformat.Join{
		Endpoint: command.Endpoint, Token: command.Token, Server: apiServer, CAs: cas, CertificateKey: o.key, JoiningTaint: made.NodeReadyAfter != "", RejoinURL: o.withRejoin, Expires: made.Expires,
	}.Write(o.joinFormat)
}

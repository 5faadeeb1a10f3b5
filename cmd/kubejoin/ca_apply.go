package main

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeletDir is the folder of the kubelet.
const kubeletDir = "/var/lib/kubelet"

// defaultRotationQPS is the default of --ca-rotation-qps, here and in 'kubejoin serve'.
const defaultRotationQPS = 20

func checkRotationQPS(qps float64) error {
	if qps > 0 && qps <= 1e6 { // not NaN
		return nil
	}
	return fmt.Errorf("%g given, want more than 0, and at most 1000000 per second", qps)
}

func caApplyCommand() *cobra.Command {
	var o caApplyOptions
	cmd := &cobra.Command{
		Use:   "apply [DIR]",
		Short: "Change the files of this host for the stage of a CA rotation",
		Long: `Bring this host to the stage of a CA rotation: what it trusts, what its certificates are
from, and the key that signs. Run the command as root on each control plane and worker,
once after each step, and after an abort as well. DIR is ` + kubeadmDir + ` by
default. The command reads the stage from the cluster, with admin.conf on a control plane
and with kubelet.conf on a worker.

  stage     what changes on a control plane            on a worker
  trust     ca.crt, CA data in kubeconfigs             ca.crt, kubelet.conf
  switch    the same, ca.key, certificates             the same, kubelet's certificates
  finish    ca.crt, CA data in kubeconfigs             ca.crt, kubelet.conf
  ended     the backup is removed                      the same

It writes each file atomically, with its owner and mode. The originals are in
DIR/` + pki.Backups + ` until the rotation ends, and an abort brings back their bytes. Run the
command again after a crash, or at any time: it completes what is missing. It refuses if
somebody else changed one of the files meanwhile, and names it.

Certificates are signed on this host with the key of the new CA. From stage switch on, a
control plane needs the key that 'kubejoin ca prepare' showed: --certificate-key-file. The
host keeps the new key from then on, so later runs do not need the flag.

A host believes a new CA that the old CA certified. Otherwise, compare its pin with the one
that 'kubejoin ca prepare' showed, and give it: --ca-pin.

Static pods that do not reload a file restart, on one control plane after the other, and then
the kubelet: its pods go on. The command waits until everything is healthy. In stage switch
it also requests new certificates for the kubelet, with the kubelet's own credential. Copies
of admin.conf in other folders do not change: copy it again after each step.

--dry-run prints a diff and changes nothing. Certificates are lines of text in it, and keys
are left out. It needs no key.

The command looks at every file below DIR, every file that a static pod mounts or that the
flags of a control plane name, and at each --also PATH. It names those that have the old CA
or a certificate from it and that it does not change.

A static pod of others, such as a virtual IP, may read one of the files only when it starts.
The command reports it; --restart NAME lets the command end it, too.

The exit code is 0 if the host is in the stage of the rotation, or if no CA is rotated. It is 3
if the command did its part and something does not fit the stage, and 1 if it failed. In
both cases it says what to do.`,
		Example: `  # what would change
  kubejoin ca apply --dry-run

  # a worker, or a control plane before 'kubejoin ca switch'
  kubejoin ca apply

  # a control plane after 'kubejoin ca switch'
  kubejoin ca apply --certificate-key-file rotation.key`,
		Args:    dirArgs,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, newCAApplier(&o, dirOf(args)).apply)
		},
	}
	o.register(cmd)
	return cmd
}

type caApplyOptions struct {
	output
	given                         func(flag string) bool
	ca                            string
	certificateKeyFile, caKeyFile string
	pins, also, restart           []string
	dryRun, watch                 bool
	qps                           float64
	wait                          time.Duration
	kubeconfig, kubeletDir        string
}

func (o *caApplyOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	o.given = f.Changed
	caVar(cmd, &o.ca, "", "CA: %s (default: each one that is rotated)")
	f.StringVar(&o.certificateKeyFile, "certificate-key-file", "", "file with the key that 'kubejoin ca prepare' showed; - is standard input")
	f.StringVar(&o.caKeyFile, "ca-key-file", "", "private key of the CA that signs in this stage, in PEM, if neither host nor cluster has it")
	listVar(f, &o.pins, "ca-pin", nil, "pin of a new CA to trust, as sha256:HEX (repeatable)")
	listVar(f, &o.also, "also", nil, "another file or folder of this host to look at (repeatable)")
	listVar(f, &o.restart, "restart", nil, "name of a static pod that is not of kubeadm, to restart if it reads a changed file only at its start (repeatable)")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would change as a diff, and change nothing")
	f.BoolVar(&o.watch, "watch", false, "run until stopped, and follow each stage; workers take turns")
	f.Float64Var(&o.qps, "ca-rotation-qps", defaultRotationQPS, "with --watch: how many kubelets per second may renew, all workers together")
	durationVar(f, &o.wait, "wait", 5*time.Minute, "how long each restart may take")
	heading(f, "Rotation flags")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig to read the stage with (default: DIR/admin.conf if it exists, else DIR/kubelet.conf)")
	f.StringVar(&o.kubeletDir, "kubelet-dir", kubeletDir, "folder of the kubelet")
	heading(f, "Host flags")
	o.registerFormats(cmd, "text", "json", "yaml")
}

func (o *caApplyOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.when(o.certificateKeyFile != "" && o.caKeyFile != "", "--ca-key-file: excludes --certificate-key-file, and both are given")
	m.when(o.watch && (o.dryRun || o.certificateKeyFile == "-" || o.given("output")), "--watch: excludes --dry-run, --output and a key from standard input")
	m.in("--ca-rotation-qps", checkRotationQPS(o.qps))
	m.when(o.wait <= 0, "--wait: %s given, want more than 0", o.wait)
	m.pins("--ca-pin", o.pins)
	return m.err()
}

// A caApplier applies the rotations of one host, once or again and again.
type caApplier struct {
	*caApplyOptions
	dir       string
	published map[rotation.CA]report    // the last report of each CA
	reloads   bool                      // the kubelet reads a changed client CA file again
	starts    map[rotation.CA]time.Time // the start times that were logged
	requests  map[string]request        // requests of certificates for the kubelet, by stage
}

// A report is the text that the command stored in the Node, and the time when it did.
type report struct {
	text string
	at   time.Time
}

// A request is when certificates were requested last, and how long --watch waits with the next request.
type request struct {
	at   time.Time
	wait time.Duration
}

// watchInterval is about the time between two reads of the stages with --watch. maxRequestInterval is the longest time
// between two requests for certificates, while kubejoin does not sign with the right CA. After reportInterval, the command
// stores a report again, because the Node may have been created again.
const watchInterval, maxRequestInterval, reportInterval = time.Minute, 30 * time.Minute, 10 * time.Minute

func newCAApplier(o *caApplyOptions, dir string) *caApplier {
	return &caApplier{caApplyOptions: o, dir: dir, published: map[rotation.CA]report{}, starts: map[rotation.CA]time.Time{}, requests: map[string]request{}}
}

// exitUnfit is the exit code if something of this host does not fit its stage.
const exitUnfit exitCode = 3

// An unfitError lists the things on this host that do not fit its stage, although nothing failed.
type unfitError []string

func (e unfitError) Error() string { return strings.Join(e, "\n") }

// run does the work once, or with --watch again and again until the command is stopped. With --watch, it does not repeat an
// error in succession.
func (o *caApplyOptions) run(cmd *cobra.Command, work func(*cobra.Command) error) error {
	for last := ""; o.watch; {
		text := ""
		if err := work(cmd); err != nil && cmd.Context().Err() == nil {
			text = err.Error()
		}
		if text != last && text != "" {
			cmd.PrintErrln("kubejoin:", sanitize(text))
		}
		last = text
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(watchInterval/2 + rand.N(watchInterval)): // random, so that hosts do not send requests at the same time
		}
	}
	err := work(cmd)
	if unfit := (unfitError{}); errors.As(err, &unfit) {
		for _, line := range unfit {
			warn(cmd, line)
		}
		return exitUnfit
	}
	return err
}

// stageKubeconfig returns the kubeconfig to read the stages with.
func (a *caApplier) stageKubeconfig() string {
	admin := filepath.Join(a.dir, "admin.conf")
	if a.kubeconfig == "" && !exists(admin) {
		return filepath.Join(a.dir, "kubelet.conf")
	}
	return cmp.Or(a.kubeconfig, admin)
}

func (a *caApplier) client() (kubernetes.Interface, error) {
	return clusterClient(&clientcmd.ClientConfigLoadingRules{ExplicitPath: a.stageKubeconfig()}, "")
}

// host returns the pki.Host that the flags describe. The caller adds what it reads from the cluster.
func (a *caApplier) host(cmd *cobra.Command) pki.Host {
	log := func(line string) { cmd.PrintErrln("kubejoin:", sanitize(line)) }
	return pki.Host{Dir: a.dir, KubeletDir: a.kubeletDir, Pins: a.pins, Also: a.also, Restart: a.restart, Wait: a.wait, DryRun: a.dryRun, Log: log}
}

// apply applies the rotation of each CA, and prints the results.
func (a *caApplier) apply(cmd *cobra.Command) error {
	results, unfit, err := a.rotate(cmd)
	if err = errors.Join(a.print(cmd, results, err), err); err != nil || len(unfit) == 0 {
		return err
	}
	return unfit
}

// rotate applies the rotation of each CA.
func (a *caApplier) rotate(cmd *cobra.Command) (results []pki.Result, unfit unfitError, err error) {
	host := a.host(cmd)
	kubeletConf := filepath.Join(a.dir, "kubelet.conf")
	client, err := a.client()
	if err != nil {
		return nil, nil, err
	}
	ctx := cmd.Context()
	done := func() {}
	if !a.watch {
		done = waiting{what: "for the API server of " + a.stageKubeconfig()}.begin(cmd)
	}
	state, err := pki.State(ctx, client)
	done()
	if err != nil {
		return nil, nil, fmt.Errorf("with %s: %w", a.stageKubeconfig(), err)
	}
	cas := rotation.CAs
	if a.ca != "" {
		cas = []rotation.CA{rotation.CA(a.ca)}
	}
	var node string
	var kubelet kubernetes.Interface
	if slices.ContainsFunc(cas, func(ca rotation.CA) bool { return state[ca].ID != "" }) {
		if node, err = host.NodeName(); err != nil {
			return nil, nil, fmt.Errorf("name of this node: %w", err)
		}
		if kubelet, err = clusterClient(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeletConf}, ""); err != nil {
			return nil, nil, err
		}
		host.KubeletReloads = func(ctx context.Context) bool {
			if !a.reloads { // otherwise the kubelet restarts, and then reads all files
				a.reloads, _ = pki.KubeletReloads(ctx, client, node)
			}
			return a.reloads
		}
		host.Lock = pki.Lock(client, node, 2*a.wait, host.Log)
	}
	for _, ca := range cas {
		r := state[ca]
		r.CA = ca // set even without a rotation, because a backup of an unknown rotation is an error
		if a.waits(host, node, r) {
			continue
		}
		if r.ID != "" {
			host.Sign, host.Key = a.sign(kubelet, r, host.ControlPlane()), a.key(cmd, client, r)
		}
		done, err := host.Apply(ctx, r)
		if err = errors.Join(err, a.publish(ctx, kubeletConf, node, done.Report)); err != nil {
			return results, unfit, fmt.Errorf("CA %s: %w", ca, err)
		}
		if r.ID != "" {
			results, unfit = append(results, done), append(unfit, done.Unfit...)
		}
	}
	if a.dryRun {
		unfit = nil
	}
	return results, unfit, nil
}

// waits reports whether this host must wait for its turn. Control planes do not wait for turns: they sign for the other
// hosts, and a Lease already lets only one of them restart at a time.
func (a *caApplier) waits(host pki.Host, node string, r rotation.Rotation) bool {
	start := r.Start(node, a.qps)
	if !a.watch || !time.Now().Before(start) || host.ControlPlane() {
		return false
	}
	if !a.starts[r.CA].Equal(start) {
		a.starts[r.CA] = start
		host.Log(fmt.Sprintf("CA %s: the turn of this host in stage %s is at %s, because %d nodes take turns", r.CA, r.Stage, start.Format(time.RFC3339), r.Nodes))
	}
	return true
}

// sign returns the function that requests the kubelet's certificates. It returns nil if the last request in this stage was
// too recent. A worker waits at least one wave between requests, because all workers may have to request again.
func (a *caApplier) sign(kubelet kubernetes.Interface, r rotation.Rotation, controlPlane bool) credentials.SignFunc {
	stage := r.ID + r.Since.String()
	last := a.requests[stage]
	if time.Since(last.at) < last.wait {
		return nil
	}
	sign := credentials.SignByCSRObject(kubelet, func(string) {}) // kubejoin approves this CSR like a CSR of the kubelet
	wave := r.Wave(a.qps)
	if controlPlane {
		wave = 0
	}
	return func(ctx context.Context, one credentials.SigningRequest) ([]byte, error) {
		a.requests[stage] = request{time.Now(), max(watchInterval, wave, min(2*last.wait, maxRequestInterval))}
		return sign(ctx, one)
	}
}

// publish stores a report in the Node, unless it has stored the same report recently. It reads the kubeconfig again,
// because the file may have changed.
func (a *caApplier) publish(ctx context.Context, kubeletConf, node string, of *rotation.Report) error {
	if of == nil || a.dryRun {
		return nil
	}
	text, err := of.Encode()
	if last := a.published[of.CA]; err != nil || last.text == text && time.Since(last.at) < reportInterval {
		return err
	}
	client, err := clusterClient(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeletConf}, "")
	if err != nil {
		return err
	}
	if err := pki.Publish(ctx, client, node, of); err != nil {
		return err
	}
	a.published[of.CA] = report{text, time.Now()}
	return nil
}

// key returns a function that reads the key of the new CA; nil if no flag gives it.
func (o *caApplyOptions) key(cmd *cobra.Command, client kubernetes.Interface, r rotation.Rotation) func(context.Context) (crypto.Signer, error) {
	switch {
	case o.caKeyFile != "":
		return func(context.Context) (crypto.Signer, error) {
			content, err := pemfile.ReadPrivate(o.caKeyFile, pemfile.Secret)
			if err != nil {
				return nil, fmt.Errorf("--ca-key-file: %w", err)
			}
			key, err := pemfile.Key(content)
			if err != nil {
				return nil, fmt.Errorf("--ca-key-file: %s: %w", o.caKeyFile, err)
			}
			return key, nil
		}
	case o.certificateKeyFile != "":
		return func(ctx context.Context) (crypto.Signer, error) {
			with, err := o.certificateKey(cmd.InOrStdin())
			if err != nil {
				return nil, fmt.Errorf("--certificate-key-file: %w", err)
			}
			key, err := clusterstore.New(client).Key(ctx, r, with)
			if err != nil {
				return nil, fmt.Errorf("key of the new CA: %w", err)
			}
			return key, nil
		}
	}
	return nil
}

func (o *caApplyOptions) certificateKey(in io.Reader) (joinformat.CertificateKey, error) {
	var content []byte
	var err error
	if o.certificateKeyFile == "-" {
		const enough = 1 << 10
		content, err = io.ReadAll(io.LimitReader(in, enough))
	} else {
		content, err = pemfile.ReadPrivate(o.certificateKeyFile, pemfile.Secret)
	}
	if err != nil {
		return joinformat.CertificateKey{}, err
	}
	return joinformat.ParseCertificateKey(strings.TrimSpace(string(content)))
}

// print prints the results. Without results, it prints that no CA is rotated only if failed is nil.
func (o *caApplyOptions) print(cmd *cobra.Command, results []pki.Result, failed error) error {
	w := cmd.OutOrStdout()
	var list struct {
		Items []pki.Result `json:"items"`
	}
	list.Items = append([]pki.Result{}, results...)
	if done, err := o.object(w, list); done || err != nil {
		return err
	}
	if len(results) == 0 && !o.watch && failed == nil {
		_, err := fmt.Fprintln(w, "no CA is rotated")
		return err
	}
	for _, r := range results {
		var err error
		switch {
		case o.watch && len(r.Changed)+len(r.Restarted) == 0:
			continue
		case o.dryRun:
			_, err = fmt.Fprintf(w, "%srestarts: %s\n", r.Diff, orNone(r.Restarted...))
		case r.Report == nil:
			_, err = fmt.Fprintf(w, "CA %s: this host has no file of it\n", r.CA)
		default:
			is := "is in"
			if len(r.Unfit) > 0 {
				is = "did its part of"
			}
			_, err = fmt.Fprintf(w, "CA %s: this host %s stage %s, files changed: %s; restarted: %s\n", r.CA, is, r.Stage, orNone(r.Changed...), orNone(r.Restarted...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

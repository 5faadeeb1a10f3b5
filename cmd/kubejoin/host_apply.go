package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/spf13/cobra"
)

func hostCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "host",
		Short: "Keep the files of this host as they should be",
	}, hostApplyCommand())
}

// hostOptions are the flags of host apply.
type hostOptions struct {
	caApplyOptions
	remote        remoteOptions
	passphrase    string
	before, retry time.Duration
	metricsFile   string
}

func hostApplyCommand() *cobra.Command {
	o := hostOptions{remote: remoteOptions{serverOnly: true}}
	cmd := &cobra.Command{
		Use:   "apply [DIR]",
		Short: "Renew certificates near their end, and follow CA rotations",
		Long: `Bring this host to what it should be: renew the certificates of kubeadm when a third of
their life is left, and do what 'kubejoin ca apply' does for each CA that is rotated. DIR is
` + kubeadmDir + ` by default. Run the command as root on each control plane; workers, whose
kubelets renew by themselves, only follow rotations.

A certificate is renewed for the same key, user and names, and gets new names that
kubeadm-config has. The CA keys in DIR/pki sign. Without them, a kubejoin server signs: give
--url and a credential that may sign for ` + credentials.KubeadmSigners + `*. That of admin.conf is
worth cluster-admin, so see what such a credential may do:
` + docsURL + `credentials.md

Each file is written atomically, with its owner and mode. DIR/` + pki.Backups + `/renewal has the
files from before the last renewal. A static pod that reads a file only when it starts is
restarted, on one control plane after the other, and --restart permits that for those of
others. A CA in whose rotation the host takes part is left to the rotation.

--watch runs until it is stopped, for example as a DaemonSet or with systemd:
` + deployURL + `host
Each change is one line on standard error and one Event of the Node.

The exit code is 0 if the host is as it should be. It is 3 if the command did its part and
something is left to do, or if the server refuses a certificate, and 1 for other errors. In
each case it says what to do.`,
		Example: `  # what would change
  kubejoin host apply --dry-run

  # from now on, by itself
  kubejoin host apply --watch --metrics-file /var/lib/prometheus/node-exporter/kubejoin.prom

  # the CA key is elsewhere
  kubejoin host apply --url https://ca.example.com:9443 --ca-file kubejoin-ca.crt \
    --bearer-file host.token`,
		Args:    dirArgs,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			h := &hostApplier{flags: &o, caApplier: newCAApplier(&o.caApplyOptions, dirOf(args))}
			return o.run(cmd, h.apply)
		},
	}
	o.register(cmd)
	f := cmd.Flags()
	durationVar(f, &o.before, "renew-before", 0, "renew certificates this long before their end, at most half of their life (0: a third of it)")
	durationVar(f, &o.retry, "sign-wait", time.Minute, "how long to retry while the server cannot issue a certificate yet")
	f.StringVar(&o.passphrase, "pki-passphrase-file", "", "file with the passphrase of all CA keys in DIR/pki, in one line (default: they are not encrypted)")
	f.StringVar(&o.metricsFile, "metrics-file", "", "file ending in .prom to write metrics to, for node-exporter")
	heading(f, "Renewal flags", "renew-before", "sign-wait", "pki-passphrase-file", "metrics-file")
	o.remote.register(cmd)
	return cmd
}

func (o *hostOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.when(o.before < 0, "--renew-before: %s given, want more than 0, or 0 for a third of the life", o.before)
	m.when(o.passphrase != "" && o.signsElsewhere(), "--pki-passphrase-file: excludes --url and --curlrc: the CA keys of this host do not sign then")
	m.when(o.metricsFile != "" && !strings.HasSuffix(o.metricsFile, ".prom"), "--metrics-file: %q given, want a name that ends in .prom: node-exporter reads no other file", o.metricsFile)
	return cmp.Or(o.caApplyOptions.check(nil, nil), m.first())
}

// signsElsewhere reports whether a server signs.
func (o *hostOptions) signsElsewhere() bool { return o.remote.given("url") || o.remote.given("curlrc") }

// A hostApplier renews the certificates of one host and applies the CA rotations.
type hostApplier struct {
	*caApplier
	flags     *hostOptions
	succeeded time.Time // the last run that did not fail
}

// apply renews certificates that expire soon, and applies the rotations. It applies the rotations even if a renewal fails.
func (h *hostApplier) apply(cmd *cobra.Command) error {
	renewed, notRenewed := h.renew(cmd)
	results, unfit, notRotated := h.rotate(cmd)
	failed := errors.Join(notRenewed, notRotated)
	left := append(unfitError(renewed.Unfit), unfit...)
	if h.flags.metricsFile != "" && !h.dryRun {
		failed = errors.Join(failed, h.writeMetrics(len(left), failed == nil))
	}
	failed = errors.Join(failed, h.show(cmd, renewed, notRenewed, results, notRotated))
	switch {
	case failed != nil && len(left) > 0:
		return fmt.Errorf("%w\n%s", failed, strings.Join(left, "\n"))
	case failed != nil || len(left) == 0:
		return failed
	}
	return left
}

// show prints the renewals and the results of the rotations.
func (h *hostApplier) show(cmd *cobra.Command, renewed pki.Renewed, notRenewed error, results []pki.Result, notRotated error) error {
	w := cmd.OutOrStdout()
	done, err := h.object(w, struct {
		Renewed pki.Renewed  `json:"renewed"`
		Items   []pki.Result `json:"items"`
	}{renewed, append([]pki.Result{}, results...)})
	if done || err != nil {
		return err
	}
	if h.dryRun && notRenewed == nil {
		_, err = fmt.Fprintf(w, "certificates that are due: %s\n", orNone(renewed.Due...))
	} else if !h.dryRun && !h.watch && notRenewed == nil || len(renewed.Changed)+len(renewed.Restarted) > 0 {
		_, err = fmt.Fprintf(w, "certificates renewed: %s; restarted: %s\n", orNone(renewed.Changed...), orNone(renewed.Restarted...))
	}
	return errors.Join(err, h.print(cmd, results, notRotated))
}

// renew renews certificates that expire soon, and returns which it renewed.
func (h *hostApplier) renew(cmd *cobra.Command) (pki.Renewed, error) {
	host := h.host(cmd)
	host.Lock = func(ctx context.Context) (func(), error) { // a renewed admin.conf is read here
		client, err := h.client()
		if err != nil {
			return nil, err
		}
		node, err := host.NodeName()
		if err != nil {
			return nil, err
		}
		return pki.Lock(client, node, 2*h.wait, host.Log)(ctx)
	}
	done, err := host.Renew(cmd.Context(), pki.Renewal{Before: h.flags.before, Signer: func(context.Context) (pki.Signing, error) {
		return h.signing(cmd)
	}})
	if err != nil {
		return done, fmt.Errorf("renew certificates: %w", err)
	}
	for _, n := range done.Renewed.Changes {
		host.Log(n.Name + ": " + n.Text)
	}
	for _, name := range done.Changed {
		h.event(cmd, host, codes.CertificateRenewed, "kubejoin renewed the certificate in "+filepath.Join(h.dir, name))
	}
	return done, nil
}

// signing returns how certificates are signed: with the CA keys of this host, or by a server.
func (h *hostApplier) signing(cmd *cobra.Command) (pki.Signing, error) {
	keys := caKeys{dir: filepath.Join(h.dir, "pki"), passphraseFile: h.flags.passphrase}
	if h.flags.signsElsewhere() {
		keys = caKeys{}
	}
	s, err := h.flags.remote.signing(cmd, h.dir, keys, h.flags.retry, nil)
	if err != nil {
		err = h.flags.remote.hint(fmt.Errorf("%w; without CA keys in %s, give a server that signs: --url", explain(err), filepath.Join(h.dir, "pki")))
	}
	return s, err
}

// event creates an Event on the Node of this host. If it cannot, it logs why, and only the log reports the change.
func (h *hostApplier) event(cmd *cobra.Command, host pki.Host, e codes.Event, message string) {
	client, err := h.client()
	node, failed := host.NodeName()
	if err = errors.Join(err, failed); err == nil {
		const timeout = 10 * time.Second
		ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
		defer cancel()
		err = pki.Event(ctx, client, node, e, message)
	}
	if err != nil {
		host.Log("no Event of this: " + err.Error())
	}
}

// writeMetrics writes the metrics of --metrics-file, for the textfile collector of Prometheus' node exporter.
func (h *hostApplier) writeMetrics(left int, succeeded bool) error {
	registry := prometheus.NewRegistry()
	gauges := promauto.With(registry)
	gauge := func(name, help string, value float64) {
		gauges.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}).Set(value)
	}
	if succeeded {
		h.succeeded = time.Now()
	}
	gauge("kubejoin_host_left", "Files and processes on this host that 'kubejoin host apply' could not handle and that need an operator.", float64(left))
	gauge("kubejoin_host_last_success_timestamp_seconds", "Time of the last run that did not fail; 0 if there was none.", float64(max(0, h.succeeded.Unix())))
	ends := gauges.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubejoin_host_certificate_expiration_timestamp_seconds", Help: "End of a certificate or CA of kubeadm on this host.",
	}, []string{"certificate"})
	list, err := credentials.KubeadmFiles{Dir: h.dir}.List()
	for _, c := range list {
		if c.NotAfter != nil {
			ends.WithLabelValues(c.Name).Set(float64(c.NotAfter.Unix()))
		}
	}
	if err != nil && exists(filepath.Join(h.dir, "manifests", "kube-apiserver.yaml")) {
		return fmt.Errorf("--metrics-file: %w", err)
	}
	if err := prometheus.WriteToTextfile(h.flags.metricsFile, registry); err != nil {
		return fmt.Errorf("--metrics-file: %w", err)
	}
	return nil
}

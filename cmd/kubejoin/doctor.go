package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/spf13/cobra"
)

// Exit codes of doctor.
const (
	exitFindings  exitCode = 1
	exitUnchecked exitCode = 2
)

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	output
	cluster             remoteOptions
	url, curlrc, caFile string
	advertise           string
	pins                []string
	skip                []string
	fix                 bool
}

func doctorCommand() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what keeps nodes from joining, or undoes the promises of kubejoin",
		Long: `Find what undoes the promises of kubejoin on a cluster, or keeps nodes from joining:
in kube-controller-manager and kube-apiserver, RBAC, webhooks, tokens, cluster-info, the CA,
clocks, versions, Nodes and certificate requests. Each finding has a severity, one sentence,
and the command that mends it. All findings:
` + docsURL + `codes.md

The command reads the cluster with your kubeconfig and changes nothing: the writes that it
sends are dry runs, which find webhooks that are down. It needs no running kubejoin. With
--url, it also checks the kubejoin there: readiness, version, clock and CA pins. It lists as
"could not check" what you may not read.

Give --advertise if 'kubejoin serve' has this flag and runs outside of pods. Machines then read
cluster-info from kubejoin, so the API server needs no anonymous access.

The exit code is 0 if there is no finding. It is 1 if there are findings. It is 2 if no
finding was made but a check could not run, or if the command cannot reach the cluster.` + clusterHelp,
		Example: `  kubejoin doctor

  # check a running kubejoin, too
  kubejoin doctor --url https://join.example.com:9443 --ca-file /etc/kubernetes/pki/ca.crt

  # only the commands that mend the findings; read them before you run them
  kubejoin doctor --fix

  # the IDs of all findings
  kubejoin doctor -o jsonpath='{.findings[*].id}'

  # accept a finding, for example in a nightly check
  kubejoin doctor --skip apiserver-trusts-any-kubelet`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.check()
			if err == nil {
				err = o.run(cmd)
			}
			var code exitCode
			if usage := (*usageError)(nil); err == nil || errors.As(err, &usage) || errors.As(err, &code) {
				return err
			}
			cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
			return exitUnchecked
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	listVar(f, &o.skip, "skip", nil, "IDs of findings, or names of checks, to leave out")
	f.StringVar(&o.advertise, "advertise", "", "HOST:PORT of kubejoin in join commands (default: that of the pods in kubejoin-system)")
	listVar(f, &o.pins, "discovery-token-ca-cert-hash", nil, "CA pins of an existing join command to compare with cluster-info")
	o.registerFormats(cmd, "text", "json", "yaml")
	f.BoolVar(&o.fix, "fix", false, "print only the commands that mend the findings; the command runs none of them")
	heading(f, "Output flags", "fix")
	o.cluster.registerCluster(f)
	f.StringVar(&o.url, "url", "", "https://HOST:PORT of a running kubejoin to check, too")
	f.StringVar(&o.curlrc, "curlrc", "", "file of 'kubejoin serve' with the URL and CA of a running kubejoin, instead of --url")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates of --url (default: those of the kubeconfig)")
	heading(f, "Connection flags", "kubeconfig", "context", "url", "curlrc", "ca-file")
	complete(cmd, "skip", doctor.Names()...)
	return cmd
}

func (o *doctorOptions) check() error {
	var m mistakes
	m.when(o.fix && o.format != "text", "--fix: prints commands only, and excludes --output")
	m.when(o.curlrc != "" && o.url != "", "--curlrc: excludes --url, and both are given")
	if o.curlrc != "" {
		file, err := datadir.ReadCurlrc(o.curlrc)
		m.in("--curlrc", err)
		m.when(err == nil && file.Server == "", "--curlrc: %s names no server; want --url https://HOST:PORT", o.curlrc)
		o.url, o.caFile = file.Server, cmp.Or(o.caFile, file.CAFile)
	}
	m.url("--url", o.url)
	m.when(o.caFile != "" && o.url == "", "--ca-file: is for --url, which is missing")
	if o.advertise != "" {
		m.in("--advertise", clusterinfo.CheckEndpoint(o.advertise))
	}
	m.pins("--discovery-token-ca-cert-hash", o.pins)
	m.in("--skip", doctor.CheckNames(o.skip))
	return m.first()
}

func (o *doctorOptions) run(cmd *cobra.Command) error {
	defer waiting{what: "for the checks"}.begin(cmd)()
	report, err := o.diagnose(cmd.Context())
	if err != nil {
		return err
	}
	report = report.Without(o.skip)
	text := report.Text()
	if o.fix {
		text = report.Commands()
	}
	return cmp.Or(o.text(cmd.OutOrStdout(), report, text), exitOf(len(report.Findings), len(report.Unchecked)))
}

// exitOf returns the exit code of a command that checks something.
func exitOf(findings, unchecked int) error {
	switch {
	case findings > 0:
		return exitFindings
	case unchecked > 0:
		return exitUnchecked
	}
	return nil
}

// diagnose checks the cluster of the kubeconfig, and the kubejoin server of --url.
func (o *doctorOptions) diagnose(ctx context.Context) (doctor.Diagnosis, error) {
	rules, found := o.cluster.findKubeconfig()
	if !found {
		return doctor.Diagnosis{}, errNoKubeconfig
	}
	config, err := clusterConfig(rules, o.cluster.context)
	if err != nil {
		return doctor.Diagnosis{}, err
	}
	config.QPS = -1 // unlimited: doctor sends only about thirty requests
	options := doctor.Options{Cluster: config, Version: buildVersion().Version, Advertise: o.advertise, Pins: o.pins, URL: o.url}
	if o.caFile != "" {
		if options.CAs, err = readCAs(o.caFile); err != nil {
			return doctor.Diagnosis{}, err
		}
	}
	facts, err := doctor.Read(ctx, options)
	if err != nil {
		o.cluster.cluster, o.cluster.kubeconfigFile = true, kubeconfigFiles(rules)
		return doctor.Diagnosis{}, o.cluster.hint(err)
	}
	return doctor.Diagnose(facts), nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/spf13/cobra"
)

func signerConfigCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "signer-config",
		Short: "Check a file for 'kubejoin serve --signer-config', or print the default",
		Long: `Check a file for 'kubejoin serve --signer-config', or print the default. For each signer
name (spec.signerName of a CSR), the file sets the CA, the lifetime of certificates, the
allowed contents and the approval rules. kubejoin ignores CSRs for other signer names.

For the signers of Kubernetes, kubejoin's built-in rules also apply, and the file can
only restrict them. A signer with your own name allows only what the file lists:

  apiVersion: kubejoin.io/v1alpha1
  kind: SignerConfiguration
  signers:
  - name: example.com/etcd-peer
    ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}   # default: the cluster CA
    duration: {min: 10m, default: 24h, max: 720h}
    usages: [digital signature, key encipherment, server auth, client auth]
    subject: {commonNames: ["etcd-*"]}
    names: {dns: ["*.etcd.example.com"], ips: [10.0.0.0/8]}
    keys: {ecdsa: [P-256, P-384]}
    approval: [may-sign]     # default: only by hand, with kubectl certificate approve

kubejoin serve re-reads the file and its CA files when they change. If a new version is
invalid, it keeps the last valid one and reports the error in the log, in an Event, in
/readyz and in the metric kubejoin_files_in_use.`,
	}, signerConfigCheckCommand(), signerConfigDefaultCommand())
}

func signerConfigDefaultCommand() *cobra.Command {
	kubeadm := false
	cmd := &cobra.Command{
		Use:   "default",
		Short: "Print the configuration that kubejoin uses without a file",
		Example: `  kubejoin signer-config default > signers.yaml
  kubejoin signer-config check signers.yaml

  # for a machine that has the CA keys of kubeadm in pki, so that no control plane has them
  kubejoin signer-config default --kubeadm > pki/signers.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			content := config.Default
			if kubeadm {
				content = config.Kubeadm
			}
			_, err := io.WriteString(cmd.OutOrStdout(), content)
			return err
		},
	}
	cmd.Flags().BoolVar(&kubeadm, "kubeadm", false, "add a signer for each certificate of a control plane that kubeadm makes")
	return cmd
}

func signerConfigCheckCommand() *cobra.Command {
	var o struct {
		output
		duration time.Duration
	}
	cmd := &cobra.Command{
		Use:   "check FILE|-",
		Short: "Check a signer configuration and print what each signer does",
		Long: `Check a signer configuration and the CA files in it. The command prints what each signer
allows, or all errors with file, line and field. - reads standard input; paths in it are
relative to the current folder. The command changes nothing and contacts no cluster.

It warns if a CA expires within 90 days, or before the certificates that it signs. The
exit code is 0 if the file is valid, 1 if not.`,
		Example: `  kubejoin signer-config check signers.yaml

  # check a change before you make it
  sed s/720h/48h/ signers.yaml | kubejoin signer-config check -

  # when the CAs expire
  kubejoin signer-config check signers.yaml \
    -o jsonpath='{range .signers[*]}{.name} {.ca.expires}{"\n"}{end}'`,
		Args: oneArg("FILE", "one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			m.when(o.duration < signer.MinDuration, "--cluster-signing-duration: %s given, want at least %s", o.duration, signer.MinDuration)
			if err := m.err(); err != nil {
				return err
			}
			says, made, err := openSignerConfig(cmd.InOrStdin(), args[0], config.Defaults{CA: clusterCA, Duration: o.duration})
			if err != nil {
				return err
			}
			list := describe(says, made)
			for _, s := range list.Signers {
				if s.CA.CertFile == "" {
					continue
				}
				lifetime := made[s.Name].Profile().Default
				if notice := caexpiry.Notice(*s.CA.Expires, lifetime, time.Now(), caexpiry.Replace(s.CA.CertFile, s.CA.KeyFile)); notice != "" {
					warn(cmd, "signer "+s.Name+": "+notice)
				}
			}
			return o.signers(cmd.OutOrStdout(), list)
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	o.register(cmd, "text")
	durationVar(cmd.Flags(), &o.duration, "cluster-signing-duration", signer.DefaultDuration, "value of this flag in 'kubejoin serve', for signers without a duration")
	return cmd
}

// openSignerConfig reads a file, or standard input.
func openSignerConfig(stdin io.Reader, file string, d config.Defaults) (*config.Configuration, map[string]signer.Signer, error) {
	if file != "-" {
		return config.Open(file, d)
	}
	content, err := io.ReadAll(io.LimitReader(stdin, config.MaxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("standard input: %w", err)
	}
	return config.Compile("standard input", content, d)
}

// clusterCA returns a placeholder for the cluster CA, because this command does not need the real CA.
func clusterCA() (*signer.CA, error) {
	return nil, errors.New("the cluster CA is not available to this command")
}

// signerList is the output of 'signer-config check'.
type signerList struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Signers    []signerView `json:"signers"`
}

// A signerView shows a signer with the defaults filled in.
type signerView struct {
	Name     string       `json:"name"`
	CA       caView       `json:"ca"`
	Duration durationView `json:"duration"`
	Usages   []string     `json:"usages"`
	// Subject and Names are nil if only the built-in rules apply.
	Subject  *subjectView `json:"subject,omitempty"`
	Names    *namesView   `json:"names,omitempty"`
	Keys     string       `json:"keys"`
	Approval []string     `json:"approval"`
}

// A caView shows a CA. It is empty for the cluster CA.
type caView struct {
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// PassphraseFile is empty if the key is not encrypted.
	PassphraseFile string     `json:"passphraseFile,omitempty"`
	Subject        string     `json:"subject,omitempty"`
	Serial         string     `json:"serial,omitempty"`
	Expires        *time.Time `json:"expires,omitempty"`
}

type durationView struct {
	Min     string `json:"min"`
	Default string `json:"default"`
	Max     string `json:"max"`
}

type subjectView struct {
	CommonNames   []string `json:"commonNames"`
	Organizations []string `json:"organizations"`
}

type namesView struct {
	DNS       []string `json:"dns"`
	Wildcards []string `json:"wildcards"`
	IPs       []string `json:"ips"`
	Emails    []string `json:"emails"`
	URIs      []string `json:"uris"`
}

func describe(says *config.Configuration, made map[string]signer.Signer) signerList {
	list := signerList{APIVersion: config.APIVersion, Kind: config.Kind}
	for _, s := range says.Signers {
		v := signerView{Name: s.Name, Approval: append([]string{}, s.Approval...)}
		if s.CA != (config.CAFiles{}) {
			if ca, err := made[s.Name].CA(); err == nil { // always: the CA of a file is fixed
				cert := ca.Certificate()
				v.CA = caView{CertFile: s.CA.CertFile, KeyFile: s.CA.KeyFile, PassphraseFile: s.CA.PassphraseFile, Subject: cert.Subject.String(), Serial: cert.SerialNumber.Text(16), Expires: &cert.NotAfter}
			}
		}
		p := made[s.Name].Profile()
		v.Keys = p.Keys.String()
		v.Duration = durationView{Min: safetext.Duration(min(p.Min, p.Max)), Default: safetext.Duration(p.Default), Max: safetext.Duration(p.Max)}
		for _, u := range p.Usages {
			v.Usages = append(v.Usages, string(u))
		}
		if subject := s.Subject; subject != nil {
			v.Subject = &subjectView{CommonNames: append([]string{}, subject.CommonNames...), Organizations: append([]string{}, subject.Organizations...)}
		}
		if names := s.Names; names != nil {
			v.Names = &namesView{
				DNS: append([]string{}, names.DNS...), Wildcards: append([]string{}, names.Wildcards...), IPs: []string{},
				Emails: append([]string{}, names.Emails...), URIs: append([]string{}, names.URIs...),
			}
			for _, p := range names.IPs {
				v.Names.IPs = append(v.Names.IPs, p.String())
			}
		}
		list.Signers = append(list.Signers, v)
	}
	return list
}

// signers prints a list of signers.
func (o *output) signers(w io.Writer, signers signerList) error {
	text := ""
	for i, s := range signers.Signers {
		switch {
		case o.format == "name":
			text += s.Name + "\n"
			continue
		case i > 0:
			text += "\n"
		}
		text += s.Name + "\n" + tableText(s.rows())
	}
	return o.text(w, signers, text)
}

func (s signerView) rows() [][]string {
	ca := "the cluster CA"
	if s.CA.CertFile != "" {
		ca = fmt.Sprintf("%s, expires %s, in %s", s.CA.Subject, s.CA.Expires.UTC().Format(time.RFC3339), s.CA.CertFile)
	}
	approval := strings.Join(s.Approval, ", ")
	if approval == "" {
		approval = "by hand, with kubectl certificate approve"
	}
	rows := [][]string{
		{"  CA", ca},
		{"  duration", fmt.Sprintf("%s, on request %s to %s", s.Duration.Default, s.Duration.Min, s.Duration.Max)},
		{"  usages", strings.Join(s.Usages, ", ")},
	}
	if s.Subject != nil {
		rows = append(rows, []string{"  common names", orNone(s.Subject.CommonNames...)}, []string{"  organizations", orNone(s.Subject.Organizations...)})
	}
	if s.Names != nil {
		for _, kind := range []struct {
			what string
			list []string
		}{{"DNS names", s.Names.DNS}, {"wildcards", s.Names.Wildcards}, {"addresses", s.Names.IPs}, {"emails", s.Names.Emails}, {"URIs", s.Names.URIs}} {
			if len(kind.list) > 0 {
				rows = append(rows, []string{"  " + kind.what, strings.Join(kind.list, ",")})
			}
		}
	}
	if s.Subject == nil && s.Names == nil {
		rows = append(rows, []string{"  names", "as defined by Kubernetes"})
	}
	return append(rows, []string{"  keys", s.Keys}, []string{"  approval", approval})
}

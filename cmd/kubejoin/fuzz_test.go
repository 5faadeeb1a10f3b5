package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/pflag"
)

// FuzzServeFlags reads one argument per line. If serve accepts the flags, their options must be valid.
func FuzzServeFlags(f *testing.F) {
	for _, line := range []string{
		"", "--controllers=*,-csr-signer", "--controllers=-*\n--controllers=token-cleaner,-token-cleaner", "--controllers=\"a\n\",,",
		"--kubeconfig=admin.conf\n--tls-cert-file=a\n--tls-private-key-file=b\n--controllers=-csr-signer,token-cleaner",
		"--listen=:9443\n--advertise=[::1]:1\n--api-server=https://u:p@h:1/#", "--api-server=https://[fe80::1%25eth0]:6443", "--cluster-signing-duration=179s", "--cluster-signing-duration=1e9h",
		"--tls-cert-file=a", "--kube-api-qps=NaN", "--kube-api-qps=+Inf", "--kube-api-burst=-1", "--client-qps=NaN\n--user-qps=-1", "--client-burst=-1", "--max-token-ttl=0\n--max-token-nodes=0", "--max-token-ttl=-1s\n--max-token-nodes=1001", "--tls-min-version=1.2", "-v=99999999999999999999\n--log-format=xml\n--\nx",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		fuzzing.RunWithinLimit(t, func() {
			var o serveOptions
			flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			flags.SetOutput(io.Discard)
			o.register(flags)
			if flags.Parse(strings.Split(line, "\n")) != nil {
				return
			}
			o.given = flags.Changed
			made, err := o.options()
			if err != nil {
				return
			}
			for _, name := range daemon.ControllerNames {
				on := slices.Contains(o.controllers, name) || slices.Contains(o.controllers, "*") && !slices.Contains(o.controllers, "-"+name)
				if made.Controllers[name] != on {
					t.Errorf("--controllers=%q: %s is %v", o.controllers, name, made.Controllers[name])
				}
			}
			if known := slices.Sorted(maps.Keys(made.Controllers)); len(known) != len(daemon.ControllerNames) {
				t.Errorf("--controllers=%q: %q", o.controllers, known)
			}
			if made.CA.Duration < signer.MinDuration || (made.CA.CertFile == "") != (made.CA.KeyFile+made.CA.Remote.URL == "") || made.CA.KeyFile != "" && made.CA.Remote.URL != "" || (made.TLS.CertFile == "") != (made.TLS.KeyFile == "") {
				t.Errorf("passed the check: %q", line)
			}
			if made.APIServer != "" {
				if _, err := clusterinfo.Endpoint(made.APIServer); err != nil {
					t.Errorf("--api-server=%q passed the check", made.APIServer)
				}
			}
			if made.Advertise != "" && clusterinfo.CheckEndpoint(made.Advertise) != nil {
				t.Errorf("--advertise=%q passed the check", made.Advertise)
			}
			if !(o.cluster.QPS >= 0 && o.cluster.QPS <= 1e6) || o.cluster.Burst < 0 {
				t.Errorf("--kube-api-qps=%v passed the check", o.cluster.QPS)
			}
			if ttl, nodes := made.Limits.MaxTokenTTL, made.Limits.MaxTokenNodes; ttl != -1 && ttl < time.Second || nodes != -1 && (nodes < 1 || nodes > tokens.MaxNodes) {
				t.Errorf("--max-token-ttl=%s and --max-token-nodes=%d passed the check", o.maxTokenTTL, o.maxTokenNodes)
			}
			for _, rate := range []server.Rate{made.Limits.ClientRate, made.Limits.UserRate} {
				if !(rate.QPS == -1 || rate.QPS > 0 && rate.QPS <= 1e6) || rate.Burst < 0 {
					t.Errorf("%+v passed the check", rate)
				}
			}
		})
	})
}

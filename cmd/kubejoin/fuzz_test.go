package main

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/fuzzing"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/spf13/pflag"
)

// FuzzServeFlags has one argument a line. What passes the check can be meant.
func FuzzServeFlags(f *testing.F) {
	for _, line := range []string{
		"", "--controllers=*,-csr-signer", "--controllers=-*\n--controllers=token-cleaner,-token-cleaner", "--controllers=\"a\n\",,",
		"--listen=:9443\n--advertise=[::1]:1\n--api-server=https://u:p@h:1/#", "--cluster-signing-duration=179s", "--cluster-signing-duration=1e9h",
		"--tls-cert-file=a", "--kube-api-qps=NaN", "--kube-api-qps=+Inf", "--kube-api-burst=-1", "--client-qps=NaN\n--user-qps=-1", "--client-burst=-1", "--tls-min-version=1.2", "-v=99999999999999999999\n--log-format=xml\n--\nx",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		fuzzing.Prompt(t, func() {
			var o serveOptions
			flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			flags.SetOutput(io.Discard)
			o.register(flags)
			if flags.Parse(strings.Split(line, "\n")) != nil {
				return
			}
			o.given = flags.Changed
			if o.check() != nil {
				return
			}
			enabled, err := enabledControllers(o.controllers)
			if err != nil {
				t.Errorf("--controllers=%q passed the check: %v", o.controllers, err)
			}
			for _, name := range controllerNames {
				on := slices.Contains(o.controllers, name) || slices.Contains(o.controllers, "*") && !slices.Contains(o.controllers, "-"+name)
				if enabled[name] != on {
					t.Errorf("--controllers=%q: %s is %v", o.controllers, name, enabled[name])
				}
			}
			if known := slices.Sorted(maps.Keys(enabled)); len(known) != len(controllerNames) {
				t.Errorf("--controllers=%q: %q", o.controllers, known)
			}
			if o.duration < signer.MinDuration || (o.caCert == "") != (o.caKey == "") || (o.tlsCert == "") != (o.tlsKey == "") {
				t.Errorf("passed the check: %q", line)
			}
			if o.advertise != "" && clusterinfo.CheckEndpoint(o.advertise) != nil {
				t.Errorf("--advertise=%q passed the check", o.advertise)
			}
			if !(o.kubeAPIQPS >= 0 && o.kubeAPIQPS <= 1e6) || o.kubeAPIBurst < 0 {
				t.Errorf("--kube-api-qps=%v passed the check", o.kubeAPIQPS)
			}
			for _, rate := range []server.Rate{limit(o.clients), limit(o.users)} {
				if !(rate.QPS == -1 || rate.QPS > 0 && rate.QPS <= 1e6) || rate.Burst < 0 {
					t.Errorf("%+v passed the check", rate)
				}
			}
		})
	})
}

// Command specs runs the specs of Kubernetes' own end-to-end tests about bootstrap tokens and certificate requests
// against the cluster of --kubeconfig.
package main

import (
	"flag"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	_ "k8s.io/kubernetes/test/e2e/auth"                // certificates.k8s.io, selected by -ginkgo.focus
	_ "k8s.io/kubernetes/test/e2e/lifecycle/bootstrap" // bootstrap tokens
)

func main() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	if !ginkgo.RunSpecs(&t{}, "Kubernetes", suite, reporter) {
		os.Exit(1)
	}
}

// t replaces a testing.T.
type t struct{}

func (*t) Fail() {}

package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/test/cluster"
	"k8s.io/klog/v2"
)

// folder is the folder for files of the processes in one run. [Main] creates it.
var folder string

// Kubejoin is the path of the kubejoin under test. The first call builds it.
var Kubejoin = sync.OnceValue(func() string {
	file, err := build(folder)
	if err != nil {
		panic(err)
	}
	return file
})

// records are the issuance records of all processes that the tests start.
var records certlint.Records

// InProcess records what authorities inside the tests issue.
var InProcess certlint.Log

// Main runs the tests of a package, and then checks every certificate that they issued and every response that kubejoin
// gave:
//
//	func TestMain(m *testing.M) { harness.Main(m, harness.CertificateIssued) }
//
// If all tests of the package run, the functions in complete check that the tests reached everything that the package is
// responsible for. Each test begins with [Parallel]. With -short, only tests run that need no control plane.
func Main(m *testing.M, complete ...func() error) { runMain(m, syscall.LOCK_SH, complete) }

// MainAlone is [Main] for a package whose tests measure load. Meanwhile no tests of other packages run.
func MainAlone(m *testing.M, complete ...func() error) { runMain(m, syscall.LOCK_EX, complete) }

func runMain(m *testing.M, how int, complete []func() error) {
	if flag.Parse(); testing.Short() {
		how = syscall.LOCK_SH // with -short: tests that measure load need a control plane
	}
	if flagValue("test.list") != "" {
		os.Exit(m.Run())
	}
	code, err := run(m, how, complete)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func flagValue(name string) string { return flag.Lookup(name).Value.String() }

func run(m *testing.M, how int, complete []func() error) (code int, err error) {
	root, err := cluster.Repository()
	if err != nil {
		return 1, err
	}
	unlock, err := lock("packages", how)
	if err != nil {
		return 1, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(filepath.Join(root, "bin", "test"), "run-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	folder = dir
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // otherwise client-go logs the faults that tests inject
	records = certlint.Records(dir)
	answers := filepath.Join(dir, "answers")
	if err := os.Setenv(openapicheck.Environment, answers); err != nil {
		return 1, err
	}
	code = m.Run()
	errs := []error{lintIssued(), checkAnswers(answers)}
	fmt.Println(lookedAt.String())
	if flagValue("test.run")+flagValue("test.skip") == "" && !testing.Short() {
		for _, check := range complete {
			errs = append(errs, check())
		}
	}
	return code, errors.Join(errs...)
}

// build builds kubejoin and returns a link to it in dir. All packages build at the same path, so that go links
// kubejoin only once. The link keeps this build if a later build replaces the file.
func build(dir string) (file string, err error) {
	root, err := cluster.Repository()
	if err != nil {
		return "", err
	}
	unlock, err := lock("build", syscall.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer unlock()
	shared := filepath.Join(root, "bin", "test", "kubejoin")
	args := []string{"build", "-tags", "apicheck"}
	if race {
		shared += "-race"
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "-o", shared, "./cmd/kubejoin")...)
	if !race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // kubejoin runs in images without a C library, as in a release
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building kubejoin: %w", err)
	}
	file = filepath.Join(dir, "kubejoin")
	return file, os.Link(shared, file)
}

// issued counts the certificates that the tests of this package issued.
var issued int

// lintIssued checks every certificate that the tests issued with zlint and openssl.
func lintIssued() error {
	byProcesses, findings, err := records.Check(context.Background())
	if err != nil {
		return fmt.Errorf("certificates that the tests issued: %w", err)
	}
	here, found := InProcess.Findings()
	findings = append(findings, found...)
	issued = byProcesses + here
	fmt.Printf("processes of kubejoin issued %d certificates, and the tests %d; zlint and openssl have %d findings\n", byProcesses, here, len(findings))
	if len(findings) > 0 {
		return errors.New(certlint.Summary(findings))
	}
	return nil
}

// CertificateIssued fails if no certificate was issued, because then the check of certificates could not fail.
func CertificateIssued() error {
	if issued == 0 {
		return errors.New("the tests issued no certificate: the check of certificates could not fail")
	}
	return nil
}

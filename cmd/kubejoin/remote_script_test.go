package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/rogpeppe/go-internal/testscript"
)

// scriptServe is the command 'serve [flag…]' of scripts. It runs a standalone 'kubejoin serve' until the script ends
// and sets KUBEJOIN_URL and KUBEJOIN_PID. The data is in kubejoin-data, the log in serve.log, and standard output in serve.out.
func scriptServe(ts *testscript.TestScript, records certlint.Records, negated bool, args []string) {
	if negated {
		ts.Fatalf("serve cannot be negated")
	}
	program := ""
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(os.PathListSeparator)) {
		if file := filepath.Join(dir, "kubejoin"); program == "" && exists(file) {
			program = file
		}
	}
	log, err := os.Create(ts.MkAbs("serve.log"))
	ts.Check(err)
	out, err := os.Create(ts.MkAbs("serve.out"))
	ts.Check(err)
	cmd := exec.Command(program, append([]string{"serve", "--listen=127.0.0.1:0", "--advertise=join.example.com:9443", "-v=1"}, args...)...)
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--issuance-record") }) {
		flag, keepCA := records.Flag(ts.MkAbs("kubejoin-data/ca.pem"), ts.MkAbs("ca/ca.pem")) // the second is for signers with a separate CA
		cmd.Args = append(cmd.Args, flag)
		ts.Defer(func() { _ = keepCA() }) // a missing CA fails the later check
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), out, log
	cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "PATH=" + ts.Getenv("PATH"), openapicheck.Environment + "=" + ts.Getenv(openapicheck.Environment)}
	ts.Check(cmd.Start())
	ts.Setenv("KUBEJOIN_PID", strconv.Itoa(cmd.Process.Pid))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
		}
		_, _ = out.Close(), log.Close()
	})
	ts.Check(wait.Poll(wait.Most, func() error {
		text, err := os.ReadFile(log.Name())
		ts.Check(err)
		if _, after, found := bytes.Cut(text, []byte("msg=serving address=")); found {
			if address, _, whole := bytes.Cut(after, []byte(" ")); whole {
				ts.Setenv("KUBEJOIN_URL", "https://"+string(address))
				return nil
			}
		}
		select {
		case err := <-ended:
			ended <- err
			ts.Fatalf("kubejoin serve ended: %v\n%s", err, text)
		default:
		}
		return fmt.Errorf("kubejoin serve is not ready:\n%s", text)
	}))
}

// scriptAwait is the command 'await REGEXP' of scripts. It waits until the log of serve matches.
func scriptAwait(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) != 1 {
		ts.Fatalf("usage: await REGEXP")
	}
	want, err := regexp.Compile(args[0])
	ts.Check(err)
	ts.Check(wait.Poll(wait.Most, func() error {
		text, err := os.ReadFile(ts.MkAbs("serve.log"))
		ts.Check(err)
		if !want.Match(text) {
			return fmt.Errorf("serve.log does not say %s:\n%s", want, text)
		}
		return nil
	}))
}

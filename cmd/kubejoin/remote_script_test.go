package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptServe is the command 'serve [flag…]' of scripts: it runs a standalone 'kubejoin serve' until
// the script ends, and sets KUBEJOIN_URL to it. Its data is in kubejoin-data, its log in serve.log.
func scriptServe(ts *testscript.TestScript, negated bool, args []string) {
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
	cmd := exec.Command(program, append([]string{"serve", "--listen=127.0.0.1:0", "--advertise=join.example.com:9443", "-v=1"}, args...)...)
	cmd.Dir, cmd.Stderr = ts.MkAbs("."), log
	cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "PATH=" + ts.Getenv("PATH")}
	ts.Check(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
		}
		_ = log.Close()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(log.Name())
		ts.Check(err)
		if _, after, found := bytes.Cut(text, []byte("msg=serving address=")); found {
			if address, _, whole := bytes.Cut(after, []byte(" ")); whole {
				ts.Setenv("KUBEJOIN_URL", "https://"+string(address))
				return
			}
		}
		select {
		case err := <-ended:
			ended <- err
			ts.Fatalf("kubejoin serve ended: %v\n%s", err, text)
		default:
		}
		if time.Now().After(deadline) {
			ts.Fatalf("kubejoin serve is not ready:\n%s", text)
		}
	}
}

package boltstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// roles are the roles of child processes that open the store themselves, or not at all.
var roles = map[string]func(path string) error{}

// TestMain is also the entry point of the child processes that [child] starts.
func TestMain(m *testing.M) {
	if role := os.Getenv("BOLTSTORE_TEST_ROLE"); role != "" {
		do, found := roles[role]
		if !found {
			do = func(path string) error { return other(role, path) }
		}
		if err := do(os.Getenv("BOLTSTORE_TEST_FILE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// other runs in a child process and uses the store until it is killed.
func other(role, path string) error {
	s, err := boltstore.Open(path)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if role == "hold" {
		hold()
	}
	work := func() (string, error) {
		r, err := s.Create(context.Background(), tokens.Record{Token: tokens.Generate()})
		return r.Token.ID(), err
	}
	switch role {
	case "issue":
		work = func() (string, error) {
			e := large(issuancetest.Issued(time.Now(), newSerial(), time.Hour))
			return e.Serial, rowrecord.New(s.Issued()).Append(context.Background(), e)
		}
	case "random nodes":
		return randomNodes(s, path)
	case "full":
		return fullDisk(s, path)
	case "together":
		return together(s, path)
	}
	var mu sync.Mutex
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				name, err := work()
				if err != nil {
					failed <- err
					return
				}
				mu.Lock()
				fmt.Println(name)
				mu.Unlock()
			}
		}()
	}
	return <-failed
}

// hold waits until the parent process ends or closes the pipe.
func hold() { _, _ = io.Copy(io.Discard, os.Stdin) }

type process struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

// child starts a process that opens the store.
func child(t *testing.T, role, path string) process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BOLTSTORE_TEST_ROLE="+role, "BOLTSTORE_TEST_FILE="+path)
	cmd.Stderr = os.Stderr
	out := must.Value(cmd.StdoutPipe())(t)
	must.Value(cmd.StdinPipe())(t) // keeps hold waiting
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if the process has ended
		_ = cmd.Wait()
	})
	p := process{cmd, bufio.NewScanner(out)}
	if !p.out.Scan() || p.out.Text() != "ready" {
		t.Fatalf("got %q from the child, want ready", p.out.Text())
	}
	return p
}

// kill leaves the rest of the output for the caller to read.
func (p process) kill(t *testing.T) {
	t.Helper()
	must.OK(t, p.cmd.Process.Kill())
}

func TestOpenRefusesFileInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	start := time.Now()
	_, err := boltstore.Open(path)
	wantInUse(t, err, path, "this process itself")
	if took := time.Since(start); took > 30*time.Second { // the machine may be busy
		t.Errorf("Open of a file in use failed after %v, want about a second", took)
	}
	must.OK(t, s.Close())

	holder := child(t, "hold", path)
	_, err = boltstore.Open(path)
	wantInUse(t, err, path, "process "+strconv.Itoa(holder.cmd.Process.Pid)+" (boltstore.test)")
	holder.kill(t)
	_ = holder.cmd.Wait() // fails because it was killed; now its lock has ended
	open(t, path)
}

// TestAcknowledgedTokensSurviveKill kills a process while it creates tokens. Every acknowledged token must still exist.
func TestAcknowledgedTokensSurviveKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	c := child(t, "create", path)
	var created []string
	for len(created) < 200 && c.out.Scan() {
		created = append(created, c.out.Text())
	}
	c.kill(t)
	for c.out.Scan() {
		created = append(created, c.out.Text())
	}
	_ = c.cmd.Wait() // fails because it was killed; now its lock has ended
	s := open(t, path)
	for _, id := range created {
		if len(id) != 6 { // the kill may have cut the last line
			continue
		}
		if _, err := s.Get(t.Context(), id, tokens.Live); err != nil {
			t.Errorf("Get of a token acknowledged before the kill: %v", err)
		}
	}
	if len(created) < 200 {
		t.Errorf("%d tokens created, want 200", len(created))
	}
}

func wantInUse(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, boltstore.ErrInUse) {
		t.Fatalf("Open of a file in use = %v, want ErrInUse", err)
	}
	if runtime.GOOS != "linux" {
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Open of a file in use = %q, want %q in it", err, part)
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// joinCommands measures requests for join commands as users send them: with curl, or with kubeadm.
func (b *bench) joinCommands(ctx context.Context, who contender, p running) error {
	command := func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(b.cluster.Bin, "kubeadm"), "token", "create", "--print-join-command", "--kubeconfig", b.cluster.Kubeconfig())
		cmd.Env = append(os.Environ(), "HOME="+b.cluster.Dir)
		return cmd
	}
	if who == ours {
		command = func() *exec.Cmd {
			return exec.CommandContext(ctx, "curl", "-K", b.curlrc(), "-X", "POST", "https://"+p.address+"/v1/token/print-join-command")
		}
	}
	const each = 3
	errs := make([]error, b.clients)
	var running sync.WaitGroup
	start := time.Now()
	for i := range b.clients {
		running.Go(func() {
			for range each {
				errs[i] = errors.Join(errs[i], b.ask(ctx, command()))
			}
		})
	}
	running.Wait()
	rate := float64(each*b.clients) / time.Since(start).Seconds()
	b.say("join commands of %d clients: %.0f/s", b.clients, rate)
	b.report.add(rowJoinRate, who, rate)
	return errors.Join(errs...)
}

// ask runs a command that prints a join command, and waits until cluster-info is signed with the token in it.
func (b *bench) ask(ctx context.Context, cmd *exec.Cmd) error {
	line, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	args, err := cluster.JoinArgs(string(line))
	if err != nil {
		return err
	}
	var token tokens.Token
	for i, arg := range args[:len(args)-1] {
		if strings.TrimSpace(arg) == "--token" {
			if token, err = tokens.Parse(args[i+1]); err != nil {
				return err
			}
		}
	}
	_, err = b.info.waitSigned(ctx, token.ID())
	return err
}

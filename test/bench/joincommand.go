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
	if b.profiles != "" && who == ours {
		return nil // profiled controllers run without the API
	}
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
	var one, usable []float64
	for range b.calls {
		answered, signed, err := b.ask(ctx, command())
		if err != nil {
			return err
		}
		one, usable = append(one, answered), append(usable, signed)
	}
	b.say("join command: p50 %.0f ms, usable after %.0f ms", percentile(one, 50), percentile(usable, 50))
	b.report.add(rowJoinOne, who, percentile(one, 50))
	b.report.add(rowJoinUsable, who, percentile(usable, 50))

	const each = 3
	var mu sync.Mutex
	var many []float64
	var errs []error
	var running sync.WaitGroup
	start := time.Now()
	for range b.clients {
		running.Go(func() {
			for range each {
				_, signed, err := b.ask(ctx, command())
				mu.Lock()
				many, errs = append(many, signed), append(errs, err)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	took := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	b.say("join commands of %d clients: %.0f/s, usable p50 %.0f ms, p99 %.0f ms", b.clients, float64(len(many))/took.Seconds(), percentile(many, 50), percentile(many, 99))
	b.report.add(rowJoinRate, who, float64(len(many))/took.Seconds())
	b.report.add(rowJoinMany, who, percentile(many, 50))
	b.report.add(rowJoinMany99, who, percentile(many, 99))
	return nil
}

// ask runs a command that prints a join command. It returns two times in milliseconds: until the command ended, and
// until the join command was usable, which is when cluster-info is signed with its token.
func (b *bench) ask(ctx context.Context, cmd *exec.Cmd) (answered, usable float64, err error) {
	start := time.Now()
	line, err := cmd.Output()
	end := time.Now()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return 0, 0, fmt.Errorf("%s: %w", filepath.Base(cmd.Path), err)
	}
	args, err := cluster.JoinArgs(string(line))
	if err != nil {
		return 0, 0, err
	}
	var token tokens.Token
	for i, arg := range args[:len(args)-1] {
		if strings.TrimSpace(arg) == "--token" {
			if token, err = tokens.Parse(args[i+1]); err != nil {
				return 0, 0, err
			}
		}
	}
	at, err := b.info.waitSigned(ctx, token.ID())
	if err != nil {
		return 0, 0, err
	}
	if at.Before(end) {
		at = end
	}
	return end.Sub(start).Seconds() * 1000, at.Sub(start).Seconds() * 1000, nil
}

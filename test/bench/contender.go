package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// A contender is a column of the table.
type contender int

const (
	ours contender = iota
	theirs
	stock // kube-controller-manager with its default limit of 20 requests a second
)

func (c contender) String() string {
	return [...]string{"kubejoin", "KCM, limits lifted", "KCM, stock"}[c]
}

func (c contender) flag() string { return [...]string{"kubejoin", "kcm", "stock"}[c] }

// running is a running contender.
type running struct {
	*cluster.Process
	address string // address of kubejoin's API
	bearer  string // bearer token of an operator
}

// start starts a contender and measures how long it takes until it signs cluster-info with an existing token. It does not
// use readiness, because each contender defines readiness differently.
func (b *bench) start(ctx context.Context, who contender) (running, error) {
	if err := b.clear(ctx); err != nil {
		return running{}, err
	}
	p, at, err := b.launchSigning(ctx, who, b.cluster.Address)
	if err != nil {
		return running{}, err
	}
	started, err := startedAt(p.PID())
	if err != nil {
		p.Stop(0)
		return running{}, err
	}
	b.report.add(rowStart, who, at.Sub(started).Seconds()*1000)
	time.Sleep(2 * time.Second) // so that the idle time does not include work after the start
	if err := b.memory(rowIdle, who, p); err != nil {
		p.Stop(0)
		return running{}, err
	}
	return p, b.clear(ctx)
}

// launchSigning creates a token and then starts a contender on the API server at an address. It waits until the
// contender has signed cluster-info with the token, and returns that time.
func (b *bench) launchSigning(ctx context.Context, who contender, server string) (running, time.Time, error) {
	token := tokens.Generate()
	if err := b.load[0].createToken(ctx, token, time.Time{}); err != nil {
		return running{}, time.Time{}, err
	}
	p, err := b.launch(ctx, who, server)
	if err != nil {
		return running{}, time.Time{}, err
	}
	at, err := b.info.waitSigned(ctx, token.ID())
	if err != nil {
		p.end(&err)
	}
	return p, at, err
}

// end stops a contender. If *err is not nil, it adds the last lines of the log.
func (p running) end(err *error) {
	p.Stop(20 * time.Second)
	if *err != nil {
		*err = fmt.Errorf("%w\n%s", *err, lastLines(p.Log(), 20))
	}
}

func (b *bench) memory(row string, who contender, p running) error {
	rss, err := resident(p.PID())
	if err != nil {
		return err
	}
	b.report.add(row, who, rss/1e6)
	return nil
}

// launch starts a contender on the API server at an address.
func (b *bench) launch(ctx context.Context, who contender, server string) (running, error) {
	switch who {
	case theirs:
		p, err := b.cluster.StartKCM(ctx, "--master=https://"+server, "--kube-api-qps=5000", "--kube-api-burst=5000")
		return running{Process: p}, err
	case stock:
		p, err := b.cluster.StartKCM(ctx, "--master=https://"+server)
		return running{Process: p}, err
	}
	kubeconfig, err := b.kubeconfig(server)
	if err != nil {
		return running{}, err
	}
	port, err := cluster.FreePort()
	if err != nil {
		return running{}, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	bearer := rand.Text()
	operators := filepath.Join(b.cluster.Dir, "operators.csv")
	curlrc := fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n", b.cluster.CAFile(), bearer)
	for file, content := range map[string]string{operators: bearer + `,bench,1,"kubejoin:admins"` + "\n", b.curlrc(): curlrc} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return running{}, err
		}
	}
	p, err := b.cluster.StartProcess("kubejoin", exec.Command(b.kubejoin, "serve", "--kubeconfig="+kubeconfig,
		"--cluster-signing-cert-file="+b.cluster.CAFile(), "--cluster-signing-key-file="+b.cluster.CAKeyFile(),
		"--token-auth-file="+operators, "--listen="+address, "--leader-elect=false"))
	return running{p, address, bearer}, err
}

// kubeconfig writes a kubeconfig of kubejoin's service account, for the API server at an address.
func (b *bench) kubeconfig(server string) (file string, err error) {
	own, err := os.ReadFile(b.identity)
	if err != nil {
		return "", err
	}
	file = filepath.Join(b.cluster.Dir, "contender.conf")
	return file, os.WriteFile(file, bytes.ReplaceAll(own, []byte(b.cluster.Address), []byte(server)), 0o600)
}

func (b *bench) curlrc() string { return filepath.Join(b.cluster.Dir, "bench-curlrc") }

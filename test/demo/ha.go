package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/etcd"
)

// haData is the folder of demoHA. It remains, so that the next start has the same CA, operators and tokens.
const haData = datadir.Dir("kubejoin-ha-data")

// replicas is how many kubejoins and etcd members demoHA runs.
const replicas = 3

// etcdPorts are the ports in etcd's own example of three members on one machine.
var etcdPorts = [][2]int{{2379, 2380}, {22379, 22380}, {32379, 32380}}

// firstPort is the port of the first kubejoin. The others use the next ports.
const firstPort = 9443

// demoHA runs three kubejoins and three etcd members until ctx ends.
func demoHA(ctx context.Context, kubejoin string, out io.Writer) error {
	s := &session{out: out}
	roots, err := makeShared()
	if err != nil {
		return err
	}
	s.say("Start three etcd members on loopback")
	store, err := etcd.Start(ctx, etcd.Options{Members: replicas, Dir: haData.Path("etcd"), Ports: etcdPorts, Sync: true, Progress: out})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // no error matters: it only kills the members
	files, err := store.User("kubejoin")
	if err != nil {
		return err
	}
	s.say("Start three kubejoins with the same CA, operators and etcd")
	exited := make(chan *cluster.Process, replicas)
	var all []*cluster.Process
	defer func() {
		for _, p := range all {
			p.Stop(stopGrace)
		}
	}()
	for i := range replicas {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+i))
		p, err := s.startReplica(ctx, kubejoin, i+1, address, roots, store.Endpoints(), files)
		if p != nil {
			all = append(all, p)
		}
		if err != nil {
			return err
		}
		go func() { <-p.Done(); exited <- p }()
	}
	s.sayReplicas(all)
	for range replicas {
		select {
		case <-ctx.Done():
			s.say("Stopping. The data stays in " + string(haData))
			return nil
		case p := <-exited:
			s.say(fmt.Sprintf("%s has ended (log: %s). The others serve on", p.Name, p.LogFile))
		}
	}
	return fmt.Errorf("every kubejoin has ended; the logs are in %s", haData)
}

// makeShared creates the cluster CA and the operators, which all replicas share. It returns the CA.
func makeShared() (*x509.CertPool, error) {
	if err := haData.Open(); err != nil {
		return nil, err
	}
	if _, err := haData.MakeCA(time.Now()); err != nil {
		return nil, err
	}
	ca, err := signer.LoadCA(haData.Path(datadir.CA), haData.Path(datadir.CA))
	if err != nil {
		return nil, err
	}
	bundle, _, err := ca.PEM()
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(haData.Path(datadir.Bundle), bundle); err != nil {
		return nil, err
	}
	bearer, err := haData.AdminBearer("kubejoin:admins")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return roots, haData.WriteCurlrc(fmt.Sprintf("https://127.0.0.1:%d", firstPort), bearer)
}

// startReplica starts a kubejoin and waits until it is ready.
func (s *session) startReplica(ctx context.Context, program string, number int, address string, roots *x509.CertPool, servers []string, files etcd.Files) (*cluster.Process, error) {
	name := fmt.Sprintf("kubejoin-%d", number)
	args := []string{"serve",
		"--listen=" + address,
		"--token-store=etcd",
		"--etcd-servers=" + strings.Join(servers, ","),
		"--etcd-cafile=" + files.CA,
		"--etcd-certfile=" + files.Cert,
		"--etcd-keyfile=" + files.Key,
		"--cluster-signing-cert-file=" + haData.Path(datadir.CA),
		"--cluster-signing-key-file=" + haData.Path(datadir.CA),
		"--token-auth-file=" + haData.Path(datadir.Operators),
		"--data-dir=" + haData.Path(name),
	}
	s.command("kubejoin", strings.Join(args, " \\\n    "))
	p, err := cluster.StartProcess(name, haData.Path(name+".log"), exec.Command(program, args...))
	if err != nil {
		return nil, err
	}
	return p, waitReady(ctx, p, address, roots)
}

func (s *session) sayReplicas(all []*cluster.Process) {
	s.say("Each kubejoin serves everything, until Ctrl-C. Create a token at one and read it at another:")
	curlrc := haData.Path(datadir.Curlrc)
	fmt.Fprintf(s.out, "curl -K %s -X POST https://127.0.0.1:%d/v1/token/print-join-command\n", curlrc, firstPort)
	fmt.Fprintf(s.out, "curl -K %s https://127.0.0.1:%d/v1/token\n", curlrc, firstPort+1)
	fmt.Fprintf(s.out, "curl -K %s 'https://127.0.0.1:%d/readyz?verbose'\n", curlrc, firstPort+2)
	fmt.Fprintf(s.out, "Kill one, and call the others:\n")
	for _, p := range all {
		fmt.Fprintf(s.out, "kill -9 %d # %s, log: %s\n", p.PID(), p.Name, p.LogFile)
	}
}

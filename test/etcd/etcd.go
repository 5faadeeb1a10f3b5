// Package etcd runs real etcd clusters on loopback, for tests and for the demo. Members have TLS and require client
// certificates. A test can kill, pause and replace members, and break the [Network] between one client and each member.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// startTimeout is how long a member may take to be ready on a busy machine.
const startTimeout = 3 * time.Minute

// Options are the options of an etcd cluster. With zero Options, it has one member, for a test.
type Options struct {
	// Members is the number of members; zero means 1.
	Members int
	// Quota limits the database of each member, in bytes. A member that reaches it raises the alarm NOSPACE. Zero means
	// etcd's default.
	Quota int64
	// Dir is the folder of certificates, data and logs. It remains after [Cluster.Close]. Empty means a temporary folder.
	Dir string
	// Ports has two ports for each member: for clients, and for other members. Empty means free ports.
	Ports [][2]int
	// Sync makes members write to disk before they acknowledge, as in production. Tests do not need it: a killed process
	// loses no written data.
	Sync bool
	// Progress receives lines of progress while etcd is built; nil discards them.
	Progress io.Writer
}

// A Cluster is a running etcd cluster. Its methods name members by index, from 0.
type Cluster struct {
	// Dir is the folder of certificates, data and logs.
	Dir string

	options     Options
	program     string
	ca          authority
	transport   *http.Transport // for probes, with the certificate of user root
	client      *clientv3.Client
	members     []*member
	keepFolders bool
}

// Start starts an etcd cluster and waits until each member is ready. That takes about a second with three members.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	program, err := cluster.BuildEtcd(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	o.Members = max(o.Members, 1)
	c := &Cluster{options: o, program: program, Dir: o.Dir, keepFolders: o.Dir != ""}
	if !c.keepFolders {
		if c.Dir, err = os.MkdirTemp("", "kubejoin-etcd-"); err != nil {
			return nil, err
		}
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ForTest calls [Start] for a test, and closes the cluster when the test ends. With -short it skips the test. If the test
// failed, ForTest logs the end of the log of each member.
func ForTest(t testing.TB, o Options) *Cluster {
	t.Helper()
	need.Long(t)
	o.Dir, o.Progress = cmp.Or(o.Dir, t.TempDir()), t.Output()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("starting etcd: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of etcd:\n%s", c.Logs())
		}
		if err := c.Close(); err != nil {
			t.Errorf("closing etcd: %v", err)
		}
	})
	return c
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if c.ca, err = newAuthority(c.Dir); err != nil {
		return err
	}
	if err := c.ca.server(c.Dir); err != nil {
		return err
	}
	config, err := c.TLS("root")
	if err != nil {
		return err
	}
	c.transport = &http.Transport{TLSClientConfig: config}
	for i := range c.options.Members {
		m := &member{name: fmt.Sprintf("etcd-%d", i+1)}
		var ports [2]int
		if i < len(c.options.Ports) {
			ports = c.options.Ports[i]
		}
		for j := range ports {
			if ports[j] == 0 {
				if ports[j], err = cluster.FreePort(); err != nil {
					return err
				}
			}
		}
		m.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
		m.peer = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[1]))
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		if err := c.launch(m, "new"); err != nil {
			return err
		}
	}
	for i := range c.members {
		if err := c.WaitReady(ctx, i); err != nil {
			return err
		}
	}
	c.client, err = c.NewClient("root", c.Endpoints())
	return err
}

// Endpoints returns the URLs of the members themselves, without a [Network] in front.
func (c *Cluster) Endpoints() []string {
	var all []string
	for _, m := range c.members {
		all = append(all, "https://"+m.address)
	}
	return all
}

// Client returns a client of the user root that connects to all members, without a [Network] in front.
func (c *Cluster) Client() *clientv3.Client { return c.client }

// NewClient returns a client that connects to endpoints with the certificate of a user. The caller closes it.
func (c *Cluster) NewClient(user string, endpoints []string) (*clientv3.Client, error) {
	config, err := c.TLS(user)
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// TLS returns the configuration of a client with the certificate of a user.
func (c *Cluster) TLS(user string) (*tls.Config, error) {
	files, err := c.User(user)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.certificate)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, nil
}

// Logs returns the end of the log of each member.
func (c *Cluster) Logs() string {
	var b strings.Builder
	for _, m := range c.members {
		if m.process != nil {
			log := m.process.Log()
			fmt.Fprintf(&b, "== %s\n%s\n", m.name, log[max(0, len(log)-4000):])
		}
	}
	return b.String()
}

// Close kills all members. It removes the files unless [Options].Dir was set.
func (c *Cluster) Close() error {
	var errs []error
	if c.client != nil {
		errs = append(errs, c.client.Close())
	}
	for _, m := range c.members {
		m.process.Stop(0)
	}
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	if !c.keepFolders {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}

func (c *Cluster) file(name string) string { return filepath.Join(c.Dir, name) }

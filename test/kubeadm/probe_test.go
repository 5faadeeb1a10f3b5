package kubeadm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// probeChild is an environment variable. If it is set, this test binary runs as the process of a probe.
const probeChild = "KUBEJOIN_TEST_PROBE"

// The probe checks all Nodes every watchEvery, and uses each kubeconfig every useEvery. Several kubeconfigs have the same
// API server.
const watchEvery, useEvery = 200 * time.Millisecond, time.Second

// A probed is a machine that a probe checks. Root is the folder in which the probe finds the machine's files.
type probed struct {
	Name, Root  string
	Kubeconfigs []string
}

// A failure is a failed request, or a Node that was not ready. Repeated equal failures are counted.
type failure struct {
	First, Last time.Time
	What, Text  string
	Count       int
}

// add adds a failure to list, or counts it if list has it.
func add(list []failure, what, text string) []failure {
	now := time.Now()
	if at := slices.IndexFunc(list, func(f failure) bool { return f.What == what && f.Text == text }); at >= 0 {
		list[at].Last = now
		list[at].Count++
		return list
	}
	return append(list, failure{now, now, what, text, 1})
}

// A report is the result of a probe.
type report struct {
	Requests   int
	Failures   []failure
	NotReady   []failure
	Gaps       map[string]time.Duration // by API server, and for writes through any API server: the longest time between two responses
	Heartbeats map[string]time.Duration // by Node: the longest time between two renewals of its Lease
}

// A probe is a process in the network outside a cluster. It uses each kubeconfig of each machine, with a new connection for
// each request, and watches the Nodes.
type probe struct {
	stdin  io.Closer
	cmd    *exec.Cmd
	output *strings.Builder
}

// startProbe starts a probe. The first kubeconfig of the first machine must belong to an administrator.
func (c *Cluster) startProbe(ctx context.Context, machines map[*Machine][]string, first *Machine) (*probe, error) {
	var all []probed
	for m, kubeconfigs := range machines {
		p := probed{m.Name, fmt.Sprintf("/proc/%d/root", m.init.PID()), kubeconfigs}
		if m == first {
			all = append([]probed{p}, all...)
		} else {
			all = append(all, p)
		}
	}
	// The probe sees the mounts and the processes of the host, so that it can read the files of all machines.
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(c.outside.init.PID()), "--net", "--", os.Args[0])
	cmd.Env = append(os.Environ(), probeChild+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &probe{stdin, cmd, &strings.Builder{}}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return p, json.NewEncoder(stdin).Encode(all)
}

// stop ends the probe and returns its report.
func (p *probe) stop() (r report, err error) {
	_ = p.stdin.Close()
	err = p.cmd.Wait()
	return r, errors.Join(err, json.Unmarshal([]byte(p.output.String()), &r))
}

// playProbe runs in the process of a probe. It ends when its standard input is closed.
func playProbe() error {
	in := json.NewDecoder(os.Stdin)
	var machines []probed
	if err := in.Decode(&machines); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{last: map[string]time.Time{}, report: report{Gaps: map[string]time.Duration{}, Heartbeats: map[string]time.Duration{}}}
	var running sync.WaitGroup
	every := func(interval time.Duration, what string, step func(context.Context) error) {
		running.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for ctx.Err() == nil {
				err := step(ctx)
				if ctx.Err() != nil {
					return
				}
				w.count(what, err)
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	for _, m := range machines {
		for _, file := range m.Kubeconfigs {
			every(useEvery, m.Name+" "+filepath.Base(file), func(ctx context.Context) error {
				_, err := w.get(ctx, m.Root, file, "/api")
				return err
			})
		}
	}
	admin := func(ctx context.Context, path string, list any) error {
		body, err := w.get(ctx, machines[0].Root, machines[0].Kubeconfigs[0], path)
		if err != nil {
			return err
		}
		return json.Unmarshal(body, list)
	}
	for _, m := range machines {
		if slices.Contains(m.Kubeconfigs, localConf) {
			every(useEvery, m.Name+" writes", func(ctx context.Context) error {
				_ = w.write(ctx, m.Root) // ignore the error: the report has the gap between writes
				return nil
			})
		}
	}
	ready := map[string]string{} // by Node: why it is not ready
	every(watchEvery, "Nodes", func(ctx context.Context) error {
		var nodes corev1.NodeList
		if err := admin(ctx, "/api/v1/nodes", &nodes); err != nil {
			return err
		}
		for _, n := range nodes.Items {
			for _, c := range n.Status.Conditions {
				if c.Type != corev1.NodeReady {
					continue
				}
				why := ""
				if c.Status != corev1.ConditionTrue {
					why = c.Reason + ": " + c.Message
				}
				if before, known := ready[n.Name]; known && why != "" && why != before {
					w.notReady(n.Name, why)
				}
				if _, known := ready[n.Name]; known || why == "" { // a Node that has just joined may take some time
					ready[n.Name] = why
				}
			}
		}
		return nil
	})
	every(watchEvery, "Leases", func(ctx context.Context) error {
		var leases coordinationv1.LeaseList
		if err := admin(ctx, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", &leases); err != nil {
			return err
		}
		for _, l := range leases.Items {
			if l.Spec.RenewTime != nil {
				w.beat(l.Name, l.Spec.RenewTime.Time)
			}
		}
		return nil
	})
	_, _ = io.Copy(io.Discard, io.MultiReader(in.Buffered(), os.Stdin))
	cancel()
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(w.report)
}

// A watcher collects a report.
type watcher struct {
	mu     sync.Mutex
	last   map[string]time.Time // last response of each API server, and last renewal of each Lease
	report report
}

// get sends a request with a kubeconfig of a machine. Like a program that has just started, it reads the file and opens a
// connection.
func (w *watcher) get(ctx context.Context, root, file, path string) ([]byte, error) {
	config, err := configAt(root, file)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no response after %v", startTimeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	body, err := send(config, request)
	if err == nil {
		w.gap(config.Host)
	}
	return body, err
}

// localConf is a kubeconfig with the address of the API server on the same machine.
const localConf = "/etc/kubernetes/controller-manager.conf"

// write changes an object through the API server of a control plane, as its administrator.
func (w *watcher) write(ctx context.Context, root string) error {
	config, err := configAt(root, "/etc/kubernetes/admin.conf")
	if err != nil {
		return err
	}
	local, err := configAt(root, localConf)
	if err != nil {
		return err
	}
	const most = 2 * time.Second // so a write that waits for etcd does not delay the next one
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	lease := fmt.Sprintf(`{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "probe"}, "spec": {"holderIdentity": "%d"}}`, time.Now().UnixNano())
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, local.Host+"/apis/coordination.k8s.io/v1/namespaces/default/leases/probe?fieldManager=probe&force=true", strings.NewReader(lease))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/apply-patch+yaml")
	if _, err = send(config, request); err == nil {
		w.gap(writes)
	}
	return err
}

// writes is the key of the gap between writes.
const writes = "writes"

// send sends a request on a new connection.
func send(config *rest.Config, request *http.Request) ([]byte, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return body, err
}

func (w *watcher) count(what string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Requests++
	if err != nil {
		w.report.Failures = add(w.report.Failures, what, err.Error())
	}
}

func (w *watcher) notReady(node, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.NotReady = add(w.report.NotReady, node, why)
}

func (w *watcher) gap(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if last, known := w.last[server]; known {
		w.report.Gaps[server] = max(w.report.Gaps[server], now.Sub(last))
	}
	w.last[server] = now
}

func (w *watcher) beat(node string, renewed time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, known := w.last[node]; known {
		w.report.Heartbeats[node] = max(w.report.Heartbeats[node], renewed.Sub(last))
	}
	w.last[node] = renewed
}

// configAt reads a kubeconfig of a machine whose files are below root.
func configAt(root, file string) (*rest.Config, error) {
	kubeconfig, err := clientcmd.LoadFromFile(root + file)
	if err != nil {
		return nil, err
	}
	for _, c := range kubeconfig.Clusters {
		c.CertificateAuthority = follow(root, c.CertificateAuthority)
	}
	for _, user := range kubeconfig.AuthInfos {
		user.ClientCertificate, user.ClientKey = follow(root, user.ClientCertificate), follow(root, user.ClientKey)
	}
	return clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
}

// follow returns the path of a machine's file on the host. It resolves symbolic links itself, because an absolute link is
// relative to the machine's root.
func follow(root, path string) string {
	if path == "" {
		return ""
	}
	link, err := os.Readlink(root + path)
	switch {
	case err != nil:
		return root + path
	case filepath.IsAbs(link):
		return root + link
	}
	return filepath.Join(root+filepath.Dir(path), link)
}

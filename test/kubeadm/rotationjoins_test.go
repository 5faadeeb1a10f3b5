package kubeadm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// A joined records when a machine began to join.
type joined struct {
	began  time.Time
	oldest bool // it used the oldest join command
}

// add joins a worker, and returns when its Node is ready.
func (r *rotationTest) add(name, line string) {
	r.t.Helper()
	m := addMachine(r.t, r.Cluster, name)
	r.nodes = append(r.nodes, m)
	r.network(m)
	if r.proxies {
		r.importProxy(m)
	}
	r.must(m.Join(r.t.Context(), line))
	r.kubectl("wait", "--for=create", "--timeout=3m", "node/"+name) // kubeadm join may return before the Node exists
	r.kubectl("wait", "--for=condition=Ready", "--timeout=3m", "node/"+name)
}

// request returns a join command for several machines. The client trusts the CAs that the first control plane trusts.
func (r *rotationTest) request() string {
	r.t.Helper()
	return must.Value(r.requestNow())(r.t)
}

// requestNow is request for other goroutines: it returns an error.
func (r *rotationTest) requestNow() (string, error) {
	trusted, err := os.ReadFile(filepath.Join(r.first.root(), "/etc/kubernetes/pki/ca.crt"))
	if err != nil {
		return "", err
	}
	if err := atomicfile.Write(filepath.Join(r.outside.dir, "ca.crt"), trusted); err != nil {
		return "", err
	}
	return r.RequestJoin(r.t.Context(), r.first.Address, "maxNodes=100")
}

// join joins light nodes with join commands, and deletes them.
func (r *rotationTest) join(lines ...string) {
	r.t.Helper()
	r.joining.Lock()
	defer r.joining.Unlock()
	for i, line := range lines {
		if err := r.joinLine(fmt.Sprintf("now-%d-%d", time.Now().Unix(), i), line); err != nil {
			r.t.Error(err)
		}
	}
}

// joinNext joins the next light node in the background. Every second node uses the oldest join command, as long as that works.
func (r *rotationTest) joinNext(name string) error {
	r.joining.Lock()
	defer r.joining.Unlock()
	line := r.oldest
	if line == "" || len(r.joined)%2 == 1 {
		var err error
		if line, err = r.requestNow(); err != nil {
			return fmt.Errorf("after %s: %w", r.after(time.Now()), err)
		}
	}
	return r.joinLine(name, line)
}

// joinLine joins a light node with a join command, and deletes it.
func (r *rotationTest) joinLine(name, line string) error {
	this := joined{time.Now(), line == r.oldest}
	_, err := r.joinLight(r.t.Context(), name, line)
	if err == nil {
		_, err = r.Kubectl(r.t.Context(), "delete", "node", name, "--ignore-not-found")
	}
	if err != nil {
		return fmt.Errorf("after %s, with the oldest join command: %t: %w", r.after(this.began), this.oldest, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joined = append(r.joined, this)
	return nil
}

// awaitJoins waits until machines have joined in this stage. One must have used the oldest join command if that works.
func (r *rotationTest) awaitJoins() {
	r.t.Helper()
	if r.olderThan("1.36") { // no machine joins in the background
		for range 2 {
			r.must(r.joinNext(fmt.Sprintf("light-%d", len(r.joined))))
		}
		return
	}
	began := time.Now()
	harness.Wait(r.t, "joins after "+r.after(began), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, oldest := range []bool{false, true} {
			is := func(j joined) bool { return j.oldest == oldest && j.began.After(r.since) }
			if (!oldest || r.oldest != "") && !slices.ContainsFunc(r.joined, is) {
				return fmt.Errorf("none of %d joins, with the oldest join command: %t", len(r.joined), oldest)
			}
		}
		return nil
	})
	if waited := time.Since(began); waited > time.Second {
		r.t.Logf("waited %.1f s for joins", waited.Seconds())
	}
}

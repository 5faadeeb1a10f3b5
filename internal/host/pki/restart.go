package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// poll is the interval at which await checks a restart.
const poll = 500 * time.Millisecond

// grace is how long a process may take to end by itself. With open watches, kube-apiserver would take a minute and etcd 7
// seconds, and accept no request in that time; kubeadm gives up after 10 seconds. After grace, kube-apiserver has responded
// to most requests, and etcd has handed over its leadership. All writes that etcd confirmed are on its disk.
const grace = 3 * time.Second

// A service is a process that must start after its files changed.
type service struct {
	name string
	port int
	url  string // of the health endpoint; empty if the process has none
	comm string // name in /proc; empty matches any
	// pod and file identify a process that listens on no port: the process in the pod's container that mounts file.
	pod  string
	file string
	// grace is how long the process may take to end by itself.
	grace time.Duration
	// hint says what to do if the process is not healthy.
	hint string
	// changed is when a file changed that the process reads only at start; the zero time if none did.
	changed time.Time
}

// stale reports whether the process runs with old files. It also returns true if no process listens, because nothing
// proves that the new files were read.
func (h Host) stale(s service) (bool, error) {
	if s.changed.IsZero() {
		return false, nil
	}
	p, err := h.system.listener(s)
	return err == nil && (p.pid == 0 || p.started.Before(s.changed)), err
}

// await waits until the process was started after its files changed, and is healthy. It also ends a process that started
// before the change, and that did not listen yet when restart looked for it.
func (h Host) await(ctx context.Context, s service) error {
	began, logged, endedOnce := time.Now(), time.Now(), false
	for {
		p, err := h.system.listener(s)
		if err == nil && p.pid == 0 {
			err = errors.New("it does not run")
		}
		if err == nil && p.started.Before(s.changed) {
			err = fmt.Errorf("process %d is still the old one", p.pid)
			if !endedOnce {
				endedOnce = true
				err = errors.Join(err, h.system.end(ctx, p, s.grace))
			}
		}
		if err == nil && s.url != "" {
			err = h.system.healthy(ctx, s.url)
		}
		if err == nil {
			h.Log(fmt.Sprintf("%s is healthy, process %d", s.name, p.pid))
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not healthy after %s: %w; %s, and retry", s.name, time.Since(began).Round(time.Second), err, s.hint)
		case <-time.After(poll):
		}
		const often = 5 * time.Second
		if time.Since(logged) > often {
			logged = time.Now()
			h.Log(fmt.Sprintf("waiting for %s: %v", s.name, err))
		}
	}
}

// podService returns the service of a static pod, with the port and the health URL of the pod's probe. changed is set if the
// pod may not have read everything that Apply wrote.
func (h Host) podService(b *backup, a authority, p pod) (service, error) {
	const maxComm = 15 // bytes in /proc
	s := service{name: p.name, comm: p.name[:min(len(p.name), maxComm)]}
	s.hint = "see why with: crictl ps -a --name " + p.name + "; the kubelet starts it again, after some time if that is not the first time"
	if p.container != "" {
		s.grace, s.comm, s.pod, s.file = grace, "", p.container, h.file(p.once[0])
		return s, h.noteChanged(b, p, &s)
	}
	container := p.manifest.Spec.Containers[0]
	s.grace = grace + serves(container)
	var get *corev1.HTTPGetAction
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		if probe != nil && probe.HTTPGet != nil {
			get = probe.HTTPGet
		}
	}
	if get == nil {
		return s, fmt.Errorf("static pod %s: want a probe with httpGet, which shows whether the pod is healthy", p.name)
	}
	s.port = get.Port.IntValue()
	if get.Port.Type == intstr.String {
		for _, named := range container.Ports {
			if named.Name == get.Port.StrVal {
				s.port = int(named.ContainerPort)
			}
		}
	}
	host := get.Host
	if host == "" {
		host = "127.0.0.1" // kubeadm's static pods use the network of the host
	}
	s.url = strings.ToLower(string(get.Scheme))
	if s.url == "" {
		s.url = "http"
	}
	s.url += "://" + net.JoinHostPort(host, strconv.Itoa(s.port)) + "/" + strings.TrimPrefix(get.Path, "/")
	return s, h.noteChanged(b, p, &s)
}

// noteChanged sets s.changed to when a file changed that the static pod has not read.
func (h Host) noteChanged(b *backup, p pod, s *service) (err error) {
	if slices.Contains(b.index.Restart, p.name) {
		s.changed, err = h.lastChanged(b, p.once)
	}
	return err
}

// mayEnd reports whether Apply may end a static pod.
func (h Host) mayEnd(p pod) bool { return p.container == "" || slices.Contains(h.Restart, p.name) }

// serves returns how long a kube-apiserver continues to serve after SIGTERM, so that load balancers notice.
func serves(c corev1.Container) time.Duration {
	for _, arg := range slices.Concat(c.Command, c.Args) {
		if value, found := strings.CutPrefix(arg, "--shutdown-delay-duration="); found {
			delay, _ := time.ParseDuration(value) // kube-apiserver does not start with a malformed value
			return delay
		}
	}
	return 0
}

// lastChanged returns the last time at which one of the files changed: see changedAt. Some files may not exist. names are
// relative to h.Dir, or absolute.
func (h Host) lastChanged(b *backup, names []string) (last time.Time, err error) {
	for _, name := range names {
		file := name
		if !filepath.IsAbs(name) {
			file = h.file(name)
		}
		at, err := h.changedAt(b, file, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return last, err
		}
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// changedAt returns when Apply wrote the present content of a file, in the time of the current clock. It returns the zero time
// if Apply did not write it, or wrote it before the machine booted. After a boot, no process has older content.
func (h Host) changedAt(b *backup, file, name string) (time.Time, error) {
	if len(b.index.Written[name]) == 0 {
		return time.Time{}, nil
	}
	content, err := readFile(file)
	if err != nil || !slices.Contains(b.index.Written[name], digest(content)) {
		return time.Time{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}, err
	}
	then := b.index.Boots[name]
	now, err := h.system.boot()
	if err != nil || now.ID != then.ID {
		return time.Time{}, err
	}
	return info.ModTime().Add(now.At.Sub(then.At)), nil
}

// restartPods restarts the static pods of b.index.Restart, and removes a pod from it when it is healthy with the new files.
// They restart at the same time, because kube-apiserver does not work while the etcd of its host restarts. If a pod may be
// down, restartPods keeps the lock until it expires, so that the next control plane does not stop as well.
func (h Host) restartPods(ctx context.Context, b *backup, a authority, done *Result) error {
	var restarts []service
	for _, p := range a.pods {
		if !slices.Contains(b.index.Restart, p.name) {
			continue
		}
		s, err := h.podService(b, a, p)
		if err != nil {
			return err
		}
		old, err := h.stale(s)
		running, err2 := h.system.listener(s)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		switch {
		case !old && (s.url == "" || h.system.healthy(ctx, s.url) == nil):
			b.upToDate(p.name)
		case h.mayEnd(p) && (p.container == "" || running.pid != 0): // a static pod that kubeadm did not create need not run
			restarts = append(restarts, s)
		}
	}
	if len(restarts) == 0 || h.NoRestart {
		return nil
	}
	if runs, err := h.restartable(b, a); err != nil || !runs {
		return err
	}
	release := func() {}
	if h.Lock != nil {
		var err error
		if release, err = h.Lock(ctx); err != nil {
			return err
		}
	}
	// Check again: the previous holder of the lock may have ended a process of this host.
	if _, err := h.restartable(b, a); err != nil {
		return err
	}
	if mayBeDown, err := h.restart(ctx, restarts, done); err != nil {
		if !mayBeDown {
			release()
		}
		return err
	}
	release()
	for _, s := range restarts {
		b.upToDate(s.name)
	}
	return nil
}

// restart ends processes that have not read the changed files, and waits until their successors are healthy. The kubelet
// restarts static pods, and a service manager restarts the kubelet. mayBeDown is false if restart failed and has
// certainly ended no process.
func (h Host) restart(ctx context.Context, services []service, done *Result) (mayBeDown bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.Wait) // the lock expires after twice this time
	defer cancel()
	old := make([]process, len(services))
	for i, s := range services {
		p, err := h.system.listener(s)
		if err != nil {
			return false, err
		}
		if p.started.Before(s.changed) {
			old[i] = p
		}
	}
	var group sync.WaitGroup
	failed := make([]error, len(services))
	for i, p := range old {
		if p.pid != 0 {
			h.Log("restarting " + services[i].name)
			group.Go(func() { failed[i] = h.system.end(ctx, p, services[i].grace) })
		}
	}
	group.Wait()
	mayBeDown = slices.Contains(failed, nil)
	if err := errors.Join(failed...); err != nil {
		return mayBeDown, err
	}
	for _, s := range services {
		if err := h.await(ctx, s); err != nil {
			return mayBeDown, err
		}
		done.Restarted = append(done.Restarted, s.name)
	}
	return mayBeDown, nil
}

// restartable reports whether the kubelet runs. It returns an error if a process is not visible, or if static pods run without
// the kubelet, because only the kubelet would restart them.
func (h Host) restartable(b *backup, a authority) (kubelet bool, err error) {
	if !a.kubelet && len(a.pods) == 0 {
		return false, nil
	}
	k, err := h.kubeletService()
	if err != nil {
		return false, err
	}
	p, err := h.system.listener(k)
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.name, err)
	}
	kubelet = p.pid != 0
	for _, pod := range a.pods {
		s, err := h.podService(b, a, pod)
		if err != nil {
			return kubelet, err
		}
		p, err := h.system.listener(s)
		if err != nil {
			return kubelet, fmt.Errorf("%s: %w", s.name, err)
		}
		if p.pid != 0 && !kubelet {
			return kubelet, fmt.Errorf("no kubelet listens on port %d, which would start %s again; start it with: systemctl start kubelet; then retry", k.port, s.name)
		}
	}
	return kubelet, nil
}

package hostca

import (
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// poll is how often a restart is looked at.
const poll = 500 * time.Millisecond

// A service is a process that must start after its files changed.
type service struct {
	name    string
	port    int
	url     string    // of its health; empty if it shows none
	comm    string    // in /proc; empty is any
	changed time.Time // when a file changed that it does not read again; zero if none did
}

// stale reports whether the process runs with old files. Nothing shows that of a process that is not found.
func (h Host) stale(s service) (bool, error) {
	if s.changed.IsZero() {
		return false, nil
	}
	p, err := h.system.listener(s)
	return err == nil && (p.pid == 0 || p.started.Before(s.changed)), err
}

// await waits until the process was started after its files changed, and is healthy.
func (h Host) await(ctx context.Context, s service, hint string) error {
	ctx, cancel := context.WithTimeout(ctx, h.Wait)
	defer cancel()
	began, said := time.Now(), time.Now()
	for {
		p, err := h.system.listener(s)
		if err == nil && p.pid == 0 {
			err = fmt.Errorf("nothing listens on port %d", s.port)
		}
		if err == nil && p.started.Before(s.changed) {
			err = fmt.Errorf("process %d is still the old one", p.pid)
		}
		if err == nil {
			if s.url != "" {
				err = h.system.healthy(ctx, s.url)
			}
			if err == nil {
				h.Log(fmt.Sprintf("%s is healthy, process %d", s.name, p.pid))
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was not healthy after %s: %w; %s, and retry", s.name, time.Since(began).Round(time.Second), err, hint)
		case <-time.After(poll):
		}
		const often = 5 * time.Second
		if time.Since(said) > often {
			said = time.Now()
			h.Log(fmt.Sprintf("waiting for %s: %v", s.name, err))
		}
	}
}

// service returns what runs by a manifest. It has the port and the health of the pod's own probe.
func (h Host) podService(b *backup, p pod) (service, error) {
	s := service{name: strings.TrimSuffix(path.Base(p.manifest), ".yaml")}
	file := h.file(p.manifest)
	content, err := readFile(file)
	if err != nil {
		return s, err
	}
	var object corev1.Pod
	if err := yaml.Unmarshal(content, &object); err != nil || len(object.Spec.Containers) == 0 {
		return s, fmt.Errorf("%s: want the manifest of a pod", file)
	}
	container := object.Spec.Containers[0]
	var get *corev1.HTTPGetAction
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		if probe != nil && probe.HTTPGet != nil {
			get = probe.HTTPGet
		}
	}
	if get == nil {
		return s, fmt.Errorf("%s: want a probe with httpGet, which shows whether the pod is healthy", file)
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
		host = "127.0.0.1" // static pods of kubeadm are in the network of the host
	}
	s.url = strings.ToLower(string(get.Scheme))
	if s.url == "" {
		s.url = "http"
	}
	s.url += "://" + net.JoinHostPort(host, strconv.Itoa(s.port)) + "/" + strings.TrimPrefix(get.Path, "/")
	s.changed, err = h.changedAt(b, file, p.manifest)
	return s, err
}

// changedAt returns when a file got its present content, on the present clock, if Apply wrote that. It returns the zero time if
// that was before the machine booted, so that no process has an older content.
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

// settle is how old a kubelet must be before a manifest changes. One that still verifies the volumes of a pod when its
// manifest changes stops the old pod only after two minutes.
const settle = 10 * time.Second

// settled waits until the kubelet is old enough.
func (h Host) settled(ctx context.Context) error {
	k, err := h.kubeletService()
	if err != nil {
		return err
	}
	p, err := h.system.listener(k)
	if err != nil || p.pid == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(h.settle - time.Since(p.started)):
		return nil
	}
}

// restartPods writes the changed manifests, and waits until all of these pods are healthy again. They restart at the same
// time, because kube-apiserver does not work while the etcd of its host restarts. If one is not healthy, the
// lock stays until it expires: otherwise the next control plane would stop as well.
func (h Host) restartPods(ctx context.Context, b *backup, a authority, changed []string, write func(string) error, done *Result) (err error) {
	var release func()
	var restarting []pod
	defer func() {
		if release != nil && (err == nil || len(restarting) == 0) {
			release()
		}
	}()
	for _, p := range a.pods {
		if b.originals[p.manifest] == nil {
			continue
		}
		s, err := h.podService(b, p)
		if err != nil {
			return err
		}
		changes := slices.Contains(changed, p.manifest)
		runs, err := h.runs(s)
		if err != nil {
			return err
		}
		old, err := h.stale(s)
		if err != nil {
			return err
		}
		if !changes && !old && (s.changed.IsZero() || h.system.healthy(ctx, s.url) == nil) {
			continue
		}
		if release == nil && h.Lock != nil && runs {
			if release, err = h.Lock(ctx); err != nil {
				return err
			}
		}
		if runs && changes {
			if err := h.settled(ctx); err != nil {
				return err
			}
		}
		if err := write(p.manifest); err != nil {
			return err
		}
		if runs { // otherwise, it reads the new files when it starts
			h.Log("restarting " + s.name)
			restarting = append(restarting, p)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.Wait) // the lock ends after twice this time
	defer cancel()
	for _, p := range restarting {
		s, err := h.podService(b, p)
		if err != nil {
			return err
		}
		if err := h.await(ctx, s, "see why with: crictl ps -a --name "+s.name+"; the kubelet restarts it if it runs"); err != nil {
			return err
		}
		done.Restarted = append(done.Restarted, s.name)
	}
	return nil
}

// visible returns an error if a process that may have to restart runs and is not visible.
func (h Host) visible(b *backup, a authority) error {
	k, err := h.kubeletService()
	if err != nil {
		return err
	}
	list := []service{k}
	for _, p := range a.pods {
		if b.originals[p.manifest] == nil {
			continue
		}
		s, err := h.podService(b, p)
		if err != nil {
			return err
		}
		list = append(list, s)
	}
	for _, s := range list {
		if _, err := h.system.listener(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// runs reports whether the process of a service, or the kubelet that starts it, runs.
func (h Host) runs(s service) (bool, error) {
	p, err := h.system.listener(s)
	if err != nil || p.pid != 0 {
		return p.pid != 0, err
	}
	k, err := h.kubeletService()
	if err != nil {
		return false, err
	}
	p, err = h.system.listener(k)
	return p.pid != 0, err
}

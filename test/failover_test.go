package test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// leads waits until a replica leads, and returns how long that took.
func (p *program) leads(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	wait(t, "a new leader", func() error {
		if !strings.Contains(p.metrics(t), "\nkubejoin_leader 1\n") {
			return fmt.Errorf("it stands by")
		}
		return nil
	})
	return time.Since(began)
}

// probe asks a replica for a join command again and again until stop is called. Each answer must
// be one, if it takes a new leader for it.
func (m *minted) probe(ctx context.Context, t *testing.T, p *program, bearer string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	answers, slowest := 0, time.Duration(0)
	running.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			// Not cut off, so that no answer is lost on the way.
			status, body, err := p.do(context.WithoutCancel(ctx), "POST", "/v1/token/print-join-command", bearer)
			if err == nil {
				_, err = m.answer(status, body)
			}
			if err != nil {
				t.Errorf("the other replica, after %s: %v", time.Since(began), err)
			}
			answers++
			slowest = max(slowest, time.Since(began))
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		running.Wait()
		t.Logf("the other replica answered %d times meanwhile, at most after %s", answers, slowest.Round(time.Millisecond))
	}
}

// A leader is killed, and another one put to sleep until it is late: neither is missed for long,
// and the one that wakes does no harm.
func TestFailover(t *testing.T) {
	t.Parallel()
	audit := newAuditLog(t)
	s := newSite(t, cluster.Options{APIServerFlags: audit.flags()})
	l := keepLedger(t, s.Cluster)
	first := s.program
	first.leads(t)
	s.start(t)
	second := s.program
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var m minted
	bearer := second.bearer(t)
	machine := machine(t, s.Cluster)

	// kill -9 in the middle of 500 requests.
	stop := m.probe(ctx, t, second, bearer)
	r := startRush(ctx, t, "killed", 20, 500, func(ctx context.Context) error {
		_, err := m.ask(ctx, second, bearer)
		return err
	}, machine)
	r.middle(t)
	first.kill(t)
	killed := time.Now()
	if done := r.requests.Load(); done == 500 {
		t.Fatal("all requests were made when the leader was killed: that was too late")
	}
	took := second.leads(t)
	r.asking.Wait()
	last := l.issued(t, r.names)
	t.Logf("killed: the other led after %s, the last of %d certificates was there after %s", took.Round(time.Millisecond), len(r.names), last.Sub(killed).Round(time.Millisecond))
	if last.Sub(killed) > 20*time.Second {
		t.Errorf("the last certificate was there %s after the leader was killed, want 20 s at most", last.Sub(killed))
	}
	stop()

	// SIGSTOP in the middle of 100, until the other has done them and has changed the tokens.
	s.start(t)
	third := s.program
	stop = m.probe(ctx, t, third, bearer)
	r = startRush(ctx, t, "stopped", 50, 100, func(ctx context.Context) error {
		_, err := m.ask(ctx, third, bearer)
		return err
	}, machine)
	r.middle(t)
	if err := second.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	slept := time.Now()
	took = third.leads(t)
	r.asking.Wait()
	last = l.issued(t, r.names)
	t.Logf("stopped: the other led after %s, the last of %d certificates was there after %s", took.Round(time.Millisecond), len(r.names), last.Sub(slept).Round(time.Millisecond))
	stop()
	m.mu.Lock()
	deleted := 0
	for id, token := range m.known {
		if deleted++; deleted > 10 {
			break
		}
		if err := s.Client().CoreV1().Secrets("kube-system").Delete(ctx, "bootstrap-token-"+token.ID(), metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		delete(m.known, id)
	}
	m.mu.Unlock()
	m.check(t, s.Client())

	flaps := s.clusterInfoVersions(t)
	if err := second.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	if n := flaps(); n != 0 {
		t.Errorf("cluster-info was written %d times after the old leader woke, although nothing had changed", n)
	}
	wait(t, "the old leader's standing by", func() error {
		if strings.Contains(second.metrics(t), "\nkubejoin_leader 1\n") {
			return fmt.Errorf("it leads")
		}
		return nil
	})
	if metric(t, third.metrics(t), "kubejoin_leader") != 1 {
		t.Error("the new leader leads no more")
	}
	// And both still answer.
	for _, p := range []*program{second, third} {
		if _, err := m.ask(ctx, p, bearer); err != nil {
			t.Error(err)
		}
	}
	m.check(t, s.Client())
	l.check(t)
	audit.checkRequests(t)
}

// clusterInfoVersions counts the writes of cluster-info from now on.
func (s *site) clusterInfoVersions(t *testing.T) (count func() int) {
	t.Helper()
	api := s.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	now, err := api.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: now.ResourceVersion, FieldSelector: "metadata.name=" + clusterinfo.Name})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := now
		for event := range w.ResultChan() {
			if object, ok := event.Object.(*corev1.ConfigMap); ok && event.Type != watch.Bookmark {
				n++
				var gained, lost int
				for key := range object.Data {
					if last.Data[key] == "" {
						gained++
					}
				}
				for key := range last.Data {
					if object.Data[key] == "" {
						lost++
					}
				}
				t.Logf("cluster-info version %s: %d signatures more, %d less", object.ResourceVersion, gained, lost)
				last = object
			}
		}
	}()
	return func() int {
		w.Stop()
		<-done
		return n
	}
}

package outage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// probe requests join commands from a replica until stop is called. Each request must succeed, even if it waits for a
// new leader.
func (m *minted) probe(ctx context.Context, t *testing.T, p *harness.Program, bearer string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	answers, slowest := 0, time.Duration(0)
	running.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			// Stopping does not cancel a request, so no response is lost.
			status, body, err := p.Do(context.WithoutCancel(ctx), "POST", "/v1/token/print-join-command", bearer)
			if err == nil {
				_, err = m.answer(status, body)
			}
			if err != nil {
				t.Errorf("other replica after %s: got %v, want a join command", time.Since(began), err)
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
		t.Logf("the other replica sent %d responses, the slowest after %s", answers, slowest.Round(time.Millisecond))
	}
}

// TestFailoverLosesNoRequest suspends a leader. It catches a slow failover, lost requests, and a former leader that writes
// after it resumes. Package storm kills a leader.
func TestFailoverLosesNoRequest(t *testing.T) {
	harness.Parallel(t)
	audit := harness.NewAuditLog(t, writesOfKubejoin)
	s := harness.NewSite(t, cluster.Options{APIServerFlags: audit.Flags()})
	l := harness.NewLedger(t, s.Cluster)
	first := s.Program
	first.WaitLeader(t)
	s.Start(t)
	second := s.Program
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var m minted
	bearer := second.Bearer(t)
	machine := harness.AsMachine(t, s.Cluster)

	// Suspend the leader in the middle of 100 requests, until the other replica has handled them and tokens were
	// deleted.
	stop := m.probe(ctx, t, second, bearer)
	r := startRush(ctx, t, "stopped", 50, 100, func(ctx context.Context) error {
		_, err := m.ask(ctx, second, bearer)
		return err
	}, machine)
	r.middle(t)
	must.OK(t, first.Signal(syscall.SIGSTOP))
	r.finish()
	suspended := time.Now()
	took := second.WaitLeader(t)
	r.asking.Wait()
	last := l.WaitIssued(t, r.names)
	t.Logf("suspended: the other replica led after %s, the last of %d certificates was issued after %s", took.Round(time.Millisecond), len(r.names), last.Sub(suspended).Round(time.Millisecond))
	// 20 s are enough on an idle machine. On a busy machine, the first half already took longer.
	if most := 20*time.Second + 5*r.usual; last.Sub(suspended) > most {
		t.Errorf("last certificate issued %s after the leader was suspended, want at most %s", last.Sub(suspended), most)
	}
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

	time.Sleep(time.Until(suspended.Add(time.Minute))) // longer than kubejoin keeps any cached state
	writes := countClusterInfoWrites(t, s)
	must.OK(t, first.Signal(syscall.SIGCONT))
	time.Sleep(10 * time.Second)
	if n := writes(); n != 0 {
		t.Errorf("got %d writes of cluster-info after the old leader resumed, want none", n)
	}
	harness.Wait(t, "the old leader to step down", func() error {
		if strings.Contains(first.Metrics(t), "\nkubejoin_leader 1\n") {
			return fmt.Errorf("it still leads")
		}
		return nil
	})
	if harness.Metric(t, second.Metrics(t), "kubejoin_leader") != 1 {
		t.Error("the new leader lost the lead, want it to keep it")
	}
	// Both replicas must still return join commands.
	for _, p := range []*harness.Program{first, second} {
		if _, err := m.ask(ctx, p, bearer); err != nil {
			t.Error(err)
		}
	}
	m.check(t, s.Client())
	l.Check(t)
	checkRequests(t, audit)
}

// countClusterInfoWrites counts the writes of cluster-info from now on.
func countClusterInfoWrites(t *testing.T, s *harness.Site) (count func() int) {
	t.Helper()
	api := s.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	now := must.Value(api.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{}))(t)
	w := must.Value(api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: now.ResourceVersion, FieldSelector: "metadata.name=" + clusterinfo.Name}))(t)
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
				t.Logf("cluster-info version %s: %d keys added, %d removed", object.ResourceVersion, gained, lost)
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

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/etcd"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// put writes with a timeout, so that a member that does not respond is an error.
func put(t *testing.T, client *clientv3.Client, key, value string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := client.Put(ctx, key, value)
	return err
}

// eventually calls do until it succeeds.
func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newNetwork(t *testing.T, c *etcd.Cluster) (*etcd.Network, *clientv3.Client) {
	t.Helper()
	n, err := c.Network()
	must(t, err)
	t.Cleanup(n.Close)
	client, err := c.NewClient("kubejoin", n.Endpoints())
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return n, client
}

func TestOneMember(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := etcd.ForTest(t, etcd.Options{Quota: 2 << 20})
	t.Logf("one member is ready after %s", time.Since(began).Round(time.Millisecond))
	n, client := newNetwork(t, c)
	must(t, put(t, client, "a", "1"))

	other, second := newNetwork(t, c)
	_ = other
	n.Cut()
	if err := put(t, client, "a", "2"); err == nil {
		t.Error("a write succeeded on a network that is cut")
	}
	must(t, put(t, second, "b", "1")) // another client is not cut
	n.Heal()
	eventually(t, "write after Heal", func() error { return put(t, client, "a", "3") })

	n.Drop()
	if err := put(t, client, "a", "4"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write without packets: got %v, want a timeout", err)
	}
	n.Heal()
	eventually(t, "write after Heal", func() error { return put(t, client, "a", "5") })
	n.Delay(50 * time.Millisecond)
	began = time.Now()
	must(t, put(t, client, "a", "6"))
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("write took %s on a network with a delay of 50ms", took)
	}
	n.Heal()

	must(t, c.FillSpace(t.Context()))
	if err := put(t, client, "a", "7"); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("write without space: got %v", err)
	}
	must(t, c.ClearSpace(t.Context()))
	must(t, put(t, client, "a", "8"))

	c.Kill(0)
	if err := put(t, client, "a", "9"); err == nil {
		t.Error("a write succeeded without etcd")
	}
	must(t, c.Restart(t.Context(), 0))
	eventually(t, "read after a restart", func() error {
		got, err := client.Get(t.Context(), "a")
		if err == nil && (len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "8") {
			t.Fatalf("after a restart: got %v, want what was written before", got.Kvs)
		}
		return err
	})
}

func TestThreeMembers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := etcd.ForTest(t, etcd.Options{Members: 3})
	t.Logf("three members are ready after %s", time.Since(began).Round(time.Millisecond))
	_, client := newNetwork(t, c)
	must(t, put(t, client, "a", "1"))

	first, err := c.Leader(t.Context())
	must(t, err)
	must(t, c.Pause(first))
	eventually(t, "write while the leader is paused", func() error { return put(t, client, "a", "2") })
	second, err := c.Leader(t.Context())
	must(t, err)
	if second == first {
		t.Errorf("member %d leads while it is paused", first)
	}
	must(t, c.Resume(first))
	must(t, c.WaitReady(t.Context(), first))

	c.Kill(second)
	eventually(t, "write after the leader was killed", func() error { return put(t, client, "a", "3") })
	must(t, c.Replace(t.Context(), second))
	must(t, c.Defragment(t.Context(), second))
	must(t, c.Compact(t.Context(), 0))
	c.Kill(first)
	eventually(t, "write with the replaced member", func() error { return put(t, client, "a", "4") })
	must(t, c.Restart(t.Context(), first))
}

// TestFaultsFailBeforeAndAfterTheyTakeEffect catches faults that lose only calls, or only responses.
func TestFaultsFailBeforeAndAfterTheyTakeEffect(t *testing.T) {
	t.Parallel()
	c := etcd.ForTest(t, etcd.Options{})
	n, _ := newNetwork(t, c)
	f, err := c.Faults(n, "kubejoin", 1, 0.3)
	must(t, err)
	t.Cleanup(f.Close)
	client, err := c.NewClient("kubejoin", f.Endpoints())
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	failed, effective := 0, 0
	for i := range 200 {
		key := fmt.Sprint("key-", i)
		err := put(t, client, key, "1")
		got, getErr := c.Client().Get(t.Context(), key)
		must(t, getErr)
		switch {
		case err == nil && len(got.Kvs) == 0:
			t.Fatalf("the write of %s succeeded, but had no effect", key)
		case err != nil:
			failed++
			effective += len(got.Kvs)
		}
	}
	counts := f.Counts()
	t.Logf("%d of 200 writes failed, %d of them after they took effect: %+v", failed, effective, counts)
	if effective == 0 || effective == failed || counts.After == 0 || counts.Before == 0 {
		t.Error("want failures before and after the effect")
	}

	// Watches pass.
	f.SetRate(0)
	watch := client.Watch(t.Context(), "watched")
	eventually(t, "event of a watch", func() error {
		must(t, put(t, client, "watched", "1"))
		select {
		case events := <-watch:
			return events.Err()
		case <-time.After(time.Second):
			return errors.New("no event")
		}
	})
}

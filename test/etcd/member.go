package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

type member struct {
	name          string
	address, peer string // addresses for clients and for other members
	process       *cluster.Process
}

// launch starts the process of a member. state is etcd's --initial-cluster-state, which etcd ignores if the member has data.
func (c *Cluster) launch(m *member, state string) error {
	var all []string
	for _, other := range c.members {
		all = append(all, other.name+"="+other.peer)
	}
	args := []string{
		"--name=" + m.name,
		"--data-dir=" + c.file(m.name),
		"--listen-client-urls=https://" + m.address,
		"--advertise-client-urls=https://" + m.address,
		"--listen-peer-urls=" + m.peer,
		"--initial-advertise-peer-urls=" + m.peer,
		"--initial-cluster=" + strings.Join(all, ","),
		"--initial-cluster-state=" + state,
		"--client-cert-auth",
		"--trusted-ca-file=" + c.file("ca.crt"),
		"--cert-file=" + c.file("server.crt"),
		"--key-file=" + c.file("server.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + c.file("ca.crt"),
		"--peer-cert-file=" + c.file("server.crt"),
		"--peer-key-file=" + c.file("server.key"),
		"--auto-compaction-retention=5m", // kubejoin does not compact
		"--logger=zap", "--log-level=warn",
	}
	if !c.options.Sync {
		args = append(args, "--unsafe-no-fsync")
	}
	if c.options.Quota > 0 {
		args = append(args, "--quota-backend-bytes="+strconv.FormatInt(c.options.Quota, 10))
	}
	var err error
	m.process, err = cluster.StartProcess(m.name, c.file(m.name+".log"), exec.Command(c.program, args...))
	return err
}

// WaitReady waits until a member serves linearizable reads.
func (c *Cluster) WaitReady(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v", startTimeout))
	defer cancel()
	m := c.members[i]
	return m.process.WaitFor(ctx, func(ctx context.Context) error { return c.ready(ctx, m) })
}

func (c *Cluster) ready(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.address+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("/readyz: %d %s", response.StatusCode, body)
	}
	return err
}

// Kill kills a member with SIGKILL.
func (c *Cluster) Kill(i int) { c.members[i].process.Stop(0) }

// Restart starts a killed member with its data, and waits until it is ready. A member without a quorum never becomes ready:
// start such members with [Cluster.Launch].
func (c *Cluster) Restart(ctx context.Context, i int) error {
	if err := c.Launch(i); err != nil {
		return err
	}
	return c.WaitReady(ctx, i)
}

// Launch is like [Cluster.Restart], but does not wait.
func (c *Cluster) Launch(i int) error {
	select {
	case <-c.members[i].process.Done():
	default:
		return fmt.Errorf("%s runs already", c.members[i].name)
	}
	return c.launch(c.members[i], "new")
}

// Pause stops the process of a member with SIGSTOP. Its connections stay open and silent.
func (c *Cluster) Pause(i int) error { return c.members[i].process.Signal(syscall.SIGSTOP) }

// Resume continues a paused member.
func (c *Cluster) Resume(i int) error { return c.members[i].process.Signal(syscall.SIGCONT) }

// Leader waits until the members that respond have a leader, and returns its index.
func (c *Cluster) Leader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no leader after %v", startTimeout))
	defer cancel()
	for {
		leader, term := -1, uint64(0)
		for i := range c.members {
			// A member that was paused may still report itself as leader of an old term.
			status, err := c.status(ctx, i)
			if err == nil && status.RaftTerm > term {
				leader, term = -1, status.RaftTerm
			}
			if err == nil && status.RaftTerm == term && status.Leader == status.Header.MemberId {
				leader = i
			}
		}
		if leader >= 0 {
			return leader, nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Cluster) status(ctx context.Context, i int) (*clientv3.StatusResponse, error) {
	select {
	case <-c.members[i].process.Done():
		return nil, fmt.Errorf("%s has ended", c.members[i].name)
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.client.Status(ctx, "https://"+c.members[i].address)
}

// Defragment defragments the database of a member. The member does not respond meanwhile.
func (c *Cluster) Defragment(ctx context.Context, i int) error {
	_, err := c.client.Defragment(ctx, "https://"+c.members[i].address)
	return err
}

// Replace kills a member, removes it from the cluster, and adds a new member with its name and addresses, but without
// its data. It waits until the new member is ready.
func (c *Cluster) Replace(ctx context.Context, i int) error {
	m := c.members[i]
	members, err := c.client.MemberList(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(members.Members, func(of *etcdserverpb.Member) bool { return of.Name == m.name })
	if at < 0 {
		return fmt.Errorf("%s is not a member", m.name)
	}
	c.Kill(i)
	// etcd refuses these changes while it is not certain that enough members are connected.
	if err := retry(ctx, func(ctx context.Context) error {
		_, err := c.client.MemberRemove(ctx, members.Members[at].ID)
		if errors.Is(err, rpctypes.ErrMemberNotFound) { // an earlier attempt, whose response was lost, has removed it
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("removing %s: %w", m.name, err)
	}
	if err := retry(ctx, func(ctx context.Context) error {
		_, err := c.client.MemberAdd(ctx, []string{m.peer})
		if errors.Is(err, rpctypes.ErrPeerURLExist) || errors.Is(err, rpctypes.ErrMemberExist) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("adding %s: %w", m.name, err)
	}
	if err := os.RemoveAll(c.file(m.name)); err != nil {
		return err
	}
	if err := c.launch(m, "existing"); err != nil {
		return err
	}
	return c.WaitReady(ctx, i)
}

// retry calls do until it succeeds, at most for startTimeout.
func retry(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := try(ctx, do)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// try calls do with a timeout.
func try(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return do(ctx)
}

// PIDs returns the process IDs of the members.
func (c *Cluster) PIDs() (all []int) {
	for _, m := range c.members {
		all = append(all, m.process.PID())
	}
	return all
}

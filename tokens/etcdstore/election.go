package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"crypto/rand"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// leaseSeconds is how long a replica stays leader in etcd after its last renewal.
const leaseSeconds = 10

// Lead runs lead on only one replica at a time, until ctx ends or lead fails. It waits until this replica leads, calls
// lead, and gives up the leadership when lead returns. If the replica cannot renew its leadership, Lead cancels lead and
// waits to lead again. For a short time, lead may run on two replicas, so it must be safe then.
func (s *Store) Lead(ctx context.Context, lead func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	identity := host + "_" + rand.Text()[:8]
	pause := minPause
	for ctx.Err() == nil {
		led, failure, err := s.term(ctx, identity, lead)
		if failure != nil {
			return failure
		}
		if ctx.Err() != nil {
			break
		}
		if led {
			pause = minPause
		} else if pause == maxPause {
			s.log.Warn("cannot take part in the leader election; retrying", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
	return nil
}

// term waits until this replica leads. It runs lead until lead returns, ctx ends or the leadership is lost. failure is the
// error of lead.
func (s *Store) term(ctx context.Context, identity string, lead func(context.Context) error) (led bool, failure, err error) {
	// The session outlives ctx, so that this replica leads until lead has ended.
	hold, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	var session *concurrency.Session
	if err := s.kv.call(ctx, func(limited context.Context) error {
		lease, err := s.kv.client.Grant(limited, leaseSeconds)
		if err != nil {
			return err
		}
		session, err = concurrency.NewSession(s.kv.client, concurrency.WithLease(lease.ID), concurrency.WithContext(hold))
		return err
	}); err != nil {
		return false, nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(hold, callTimeout)
		defer cancel()
		// A failure is harmless: the lease ends by itself.
		_, _ = s.kv.client.Revoke(ctx, session.Lease())
		session.Orphan()
	}()
	waiting, stopWaiting := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stopWaiting()
	go func() {
		select {
		case <-session.Done():
			stopWaiting()
		case <-waiting.Done():
		}
	}()
	election := concurrency.NewElection(session, s.kv.prefix+leaderFolder)
	if err := election.Campaign(waiting, identity); err != nil {
		return false, nil, s.kv.explain(ctx, err)
	}
	stopWaiting()
	work, stop := context.WithCancel(ctx)
	defer stop()
	lost := make(chan struct{})
	go func() {
		select {
		case <-session.Done():
			close(lost)
			stop()
		case <-work.Done():
		}
	}()
	s.log.Info("became leader", "identity", identity)
	failure = lead(work)
	select {
	case <-lost:
		failure = nil
		s.log.Warn("lost the leadership", "identity", identity)
	default:
		s.log.Info("no longer leader", "identity", identity)
	}
	if errors.Is(failure, context.Canceled) {
		failure = nil
	}
	return true, failure, nil
}

// ErrNoLeader means that no replica is the leader.
var ErrNoLeader = errors.New("no kubejoin replica leads")

// Leader returns the identity of the replica that leads. The error wraps [ErrNoLeader] if there is none.
func (s *Store) Leader(ctx context.Context) (identity string, err error) {
	err = s.kv.call(ctx, func(ctx context.Context) error {
		got, err := s.kv.client.Get(ctx, s.kv.prefix+leaderFolder+"/", clientv3.WithFirstCreate()...)
		if err == nil && len(got.Kvs) > 0 {
			identity = string(got.Kvs[0].Value)
		}
		return err
	})
	if err == nil && identity == "" {
		err = ErrNoLeader
	}
	return identity, err
}

package mint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/tokens"
)

// signed waits for a token's signature until wait ends or the token expires. It returns how to join with the
// signed cluster-info. client is the context of the caller. after is the timeout of wait, for error messages.
func (m *Minter) signed(wait, client context.Context, record tokens.Record, after time.Duration) (joinformat.Join, error) {
	t := record.Token
	if !record.Expires.IsZero() {
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(wait, record.Expires)
		defer cancel()
	}
	kubeconfig, err := m.ClusterInfo.WaitSigned(wait, t)
	if err == nil {
		return m.join(kubeconfig, record)
	}
	var e *Error
	switch {
	case client.Err() != nil:
		ended := "canceled"
		if errors.Is(client.Err(), context.DeadlineExceeded) {
			ended = "deadline exceeded"
		}
		e = Failure(ended+" before a signature of the new token appeared in cluster-info", nil)
	case record.Expired(time.Now()):
		e = errorf(NotSigned, "the new token expired at %s, before its signature appeared in cluster-info; request a longer ttl", record.Expires.UTC().Format(time.RFC3339))
	case wait.Err() == nil:
		return joinformat.Join{}, err
	default:
		why := "the signer should be " + m.signedBy()
		if full := m.full(); full != nil {
			why = full.Message
		}
		e = errorf(NotSigned, "no signature of the new token appeared in cluster-info within %s; %s", after, why)
	}
	e.Err = err
	return joinformat.Join{}, e
}

// awaitSigned waits for the signature of a stored token, if it has the usage signing. It returns how to join, which is
// zero unless the token has both usages. It does not wait if wait is zero or the token is spent: cluster-info may have
// lost the signature of a spent token.
func (m *Minter) awaitSigned(ctx context.Context, record tokens.Record, wait time.Duration) (joinformat.Join, error) {
	if !record.Signing || record.Spent() || wait == 0 {
		return m.unsignedJoin(ctx, record), nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	join, err := m.signed(waiting, ctx, record, wait)
	if err == nil && !record.Authentication {
		return joinformat.Join{}, nil
	}
	if err == nil {
		if _, err = join.Line(); err == nil {
			return join, nil
		}
	}
	var e *Error
	if !errors.As(err, &e) {
		e = errorf(NotSigned, "cluster-info has no signature by the new token; the signer should be %s", m.signedBy())
		e.Err = err
	}
	e.TokenID = record.Token.ID()
	e.Fate = fmt.Sprintf("Token %s was created nevertheless and %s", e.TokenID, record.Lifetime(time.Now()))
	return joinformat.Join{}, e
}

// checkClusterInfo returns an error if the token would sign cluster-info, but no machine can join with the
// kubeconfig in it. A missing kubeconfig is no error here: the signer may add one.
func (m *Minter) checkClusterInfo(ctx context.Context, record tokens.Record) error {
	if !record.Signing {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	kubeconfig, err := m.ClusterInfo.Config(ctx)
	if err != nil || len(kubeconfig) == 0 {
		return nil
	}
	_, err = m.read(kubeconfig)
	return err
}

// unsignedJoin returns how to join with a token without waiting for its signature. It is zero unless the token has both
// usages and cluster-info can be read.
func (m *Minter) unsignedJoin(ctx context.Context, record tokens.Record) joinformat.Join {
	if !record.Signing || !record.Authentication {
		return joinformat.Join{}
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	kubeconfig, err := m.ClusterInfo.Config(ctx)
	if err != nil {
		return joinformat.Join{}
	}
	join, err := m.join(kubeconfig, record)
	if err == nil {
		_, err = join.Line()
	}
	if err != nil {
		return joinformat.Join{}
	}
	return join
}

// join returns how to join with a token and a kubeconfig.
func (m *Minter) join(kubeconfig []byte, record tokens.Record) (joinformat.Join, error) {
	known, err := m.read(kubeconfig)
	if err != nil {
		return joinformat.Join{}, err
	}
	j := known.join
	j.Token, j.CAs = record.Token, slices.Clone(j.CAs) // a caller may change them
	j.JoiningTaint = record.Limits.Node.ReadyAfter != ""
	return j, nil
}

// Discovery returns how a machine finds the cluster, without a token. The error is an [Error].
func (m *Minter) Discovery(ctx context.Context) (joinformat.Join, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	kubeconfig, err := m.ClusterInfo.Config(ctx)
	if err != nil {
		return joinformat.Join{}, Failure("cluster-info cannot be read now; retry", err)
	}
	return m.join(kubeconfig, tokens.Record{})
}

// A target is how to join with a kubeconfig, without a token.
type target struct {
	kubeconfig []byte
	join       joinformat.Join // without the token
}

// read returns the target of a kubeconfig. It caches the last target, because the kubeconfig rarely changes.
func (m *Minter) read(kubeconfig []byte) (*target, error) {
	if last := m.target.Load(); last != nil && bytes.Equal(last.kubeconfig, kubeconfig) {
		return last, nil
	}
	api, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return nil, MalformedError(err)
	}
	t := &target{kubeconfig: bytes.Clone(kubeconfig), join: joinformat.Join{Endpoint: m.Endpoint, Server: api, CAs: cas}}
	if t.join.Endpoint == "" {
		if t.join.Endpoint, err = clusterinfo.JoinEndpoint(api); err != nil {
			return nil, MalformedError(fmt.Errorf("no join command can name its server: %w; give --advertise HOST:PORT to kubejoin serve, or --api-server with another address", err))
		}
	}
	m.target.Store(t)
	return t, nil
}

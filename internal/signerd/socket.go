package signerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/signer/config"
)

// A peerConn is a connection over a Unix socket, and the user on its other end.
type peerConn struct {
	net.Conn
	uid int
}

// Client returns the user for [httplimit.Connections], so that each user has a share.
func (c peerConn) Client() string { return strconv.Itoa(c.uid) }

// A peerListener accepts only users in the policy.
type peerListener struct {
	*net.UnixListener
	h *handler
	// overflow is the user ID that Linux reports for every user that the user namespace of this process does not map.
	overflow int
}

// Accept immediately closes connections of users that are not in the policy, so that they cannot use up connections.
func (l peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		switch _, found := l.h.policy().Of(uid); {
		case err != nil:
		case uid == l.overflow:
			err = fmt.Errorf("uid %d stands for every user of another user namespace: run this process without one, in systemd with PrivateUsers=no", uid)
		case found:
			return peerConn{conn, uid}, nil
		default:
			err = fmt.Errorf("the policy has no requester with uid %d", uid)
		}
		_ = conn.Close() // the peer learns nothing
		l.h.refuse("socket", err)
	}
}

// overflowUID returns the user ID that Linux reports for users that the user namespace of this process does not map.
func overflowUID() int {
	content, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if uid, parseErr := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && parseErr == nil {
		return uid
	}
	return config.OverflowUID
}

// listenUnix opens a socket that every user may connect to, because Accept checks the user. It replaces an old socket on
// which no process listens.
func listenUnix(ctx context.Context, path string, h *handler) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("%s exists and is no socket", path)
	default:
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			_ = conn.Close() // it was only a test whether a process listens
			return nil, fmt.Errorf("another process listens on %s", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // see above
		return nil, errors.Join(err, listener.Close())
	}
	return peerListener{listener, h, overflowUID()}, nil
}

type peerKey struct{}

// withPeer implements [http.Server.ConnContext]: it stores the user ID of the peer.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if p, ok := conn.(peerConn); ok {
		return context.WithValue(ctx, peerKey{}, p.uid)
	}
	return ctx
}

// ofPeer returns the requester of a connection. The policy may have changed since Accept.
func ofPeer(r *http.Request, p *config.Policy) (config.Requester, error) {
	uid, ok := r.Context().Value(peerKey{}).(int)
	if !ok {
		return config.Requester{}, errors.New("unknown user of the socket")
	}
	q, found := p.Of(uid)
	if !found {
		return q, fmt.Errorf("the policy has no requester with uid %d", uid)
	}
	return q, nil
}

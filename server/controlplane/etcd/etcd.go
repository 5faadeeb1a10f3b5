// Package etcd finds learners: new members of a stacked etcd that do not vote yet. etcd accepts one learner at a time.
// So the learner of a control plane that died during its join blocks all other joins. The package calls the JSON API of
// etcd.
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/controlplane"
)

const (
	// answerTimeout limits how long a learner's etcd may take to accept a connection.
	answerTimeout = 2 * time.Second
	maxResponse   = 1 << 20
)

// Members finds and removes learners in the etcd of the control plane on this machine.
type Members struct {
	// Dir is the folder of the certificates, usually /etc/kubernetes/pki. Members reads apiserver-etcd-client.crt,
	// apiserver-etcd-client.key and etcd/ca.crt in it for each call.
	Dir string
	// Port is the port of etcd on this machine; empty is 2379.
	Port string
	// Log gets a line for each removed learner.
	Log *slog.Logger
}

// A member is a member of etcd in its JSON API.
type member struct {
	ID        string   `json:"ID"` // a decimal number
	PeerURLs  []string `json:"peerURLs"`
	IsLearner bool     `json:"isLearner"`
}

// RemoveLearner removes the learner with the address of gone, and returns the peer URL of a learner that stays; empty
// if none stays. It never removes a member that votes. ended means that kubeadm has ended on that machine. Without
// ended, the learner stays if its etcd runs or may run. Without etcd on this machine there are no learners.
func (m Members) RemoveLearner(ctx context.Context, gone controlplane.Machine, ended bool) (stays string, err error) {
	client, err := m.client()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // no stacked etcd
	}
	if err != nil {
		return "", fmt.Errorf("certificates of etcd: %w", err)
	}
	defer client.CloseIdleConnections()
	members, err := m.list(ctx, client)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "", nil // etcd or kubejoin is on other machines
	}
	if err != nil {
		return "", err
	}
	for _, learner := range members {
		if !learner.IsLearner {
			continue
		}
		peer, of := learner.address()
		removed := false
		if of.IsValid() && of.Addr() == parseAddress(gone.Address) && (ended || silent(ctx, of)) {
			if removed, err = m.remove(ctx, client, learner, gone); err != nil {
				return "", err
			}
		}
		if !removed {
			stays = peer
		}
	}
	return stays, nil
}

// address returns the peer URL of a member and its address, which is the zero value if it is not known.
func (l member) address() (peer string, address netip.AddrPort) {
	peer = strings.Join(l.PeerURLs, ",")
	if u, err := url.Parse(peer); err == nil {
		address, _ = netip.ParseAddrPort(u.Host) // fails for more than one URL, and for a host name
	}
	return peer, netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
}

// parseAddress parses an IP address. It returns the zero value if s is not an address.
func parseAddress(s string) netip.Addr {
	address, _ := netip.ParseAddr(s)
	return address.Unmap()
}

// silent reports whether no etcd runs at an address, because its machine does not respond or refuses the
// connection. After another error, for example of the network of this machine, etcd may run.
func silent(ctx context.Context, address netip.AddrPort) bool {
	conn, err := (&net.Dialer{Timeout: answerTimeout}).DialContext(ctx, "tcp", address.String())
	if err == nil {
		_ = conn.Close()
		return false
	}
	var timeout net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.As(err, &timeout) && timeout.Timeout()
}

// remove removes a learner, unless the member votes by now. It reports whether the member is no longer a learner.
func (m Members) remove(ctx context.Context, client *http.Client, learner member, gone controlplane.Machine) (bool, error) {
	members, err := m.list(ctx, client)
	if err != nil {
		return false, err
	}
	for _, now := range members {
		if now.ID != learner.ID {
			continue
		}
		if !now.IsLearner {
			return true, nil // the member is no longer a learner
		}
		if err := m.call(ctx, client, "remove", map[string]string{"ID": learner.ID}, &struct{}{}); err != nil {
			return false, err
		}
		m.Log.LogAttrs(ctx, slog.LevelWarn, "removed the etcd learner of a control plane that did not join",
			slog.String("node", gone.Node), slog.String("address", gone.Address), slog.String("member", learner.ID))
	}
	return true, nil
}

// list returns all members. It asks the leader of etcd, because the member on this machine may lag.
func (m Members) list(ctx context.Context, client *http.Client) ([]member, error) {
	var response struct {
		Members []member `json:"members"`
	}
	err := m.call(ctx, client, "list", map[string]bool{"linearizable": true}, &response)
	if err == nil && len(response.Members) == 0 {
		err = errors.New("etcd returned no members")
	}
	return response.Members, err
}

func (m Members) call(ctx context.Context, client *http.Client, method string, body, response any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://localhost/v3/cluster/member/"+method, bytes.NewReader(content))
	if err != nil {
		return err
	}
	got, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer got.Body.Close()
	content, err = io.ReadAll(io.LimitReader(got.Body, maxResponse))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: member %s: HTTP %d: %.300q", method, got.StatusCode, content)
	}
	if err := json.Unmarshal(content, response); err != nil {
		return fmt.Errorf("etcd: member %s: %w", method, err)
	}
	return nil
}

// client returns a client with the credentials of kube-apiserver. kubeadm's etcd listens at 127.0.0.1 or, in a cluster
// with IPv6 addresses, at ::1.
func (m Members) client() (*http.Client, error) {
	ca, err := os.ReadFile(filepath.Join(m.Dir, "etcd", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots, err := pemfile.Pool(ca)
	if err != nil {
		return nil, fmt.Errorf("etcd/ca.crt: %w", err)
	}
	certificate, err := pemfile.LoadKeyPair(filepath.Join(m.Dir, "apiserver-etcd-client.crt"), filepath.Join(m.Dir, "apiserver-etcd-client.key"))
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			port := cmp.Or(m.Port, "2379")
			conn, err := (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
			if errors.Is(err, syscall.ECONNREFUSED) {
				if conn, err6 := (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("::1", port)); err6 == nil {
					return conn, nil
				}
			}
			return conn, err
		},
	}}, nil
}

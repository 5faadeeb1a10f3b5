// Package rejoining is the machine's side of a rejoin: it signs a challenge of a kubejoin server with the key of the
// node, and writes the bootstrap kubeconfig that it gets. Package signer/rejoin is the other side.
package rejoining

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
)

// mark is the first line of a bootstrap kubeconfig that Rejoin writes. A later run removes only such a file.
const mark = "# written by kubejoin rejoin; removed by it when the certificate is valid again\n"

// A Server is the kubejoin server that a machine asks.
type Server struct {
	*client.Client
	// Host is the host of the URL, in lower case and without port or brackets. It is signed.
	Host string
	// Wait is how long to retry while the server does not respond or cannot decide.
	Wait time.Duration
	// Waits, if set, is called before each retry.
	Waits func(error)
}

// ErrTimeout is wrapped if the server did not decide within Wait.
var ErrTimeout = errors.New("no decision in time")

// Fresh reports whether a certificate is still valid at the time now, with a margin.
func (c *Credential) Fresh(now time.Time, margin time.Duration) bool {
	return c.Leaf != nil && now.Add(margin).Before(c.Leaf.NotAfter)
}

// Rejoin requests a bootstrap kubeconfig with a credential, and writes it to a file.
func (s *Server) Rejoin(ctx context.Context, c *Credential, file string) error {
	to, err := atomicfile.Prepare(file)
	if err != nil {
		return err
	}
	defer to.Drop()
	var kubeconfig []byte
	err = s.retry(ctx, func(challenge string) error {
		req, err := s.signed(c, challenge, proof.Rejoin(challenge, c.Node, s.Host))
		if err == nil {
			kubeconfig, err = s.Client.Rejoin(ctx, req)
		}
		return err
	})
	if err != nil {
		return err
	}
	return to.Write(append([]byte(mark), kubeconfig...), 0o600)
}

// Bind binds the public key of another key to the node, with the certificate of the node. It returns the ID of the key.
func (s *Server) Bind(ctx context.Context, c *Credential, key crypto.Signer) (id string, err error) {
	public, err := PublicPEM(key)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(public)
	sum := sha256.Sum256(block.Bytes)
	want := "sha256:" + hex.EncodeToString(sum[:])
	err = s.retry(ctx, func(challenge string) error {
		req, err := s.signed(c, challenge, proof.Bind(challenge, c.Node, s.Host, want))
		if err != nil {
			return err
		}
		bound, err := s.BindKey(ctx, api.BindKey{Rejoin: req, Key: api.Text(public)})
		id = bound.Key
		return err
	})
	return id, err
}

// Clean removes a bootstrap kubeconfig that Rejoin has written. It reports whether there was one.
func Clean(file string) (bool, error) {
	content, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(content, []byte(mark)) {
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	return true, os.Remove(file)
}

func (s *Server) signed(c *Credential, challenge string, text []byte) (api.Rejoin, error) {
	signature, err := proof.Sign(c.Key, text)
	if err != nil {
		return api.Rejoin{}, err
	}
	req := api.Rejoin{Challenge: api.Text(challenge), Server: api.Text(s.Host), Signature: api.Text(base64.StdEncoding.EncodeToString(signature))}
	if c.Leaf != nil {
		req.Certificate = api.Text(c.Chain)
		return req, nil
	}
	public, err := PublicPEM(c.Key)
	req.Node, req.PublicKey = api.Text(c.Node), api.Text(public)
	return req, err
}

// retryDelay is the delay before a retry, unless the server gives another one.
const retryDelay = 2 * time.Second

// retry calls try with a new challenge until it succeeds, is refused, or Wait is over.
func (s *Server) retry(ctx context.Context, try func(challenge string) error) error {
	deadline := time.Now().Add(s.Wait)
	for {
		challenge, err := s.RejoinChallenge(ctx)
		if err == nil {
			err = try(challenge.Challenge)
		}
		if err == nil {
			return nil
		}
		delay := retryDelay
		var p *api.Problem
		if errors.As(err, &p) {
			switch {
			case p.Reason == "ChallengeInvalid", p.Reason == "ChallengeUsed": // of another replica, or slower than another request
			case p.Status == 429, p.Status >= 500:
				delay = max(delay, p.RetryAfter)
			default:
				return err
			}
		}
		if ctx.Err() != nil {
			return err
		}
		if time.Now().Add(delay).After(deadline) {
			return fmt.Errorf("%w: %w", ErrTimeout, err)
		}
		if s.Waits != nil {
			s.Waits(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
	}
}

package etcd

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
)

// prefixes is the number of the last store with its own prefix.
var prefixes atomic.Int64

// Store opens a store with its own prefix, and closes it when the test ends.
func (c *Cluster) Store(t testing.TB) *etcdstore.Store {
	t.Helper()
	return c.StoreAt(t, fmt.Sprintf("/test/%d", prefixes.Add(1)))
}

// StoreAt opens a store with a prefix that other stores may share.
func (c *Cluster) StoreAt(t testing.TB, prefix string) *etcdstore.Store {
	t.Helper()
	s := must.Value(etcdstore.Open(t.Context(), c.StoreConfig(t, prefix)))(t)
	t.Cleanup(func() { _ = s.Close() }) // the test may have closed it
	return s
}

// StoreConfig returns the configuration of a store that connects to all members.
func (c *Cluster) StoreConfig(t testing.TB, prefix string) etcdstore.Config {
	t.Helper()
	files := must.Value(c.User("root"))(t)
	return etcdstore.Config{Endpoints: c.Endpoints(), CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key, Prefix: prefix}
}

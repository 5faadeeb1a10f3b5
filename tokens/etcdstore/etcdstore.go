// Package etcdstore stores bootstrap tokens, claims, revocations, the issuance record and the CA rotation in etcd, for
// several replicas of kubejoin without Kubernetes. It never uses the keys of Kubernetes.
//
// Live reads are linearizable. Caches follow etcd with watches. One transaction writes a claim and the count of its token.
// Package tokens/rowstore defines the rows.
//
// etcd contains the token secrets in clear text. It does not contain the CA key. During a rotation, it contains the key of
// the new CA, encrypted with the key of the old CA.
package etcdstore

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A Store is a [tokens.Store] in etcd. [Open] creates it. Rows have the revision of their last change as Version.
type Store struct {
	*rowstore.Store
	kv     kv
	log    *slog.Logger
	schema atomic.Pointer[schema]

	stop      context.CancelFunc // ends the mirrors
	following sync.WaitGroup     // the mirrors
	refusing  atomic.Pointer[error]

	mirrors []*mirror
}

// Package stores imports the store that no example uses, so that go.sum lists the modules of this store.
package stores

import _ "github.com/kubejoin/kubejoin/tokens/etcdstore"

// Package stores imports the store that no program here uses, so that go.sum has its modules.
package stores

import _ "github.com/kubejoin/kubejoin/tokens/etcdstore"

package admission_test

import (
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// hookBeforeCount returns a store of c that calls do when the count of a token is about to be written.
func (c *cluster) hookBeforeCount(do func()) tokens.Store {
	return storetest.After(func() error { do(); return nil }, "Store.Update.change").Store(store{cluster: c})
}

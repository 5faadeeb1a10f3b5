package admission_test

import (
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// hookBeforeCount makes an admission call do when the count of a token is about to be written.
func (c *cluster) hookBeforeCount(n *admission.Nodes, do func()) {
	n.Tokens = storetest.After(func() error { do(); return nil }, "Store.Update.change").Store(n.Tokens)
	n.Claims = secretstore.Steps{Claims: n.Claims.(secretstore.Steps).Claims, Tokens: n.Tokens}
}

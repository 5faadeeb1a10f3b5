package boltrecord

import (
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// Decode returns the entry of a row that Append wrote. Its errors never contain the entry.
func Decode(row boltstore.Row) (issuance.Entry, error) { return decode(row) }

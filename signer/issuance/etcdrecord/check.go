package etcdrecord

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
)

// Decode returns the entry of a value that Append wrote, and the row that Append wrote it with. A check of the store
// compares the row with the indexes. The errors never contain the value.
func Decode(value []byte) (e issuance.Entry, row etcdstore.IssuedRow, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if d.Decode(&e) != nil || e.Check() != nil {
		return e, row, errors.New("invalid issuance entry")
	}
	row = etcdstore.IssuedRow{Time: e.Time, Value: value, Serial: e.Serial}
	if e.Outcome == issuance.Issued {
		row.Ends = e.NotAfter
	}
	for _, node := range []string{e.Node, nodeOf(e.Requester)} {
		if node != "" && len(node) <= maxIndexed && !strings.ContainsAny(node, "/\n") {
			row.Nodes = append(row.Nodes, node)
		}
	}
	if tokens.CheckID(e.TokenID) == nil {
		row.TokenID = e.TokenID
	}
	return e, row, nil
}

package operations

import (
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// Claims returns claims as the API shows them. revoked has the names of revoked nodes.
func Claims(claims []tokens.Claim, revoked map[string]bool) api.ClaimList {
	list := api.ClaimList{APIVersion: api.GroupVersion, Kind: api.KindClaimList, Items: make([]api.Claim, len(claims))}
	for i, c := range claims {
		list.Items[i] = Claim(c)
		list.Items[i].Revoked = revoked[c.Node]
	}
	return list
}

// Claim returns a claim as the API shows it.
func Claim(c tokens.Claim) api.Claim {
	return api.Claim{
		APIVersion: api.GroupVersion, Kind: api.KindClaim,
		Node: c.Node, Token: c.TokenID, Created: c.Created, Keys: len(c.Keys), NodeUID: c.NodeUID, Rejoins: c.Identity.Rejoins, Machine: c.Machine.Key,
	}
}

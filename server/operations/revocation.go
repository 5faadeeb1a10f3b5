package operations

import (
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
)

// Revoked returns a result as the API shows it. why is the text about its EndUnknown that the caller may see.
func Revoked(result desk.Result, dryRun bool, why string) api.RevocationList {
	list := Revocations(result.Entries, dryRun)
	for _, w := range result.Warnings {
		if w == desk.NoEnd && result.EndUnknown != nil {
			w += "; " + why
		}
		list.Warnings = append(list.Warnings, w)
	}
	return list
}

// Revocations returns entries as the API shows them.
func Revocations(entries []revocation.Entry, dryRun bool) api.RevocationList {
	list := api.RevocationList{APIVersion: api.GroupVersion, Kind: api.KindRevocationList, Items: make([]api.Revocation, len(entries))}
	for i, e := range entries {
		list.Items[i] = Revocation(e, dryRun)
	}
	return list
}

// Revocation returns an entry as the API shows it.
func Revocation(e revocation.Entry, dryRun bool) api.Revocation {
	shown := api.Revocation{
		APIVersion: api.GroupVersion, Kind: api.KindRevocation,
		Node: e.Node, Since: e.Since, Until: e.Until, Reason: e.Reason, By: e.By, TokenID: e.TokenID, DryRun: dryRun,
	}
	if e.Fingerprint != "" {
		shown.Fingerprint = e.Fingerprint.String()
	}
	for _, end := range e.Allowed {
		if time.Now().Before(end) {
			shown.Allowed++
		}
	}
	if e.Malformed != nil {
		shown.Problem = safetext.Text(e.Malformed.Error(), safetext.MaxMessage)
	}
	return shown
}

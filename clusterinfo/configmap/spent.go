package configmap

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens"
)

// retire searches for tokens that need no signature, if a search is due. With an error, tokens that an earlier
// search found stay retired.
func (s *signing) retire(ctx context.Context, all []*tokens.Record) (err error) {
	now := s.Now()
	if s.Spent == nil || !s.retired.Due(now) {
		return nil
	}
	s.done = settled{}
	s.retired, err = s.Spent.Look(ctx, s.retired, all, now)
	return err
}

// removed maps the ID of each retired token whose signature a step has removed to its UID.
type removed map[string]string

func (m removed) has(r *tokens.Record) bool {
	uid, found := m[r.Token.ID()]
	return found && uid == r.UID
}

// signers returns the records with the usages that the next document uses, and the retired tokens among them. The
// Signer removes the signature of a retired token once. If another signer adds the signature again, for example
// kube-controller-manager, it stays. Otherwise the two signers would add and remove it in turn.
func (s *signing) signers(listed []*tokens.Record) ([]tokens.Record, removed) {
	records, retired := make([]tokens.Record, len(listed)), removed{}
	for i, r := range listed {
		records[i] = *r
		now := s.retired.Has(r)
		if now {
			retired[r.Token.ID()] = r.UID
		}
		switch {
		case now && s.removed.has(r), s.Spent != nil && !s.retired.Looked() && r.Spent():
			records[i].Token, _ = tokens.OnlyID(r.Token.ID()) // as if this signer did not know the secret
		case now:
			records[i].Signing = false
		}
	}
	return records, retired
}

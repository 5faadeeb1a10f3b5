package configmap

import (
	"context"

	"github.com/kubejoin/kubejoin/tokens"
)

// retire looks for tokens that need no signature, if it is time. With an error, those that were found before stay.
func (s *signing) retire(ctx context.Context, all []*tokens.Record) (err error) {
	now := s.Now()
	if s.Spent == nil || !s.retired.Due(now) {
		return nil
	}
	s.done = settled{}
	s.retired, err = s.Spent.Look(ctx, s.retired, all, now)
	return err
}

// removed are the retired tokens whose signatures a step has removed: their UIDs by ID.
type removed map[string]string

func (m removed) has(r *tokens.Record) bool {
	uid, found := m[r.Token.ID()]
	return found && uid == r.UID
}

// signers returns the records as they sign, and the retired tokens among them. The signature of a retired token is removed
// once. If another signer adds it again, such as that of kube-controller-manager, it stays: the two would otherwise add and
// remove it in turn.
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
			records[i].Token, _ = tokens.OnlyID(r.Token.ID()) // a token whose secret only others know
		case now:
			records[i].Signing = false
		}
	}
	return records, retired
}

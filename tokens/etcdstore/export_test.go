package etcdstore

import (
	"context"
	"time"
)

// SweepBeyond is the part of [Issued.Sweep] about certificates, with another maximum.
func (s *Issued) SweepBeyond(ctx context.Context, due time.Time, most int64) (out Swept, err error) {
	err = s.sweep(ctx, endsFolder, due, most, &out)
	return out, err
}

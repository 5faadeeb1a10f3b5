package boltstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
)

// BenchmarkAppend stores entries of certificates with different numbers of concurrent callers. Each entry is on the disk
// when Append returns.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := rowrecord.New(openNew(b).Issued())
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						must.OK(b, r.Append(context.Background(), ofRandomNode(issuancetest.Issued(time.Now(), newSerial(), time.Hour))))
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

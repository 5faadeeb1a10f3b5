package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokenBurst creates n tokens as fast as the API server accepts them.
func (b *bench) tokenBurst(ctx context.Context, who contender, p running, n int) error {
	row := tokenRows(n)
	made, ids := generate(n)

	created, err := b.burst(ctx, p, made, ids)
	if err != nil {
		return err
	}
	b.say("%d tokens: created in %.2f s, signed p50 %.0f ms, p99 %.0f ms, %d writes, %.2f s CPU", n, created.took.Seconds(), created.p50, created.p99, created.writes, created.cpu.Seconds())
	b.report.add(row.p50, who, created.p50)
	b.report.add(row.p99, who, created.p99)
	b.report.add(row.writes, who, float64(created.writes))
	b.report.add(row.cpu, who, created.cpu.Seconds())
	b.creation = created.took
	return errors.Join(b.memory(row.rss, who, p), b.clear(ctx))
}

func generate(n int) (made []tokens.Token, ids []string) {
	for seen := map[string]bool{}; len(made) < n; {
		t := tokens.Generate()
		if !seen[t.ID()] { // 12,000 random IDs contain a duplicate in one of thirty runs
			seen[t.ID()] = true
			made, ids = append(made, t), append(ids, t.ID())
		}
	}
	return made, ids
}

// outcome is the cost of a burst.
type outcome struct {
	took     time.Duration // time for the requests of the load
	p50, p99 float64       // in milliseconds, from the response to its effect in cluster-info
	writes   int
	cpu      time.Duration
}

// lastWrite is how long to wait after a burst for another, redundant write.
const lastWrite = 500 * time.Millisecond

// burst creates tokens and waits until cluster-info has the signatures of all of them. Then it waits for lastWrite, so that
// the result includes later writes and CPU time.
func (b *bench) burst(ctx context.Context, p running, made []tokens.Token, ids []string) (outcome, error) {
	used, err := p.used()
	if err != nil {
		return outcome{}, err
	}
	writes := b.info.writes()
	answered := make([]time.Time, len(ids))
	start := time.Now()
	err = b.each(ctx, len(ids), func(ctx context.Context, c client, i int) error {
		err := c.createToken(ctx, made[i], time.Time{})
		answered[i] = time.Now()
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	o := outcome{took: time.Since(start)}
	seen, err := b.info.waitAll(ctx, fmt.Sprintf("%d tokens to be signed", len(ids)), ids, b.info.signed)
	if err != nil {
		return outcome{}, err
	}
	time.Sleep(lastWrite)
	if o.cpu, _, err = used(); err != nil {
		return outcome{}, err
	}
	o.writes = b.info.writes() - writes
	took := make([]float64, len(ids))
	for i := range took {
		// The watch may be faster than the response.
		took[i] = max(0, seen[i].Sub(answered[i]).Seconds()*1000)
	}
	o.p50, o.p99 = percentile(took, 50), percentile(took, 99)
	return o, nil
}

// expire creates n tokens that expire at the same time, and measures how soon their signatures disappear.
func (b *bench) expire(ctx context.Context, who contender, p running, n int) error {
	row := tokenRows(n)
	made, ids := generate(n)
	expires := time.Now().Add(b.creation*3/2 + 4*time.Second).Truncate(time.Second)
	err := b.each(ctx, n, func(ctx context.Context, c client, i int) error { return c.createToken(ctx, made[i], expires) })
	if err != nil {
		return err
	}
	if _, err := b.info.waitAll(ctx, "the signatures of tokens that expire", ids, b.info.signed); err != nil {
		return err
	}
	if wait := time.Until(expires); wait < 500*time.Millisecond {
		return fmt.Errorf("%d tokens were not signed before they expired: the machine is too busy", n)
	} else {
		time.Sleep(wait - 200*time.Millisecond)
	}
	used, err := p.used()
	if err != nil {
		return err
	}
	writes := b.info.writes()
	seen, err := b.info.waitAll(ctx, fmt.Sprintf("%d signatures to go at expiry", n), ids, b.info.gone)
	if err != nil {
		return err
	}
	after := make([]float64, n)
	for i := range after {
		after[i] = seen[i].Sub(expires).Seconds() * 1000
	}
	for {
		list, err := b.load[0].CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: tokenSecrets.FieldSelector, Limit: 1})
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	deleted := time.Since(expires)
	time.Sleep(300 * time.Millisecond)
	own, _, err := used()
	if err != nil {
		return err
	}
	b.say("%d tokens: expired, unsigned p50 %.0f ms, p99 %.0f ms, %d writes, all deleted after %.1f s, %.2f s CPU", n, percentile(after, 50), percentile(after, 99), b.info.writes()-writes, deleted.Seconds(), own.Seconds())
	b.report.add(row.expireP99, who, percentile(after, 99))
	b.report.add(row.expireDeleted, who, deleted.Seconds())
	b.report.add(row.expireWrites, who, float64(b.info.writes()-writes))
	b.report.add(row.expireCPU, who, own.Seconds())
	return nil
}

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A population is a contender and a number of tokens that exist at the same time.
type population struct {
	who    contender
	alive  int
	expire int // how many of them expire, in the same second
	more   int // how many more are created, one after another
}

func (p population) String() string { return fmt.Sprintf("%s, %s alive", p.who, thousands(p.alive)) }

// populations gives kube-controller-manager only as many tokens as it can sign. It stops signing permanently if the
// signatures do not fit into a ConfigMap.
func (b *bench) populations() []population {
	if b.small {
		return []population{{ours, 2000, 1000, 5}, {theirs, 1000, 500, 5}}
	}
	const fit = 12_200
	return []population{{ours, 20_000, 10_000, 100}, {ours, fit, 10_000, 100}, {theirs, fit, 10_000, 100}}
}

// Rows of the table about populations.
var sizeRows = []string{
	"creation of all", "… CPU", "all discoverable after the last creation", "resident memory",
	"one more created: to discoverable, p50", "… p99", "a join command of one more: p50", "… p99",
	"expiry in one second of", "… until none is discoverable", "… until all are deleted", "… CPU", "resident memory after",
}

// manyTokens measures each population once.
func (b *bench) manyTokens(ctx context.Context) error {
	var columns [][]string
	var head, line strings.Builder
	for _, p := range b.populations() {
		if !strings.Contains(","+b.against+",", ","+p.who.flag()+",") {
			continue
		}
		b.say("%s", p)
		cells, err := b.populate(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		columns = append(columns, cells)
		fmt.Fprintf(&head, " %s |", p)
		line.WriteString("---:|")
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| many tokens, one run |%s\n|---|%s\n", head.String(), line.String())
	for i, row := range sizeRows {
		fmt.Fprintf(&table, "| %s |", row)
		for _, cells := range columns {
			fmt.Fprintf(&table, " %s |", cells[i])
		}
		table.WriteString("\n")
	}
	b.report.notes = append(b.report.notes, table.String())
	return nil
}

// populate measures a population and returns the cells of its column.
func (b *bench) populate(ctx context.Context, of population) (cells []string, err error) {
	if err := b.clear(ctx); err != nil {
		return nil, err
	}
	p, err := b.launch(ctx, of.who, b.cluster.Address, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		p.end(&err)
		err = errors.Join(err, b.clear(ctx))
	}()
	cell := func(format string, args ...any) { cells = append(cells, fmt.Sprintf(format, args...)) }
	memory := func() error {
		rss, err := resident(p.PID())
		cell("%.0f MB", rss/1e6)
		return err
	}
	d := b.discoverer(of.who, p)
	first, _ := generate(1)
	if err := b.load[0].createToken(ctx, first[0], time.Time{}); err != nil {
		return nil, err
	}
	if err := d.wait(ctx, "the first token", first[0].ID(), true); err != nil {
		return nil, err
	}

	made, ids := generate(of.alive)
	used, err := p.used()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := b.each(ctx, of.alive, func(ctx context.Context, c client, i int) error { return c.createToken(ctx, made[i], time.Time{}) }); err != nil {
		return nil, err
	}
	creation := time.Since(began)
	if err := d.waitAll(ctx, "all tokens", ids, true); err != nil {
		return nil, err
	}
	discoverable := time.Since(began) - creation
	own, _, err := used()
	if err != nil {
		return nil, err
	}
	cell("%.0f /s", float64(of.alive)/creation.Seconds())
	cell("%.1f s", own.Seconds())
	cell("%.2f s", discoverable.Seconds())
	if err := memory(); err != nil {
		return nil, err
	}
	b.say("%s: created in %.1f s, all discoverable %.2f s later, %.1f s CPU", of, creation.Seconds(), discoverable.Seconds(), own.Seconds())

	var one []float64
	single, _ := generate(of.more)
	for _, t := range single {
		if err := b.load[0].createToken(ctx, t, time.Time{}); err != nil {
			return nil, err
		}
		start := time.Now()
		if err := d.wait(ctx, "one more token", t.ID(), true); err != nil {
			return nil, err
		}
		one = append(one, time.Since(start).Seconds()*1000)
	}
	cell("%.1f ms", percentile(one, 50))
	cell("%.1f ms", percentile(one, 99))
	if of.who == ours {
		var commands []float64
		for range of.more {
			took, err := d.command(ctx)
			if err != nil {
				return nil, err
			}
			commands = append(commands, took.Seconds()*1000)
		}
		cell("%.1f ms", percentile(commands, 50))
		cell("%.1f ms", percentile(commands, 99))
	} else {
		cells = append(cells, "", "")
	}
	b.say("%s: one more discoverable p50 %.1f ms, p99 %.1f ms", of, percentile(one, 50), percentile(one, 99))

	// Set when the tokens expire. This is not part of the measurement.
	expires := time.Now().Add(creation*3/2 + 5*time.Second).Truncate(time.Second)
	patch := fmt.Appendf(nil, `{"stringData":{"expiration":%q}}`, expires.UTC().Format(time.RFC3339))
	if err := b.each(ctx, of.expire, func(ctx context.Context, c client, i int) error {
		_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Patch(ctx, secretName(made[i]), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	wait := time.Until(expires)
	if wait < time.Second {
		return nil, fmt.Errorf("could not set the expiry of %d tokens in time: the machine is too busy", of.expire)
	}
	time.Sleep(wait - 200*time.Millisecond)
	if used, err = p.used(); err != nil {
		return nil, err
	}
	if err := d.waitAll(ctx, "the end of tokens", ids[:of.expire], false); err != nil {
		return nil, err
	}
	gone := time.Since(expires)
	left := 1 + of.alive + len(single) - of.expire
	if of.who == ours {
		left += of.more
	}
	if err := b.waitLeft(ctx, left); err != nil {
		return nil, err
	}
	deleted := time.Since(expires)
	time.Sleep(500 * time.Millisecond)
	if own, _, err = used(); err != nil {
		return nil, err
	}
	b.say("%s: %d expired, none discoverable after %.2f s, all deleted after %.1f s, %.1f s CPU", of, of.expire, gone.Seconds(), deleted.Seconds(), own.Seconds())
	cell("%s", thousands(of.expire))
	cell("%.2f s", gone.Seconds())
	cell("%.1f s", deleted.Seconds())
	cell("%.1f s", own.Seconds())
	return cells, memory()
}

// waitLeft waits until at most n tokens are left.
func (b *bench) waitLeft(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*patience, fmt.Errorf("not within %s", 3*patience))
	defer cancel()
	options := tokenSecrets
	options.ResourceVersion = "0" // from the watch cache, without load on etcd
	for {
		list, err := b.load[0].CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, options)
		if err != nil {
			return err
		}
		if len(list.Items) <= n {
			return nil
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for tokens to be deleted: %w; %d are left, want %d", context.Cause(ctx), len(list.Items), n)
		}
	}
}

// A discoverer reads cluster-info as a joining machine does. It polls kubejoin, or watches the ConfigMap on the API
// server.
type discoverer struct {
	b       *bench
	address string // empty: the API server
	client  *http.Client
	bearer  string
}

func (b *bench) discoverer(who contender, p running) discoverer {
	if who != ours {
		return discoverer{b: b}
	}
	return discoverer{b, p.address, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: b.cluster.CAPool()}}}, p.bearer}
}

func (d discoverer) wait(ctx context.Context, what, id string, want bool) error {
	return d.waitAll(ctx, what, []string{id}, want)
}

// waitAll waits until cluster-info has the signatures of all tokens, or with want false of none.
func (d discoverer) waitAll(ctx context.Context, what string, ids []string, want bool) error {
	if d.address == "" {
		times := d.b.info.signed
		if !want {
			times = d.b.info.gone
		}
		_, err := d.b.info.waitAll(ctx, what, ids, times)
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not complete within %s", patience))
	defer cancel()
	for {
		signed, err := d.signed(ctx)
		if err == nil {
			left := 0
			for _, id := range ids {
				if signed[id] != want {
					left++
				}
			}
			if left == 0 {
				return nil
			}
			err = fmt.Errorf("%d of %d tokens are missing", left, len(ids))
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), err)
		}
	}
}

// signed returns the IDs of the tokens that sign kubejoin's cluster-info.
func (d discoverer) signed(ctx context.Context) (map[string]bool, error) {
	body, err := d.do(ctx, http.MethodGet, "/api/v1/namespaces/kube-public/configmaps/cluster-info", "")
	if err != nil {
		return nil, err
	}
	const prefix = `"jws-kubeconfig-`
	signed := make(map[string]bool, len(body)/100)
	for {
		at := bytes.Index(body, []byte(prefix))
		if at < 0 {
			return signed, nil
		}
		body = body[at+len(prefix):]
		if id, _, found := bytes.Cut(body[:min(len(body), 7)], []byte(`"`)); found && tokens.CheckID(string(id)) == nil {
			signed[string(id)] = true
		}
	}
}

// command requests a join command and returns how long that took.
func (d discoverer) command(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := d.do(ctx, http.MethodPost, "/v1/token/print-join-command", d.bearer)
	return time.Since(start), err
}

// do sends a request to kubejoin, anonymously if bearer is empty.
func (d discoverer) do(ctx context.Context, method, path, bearer string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+d.address+path, nil)
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := d.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s %w", request.Method, request.URL.Path, response.Status, err)
	}
	return body, nil
}

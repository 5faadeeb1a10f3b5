package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// filler is the prefix of the keys that FillSpace writes.
const filler = "/filler/"

// FillSpace writes until the members reach [Options].Quota, and etcd raises the alarm NOSPACE. Then etcd refuses
// writes other than deletions.
func (c *Cluster) FillSpace(ctx context.Context) error {
	if c.options.Quota == 0 {
		return errors.New("the cluster has no quota: set Options.Quota")
	}
	value := strings.Repeat("x", 64<<10)
	for i := int64(0); i*int64(len(value)) <= 50*c.options.Quota; i++ { // etcd measures its size every 100 ms
		_, err := c.client.Put(ctx, fmt.Sprint(filler, i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("no alarm after 50 times the quota of %d bytes", c.options.Quota)
}

// ClearSpace ends the alarm NOSPACE as etcd's documentation says: delete, compact, defragment, disarm.
func (c *Cluster) ClearSpace(ctx context.Context) error {
	deleted, err := c.client.Delete(ctx, filler, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	if err := c.Compact(ctx, deleted.Header.Revision); err != nil {
		return err
	}
	for i := range c.members {
		if err := c.Defragment(ctx, i); err != nil {
			return err
		}
	}
	_, err = c.client.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	return err
}

// Compact removes the history before a revision; zero means the current one.
func (c *Cluster) Compact(ctx context.Context, revision int64) error {
	if revision == 0 {
		now, err := c.client.Get(ctx, filler)
		if err != nil {
			return err
		}
		revision = now.Header.Revision
	}
	_, err := c.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	return err
}

package configmap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	"golang.org/x/sync/errgroup"
)

// confirmAtOnce is how many tokens are read at the same time.
const confirmAtOnce = 8

// confirmed adds tokens to a list that may lag: tokens that have a signature in cluster-info and were never in
// the list. Another signer may have seen them first, for example the previous leader or
// kube-controller-manager. So the Signer does not remove their signatures and add them again. confirmed reads
// these tokens until the list contains them. If a token was in an earlier list and is missing now, it was
// deleted, so confirmed does not read it.
func (s *signing) confirmed(ctx context.Context, records []tokens.Record, data map[string]string) ([]tokens.Record, error) {
	var unknown []string
	for key := range data {
		if id, isSignature := strings.CutPrefix(key, clusterinfo.SignaturePrefix); isSignature && (s.late[id] || !s.document.Has(id)) {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) == 0 {
		s.late = nil
		return records, nil
	}
	listed := make(map[string]bool, len(records))
	for _, r := range records {
		listed[r.Token.ID()] = true
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(confirmAtOnce)
	var mu sync.Mutex
	var late []tokens.Record
	for _, id := range unknown {
		if listed[id] {
			continue
		}
		group.Go(func() error {
			r, err := s.Tokens.Get(ctx, id, tokens.Live)
			switch {
			case errors.Is(err, tokens.ErrNotFound), errors.Is(err, tokens.ErrMalformed):
				return nil
			case err != nil:
				return fmt.Errorf("cluster-info: look up token %s of an existing signature: %w", id, err)
			}
			mu.Lock()
			defer mu.Unlock()
			late = append(late, r)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	s.late = make(map[string]bool, len(late))
	for _, r := range late {
		s.late[r.Token.ID()] = true
	}
	return slices.Concat(records, late), nil
}

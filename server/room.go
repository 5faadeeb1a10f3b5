package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// bounded is a ClusterInfo that has not room for signatures without end, as the ConfigMap.
type bounded interface {
	// Room is for how many more signatures there is room, and how many there are. It does not
	// wait.
	Room() (free, signatures int)
	// HasSignature reports whether there is one by the token of that ID.
	HasSignature(id string) bool
}

// unsigned are the tokens made here whose signatures will take of the room that is left.
type unsigned struct {
	mu   sync.Mutex
	made map[string]time.Time
}

// reserve keeps room for the signature of a token that is about to be made, or says that there is
// none: nobody is to wait for what will not come. A dry run keeps none. It says so, too, where the
// user has as many tokens as one user may have.
func (h *handler) reserve(ctx context.Context, record tokens.Record, dryRun bool) error {
	if err := h.mayHold(ctx, record, dryRun); err != nil {
		return err
	}
	info, isBounded := h.ClusterInfo.(bounded)
	if !isBounded || !record.Signing {
		return nil
	}
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	if h.unsigned.made == nil {
		h.unsigned.made = map[string]time.Time{}
	}
	free, signatures := info.Room()
	if len(h.unsigned.made) >= min(free, httplimit.MaxJoinCommands) {
		for id, at := range h.unsigned.made {
			if info.HasSignature(id) || time.Since(at) > h.SignTimeout {
				delete(h.unsigned.made, id)
			}
		}
	}
	if len(h.unsigned.made) >= free {
		return full(signatures)
	}
	if !dryRun {
		h.unsigned.made[record.Token.ID()] = time.Now()
	}
	return nil
}

// unreserve gives room back where no token was made.
func (h *handler) unreserve(record tokens.Record) {
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	delete(h.unsigned.made, record.Token.ID())
}

// ranOut is the problem if what a token has waited for in vain is room that others took, or nil.
func (h *handler) ranOut() *problem {
	if info, isBounded := h.ClusterInfo.(bounded); isBounded {
		if free, signatures := info.Room(); free == 0 {
			return full(signatures)
		}
	}
	return nil
}

func full(signatures int) *problem {
	return newProblem(http.StatusInsufficientStorage, api.ProblemFull,
		"cluster-info is full: it holds the signatures of %d tokens, and a ConfigMap takes no more, so that no machine could join with another one. "+
			"Delete tokens or let some expire, or start kubejoin with --advertise HOST:PORT: machines then join through kubejoin, whose cluster-info has no limit", signatures)
}

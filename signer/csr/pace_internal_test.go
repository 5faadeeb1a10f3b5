package csr

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const fast, slow = time.Millisecond, 100 * time.Millisecond // limits of 80 and 400
	type writes struct {
		n    int
		took time.Duration
		wait time.Duration // wait before the writes
		busy bool          // as many requests as allowed are in progress
	}
	for _, test := range []struct {
		name   string
		most   int
		writes []writes
		want   int
	}{
		{"no write", 512, nil, 80},
		{"a fast write", 512, []writes{{1, fast, 0, false}}, 80},
		{"a slow write", 512, []writes{{1, slow, 0, false}}, 82},
		{"many slow writes", 512, []writes{{1000, slow, 0, false}}, 400},
		{"far away", 512, []writes{{1000, time.Second, 0, false}}, 512},
		{"small bound", 100, []writes{{1000, slow, 0, false}}, 100},
		{"smaller bound", 10, []writes{{1000, slow, 0, false}}, 10},
		{"a fast write among slow ones", 512, []writes{{1000, slow, 0, false}, {1, fast, 0, false}, {1000, slow, 5 * time.Second, false}}, 80},
		{"10 s later", 512, []writes{{1, fast, 0, false}, {1000, slow, latencyAge, false}}, 80},
		{"20 s later", 512, []writes{{1, fast, 0, false}, {1, slow, latencyAge, false}, {1000, slow, latencyAge, false}}, 400},
		{"after a pause", 512, []writes{{1, fast, 0, false}, {1000, slow, 2 * latencyAge, false}}, 400},
		{"a long storm", 512, []writes{{1, fast, 0, true}, {1, slow, latencyAge, true}, {1000, slow, latencyAge, true}}, 80},
		{"after a storm", 512, []writes{{1, fast, 0, true}, {1, slow, latencyAge, false}, {1000, slow, latencyAge, false}}, 400},
		{"the API server comes closer", 512, []writes{{1000, slow, 0, false}, {1, slow / 2, 0, false}}, 200},
		{"the clock goes back", 512, []writes{{1000, slow, 0, false}, {1, slow, -time.Hour, false}}, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, now := newPace(test.most), time.Now()
			for _, w := range test.writes {
				now = now.Add(w.wait)
				inProgress := leastInProgress - 1
				if w.busy {
					inProgress = p.limit
				}
				for range w.n {
					p.wrote(w.took, inProgress, now)
				}
			}
			if p.limit != test.want {
				t.Errorf("got a limit of %d, want %d", p.limit, test.want)
			}
		})
	}
}

package csr

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// take is all that can be worked on at once.
func (t *turns) take() (names []string) {
	for {
		i, ok := t.pop(time.Now())
		if !ok {
			return names
		}
		names = append(names, i.requester)
	}
}

func (t *turns) fill(requester string, n int) {
	for i := range n {
		t.push(item{requester, fmt.Sprint(requester, i)})
	}
}

func TestTurns(t *testing.T) {
	q := newTurns()
	q.fill("a", 3)
	q.fill("b", 1)
	q.fill("c", 2)
	if got, want := q.take(), []string{"a", "b", "c", "a", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("served %q, want %q", got, want)
	}
	if len(q.waiting) > 0 || len(q.requesters) > 0 {
		t.Errorf("left are %v, %v", q.waiting, q.requesters)
	}
}

func TestTurnsOfACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		q := newTurns()
		q.fill("flood", crowd+5)
		var flood []item
		for range 3 { // nobody else is there
			i, ok := q.pop(time.Now())
			if !ok || i.requester != "flood" {
				t.Fatal(i, ok)
			}
			flood = append(flood, i)
		}
		q.fill("a", 2)
		if got := q.take(); !slices.Equal(got, []string{"a", "a"}) {
			t.Errorf("beside the flood %q are served", got)
		}
		for _, i := range flood {
			q.done(i)
		}
		if got := q.take(); len(got) > 0 {
			t.Errorf("%q while somebody else is served", got)
		}
		q.done(item{"a", "a0"})
		if got := q.take(); len(got) > 0 {
			t.Errorf("%q while somebody else is served still", got)
		}
		q.done(item{"a", "a1"})
		if got := q.take(); !slices.Equal(got, []string{"flood"}) {
			t.Errorf("%q right after somebody else was served, want one of the flood", got)
		}
		time.Sleep(calm)
		if got := q.take(); len(got) != crowd+1 {
			t.Errorf("%d of the flood when all is calm again, want all the rest", len(got))
		}
	})
}

// Who waits is woken: by what comes, by what is done, when it is calm again, and at the end.
func TestTurnsWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		q := newTurns()
		got := make(chan item, 100)
		for range 3 {
			go func() {
				for {
					i, ok := q.next()
					if !ok {
						got <- item{}
						return
					}
					got <- i
					time.Sleep(10 * time.Millisecond)
					q.done(i)
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		q.fill("a", 1)
		synctest.Wait()
		q.fill("flood", 50)
		for n := range 51 {
			if i := <-got; i.requester == "" {
				t.Fatalf("ended after %d", n)
			}
		}
		// The first second with one worker and the rest with three would be far more than 50.
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %s", took)
		}
		synctest.Wait()
		q.close()
		for range 3 {
			if i := <-got; i != (item{}) {
				t.Errorf("%v after the end", i)
			}
		}
	})
}

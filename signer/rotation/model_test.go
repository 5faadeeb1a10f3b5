package rotation_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// A world is a model of a cluster during a rotation. Hosts and replicas of kubejoin apply a stage late and in any
// order, are off for a while, and are killed during changes.
type world struct {
	*testing.T
	rand    *rand.Rand
	r       rotation.Rotation
	now     time.Time
	members []*member
	blind   rotation.Kind // observations that nobody makes
	aborts  int           // how many of 1000 steps of the operator are aborts
	history []string
	broken  string // which client saw a certificate from a CA that it does not trust
}

// A member is a host, or a replica of kubejoin. It is a client and a server.
type member struct {
	name   string
	server bool // a replica of kubejoin
	trusts rotation.Trusted
	// files is the CA of the certificates that the member signed by itself. client is the CA of its certificate
	// from kubejoin.
	files, client rotation.From
	report        string
	off           bool
	missed        bool // it was off when the new CA began to sign, so it may have to rejoin
}

func newWorld(t *testing.T, r rotation.Rotation, seed uint64) *world {
	w := &world{T: t, rand: rand.New(rand.NewPCG(seed, 0)), r: r, now: r.Since}
	w.aborts = []int{0, 10, 100}[w.rand.IntN(3)]
	for i := range 5 {
		w.members = append(w.members, &member{
			name: fmt.Sprintf("%s-%d", map[bool]string{true: "kubejoin", false: "worker"}[i < 2], i), server: i < 2,
			trusts: rotation.Trusted{Old: true}, files: rotation.FromOld, client: rotation.FromOld,
		})
	}
	return w
}

func (w *world) signs() rotation.From {
	if w.r.SignsNew() {
		return rotation.FromNew
	}
	return rotation.FromOld
}

// any returns a member that is on: a replica of kubejoin or a host. It is nil if all are off.
func (w *world) any(server bool) *member {
	var all []*member
	for _, m := range w.members {
		if m.server == server && !m.off {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.rand.IntN(len(all))]
}

// step makes one random change.
func (w *world) step() {
	w.now = w.now.Add(5 * time.Minute)
	host, server := w.any(false), w.any(true)
	what := ""
	switch n := w.rand.IntN(20); {
	case n < 4:
		what = w.operate()
	case n < 8: // replicas of kubejoin follow at once, or late
		what = server.name + " follows"
		w.apply(server, 3)
		server.client = server.files
	case n < 15 && host != nil:
		writes := w.rand.IntN(8) // all with 4 and more
		w.apply(host, writes)
		what = fmt.Sprintf("%s applies %s with %d writes", host.name, w.r.Stage, writes)
	case n < 17 && host != nil:
		what = host.name + " renews at " + server.name
		host.client = server.files
	case n < 18 && host != nil:
		host.off = true
		what = host.name + " is off"
	case n < 19:
		for _, m := range w.members {
			if m.off && w.rand.IntN(4) > 0 {
				m.off = false
				what += m.name + " is back "
				if m.missed {
					w.join(m, server)
				}
			}
		}
	case len(w.members) < 8:
		m := &member{name: fmt.Sprintf("worker-%d", len(w.members))}
		w.join(m, server)
		w.members = append(w.members, m)
		what = m.name + " joins at " + server.name
	}
	w.history = append(w.history, what)
	w.check()
}

func (w *world) join(m, server *member) {
	m.trusts, m.files, m.client, m.report, m.missed = server.trusts, server.files, server.files, "", false
}

// apply makes the first writes of a host: it trusts more, signs, trusts less, and reports.
func (w *world) apply(m *member, writes int) {
	wanted := rotation.Trusted{Old: w.r.TrustsOld(), New: w.r.TrustsNew()}
	if writes > 0 {
		m.trusts = rotation.Trusted{Old: m.trusts.Old || wanted.Old, New: m.trusts.New || wanted.New}
	}
	if writes > 1 {
		m.files = w.signs()
	}
	if writes > 2 {
		m.trusts = wanted
	}
	if writes > 3 {
		m.report = must.Value(rotation.Report{
			ID: w.r.ID, CA: w.r.CA, Stage: w.r.Stage, Since: w.r.Since,
			Files: []rotation.File{{Name: "admin.conf", Trusts: &m.trusts, From: m.files}},
		}.Encode())(w)
	}
}

// operate carries out a step of the operator: usually the next step, sometimes an abort.
func (w *world) operate() string {
	seen := w.observe()
	before, next := w.r, w.r.Next()
	var err error
	if next == "abort" || w.rand.IntN(1000) < w.aborts {
		next = "abort"
		w.r, err = w.r.Abort(seen, w.now)
	} else {
		w.r, err = w.r.Advance(rotation.Stage(next), seen, w.now)
	}
	if before.Stage == rotation.Trust && w.r.Stage == rotation.Switch {
		for _, m := range w.members {
			m.missed = m.missed || m.off && !m.trusts.New
		}
	}
	return fmt.Sprintf("%s: now %s, %v", next, w.r.Stage, err)
}

func (w *world) observe() []rotation.Observation {
	var all []rotation.Observation
	for _, m := range w.members {
		trusts := m.trusts
		one := []rotation.Observation{{Kind: rotation.KindServer, Name: m.name, Trusts: &trusts, From: m.files}}
		if !m.server {
			one = append(w.r.FromReport(m.name, m.report), rotation.Observation{Kind: rotation.KindCertificate, Name: m.name, Node: m.name, From: m.client})
		}
		for _, o := range one {
			o.Off = m.off
			if o.Kind != w.blind {
				all = append(all, o)
			}
		}
	}
	return all
}

// check checks each client with each server: those that are on or, after the end, all of them.
func (w *world) check() {
	trusts := func(m *member, from rotation.From) bool {
		return from == rotation.FromOld && m.trusts.Old || from == rotation.FromNew && m.trusts.New
	}
	for _, a := range w.members {
		for _, b := range w.members {
			if !a.off && !b.off && !(trusts(a, b.files) && trusts(a, b.client)) && w.broken == "" {
				w.broken = fmt.Sprintf("%s trusts %+v and meets %s from %s and %s", a.name, a.trusts, b.name, b.files, b.client)
			}
		}
		if !w.r.InProgress() && !w.r.Aborting && (a.trusts != rotation.Trusted{New: true} || a.files != rotation.FromNew || a.client != rotation.FromNew) && w.broken == "" {
			w.broken = fmt.Sprintf("the rotation ended, and %s trusts %+v, from %s and %s", a.name, a.trusts, a.files, a.client)
		}
		if !w.r.InProgress() && w.r.Aborting && (a.files != rotation.FromOld || a.client != rotation.FromOld) && w.broken == "" {
			w.broken = fmt.Sprintf("the abort ended, and %s is from %s and %s", a.name, a.files, a.client)
		}
	}
}

// run makes steps until the rotation ends, and returns its state and what went wrong.
func (w *world) run(steps int) (rotation.Rotation, string) {
	for range steps {
		w.step()
		if !w.r.InProgress() || w.broken != "" {
			break
		}
	}
	return w.r, w.broken
}

// seeds is how many random worlds the tests try.
const seeds = 400

func TestNoClientMeetsACAThatItDoesNotTrust(t *testing.T) {
	r := at(t, rotation.Prepare, false)
	ends := map[string]int{}
	for seed := range uint64(seeds) {
		w := newWorld(t, r, seed)
		last, broken := w.run(500)
		if broken != "" {
			t.Fatalf("seed %d: %s:\n%s", seed, broken, strings.Join(w.history, "\n"))
		}
		ends[fmt.Sprintf("%s, aborting %t, ended %t", last.Stage, last.Aborting, !last.InProgress())]++
	}
	for _, want := range []string{"finish, aborting false, ended true", "prepare, aborting true, ended true"} {
		if ends[want] < seeds/20 {
			t.Errorf("%d rotations came to %s: %v", ends[want], want, ends)
		}
	}
}

// Without an observation, the model must fail: this shows that the model detects errors.
func TestModelNeedsEachObservation(t *testing.T) {
	r := at(t, rotation.Prepare, false)
	for _, blind := range []rotation.Kind{rotation.KindFile, rotation.KindServer, rotation.KindCertificate} {
		seed, broken := uint64(0), ""
		for ; seed < seeds && broken == ""; seed++ {
			w := newWorld(t, r, seed)
			w.blind = blind
			_, broken = w.run(500)
		}
		if broken == "" {
			t.Errorf("without observations of kind %s each client met only CAs that it trusts", blind)
		}
	}
}

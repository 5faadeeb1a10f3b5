package clusterinfo

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNoKubeconfig is returned when there is nothing to sign.
var ErrNoKubeconfig = errors.New("no kubeconfig to sign")

// A Document is what cluster-info should say at one time: a kubeconfig and its signatures. It
// is a value: [Document.Update] makes another one. The zero Document says nothing.
type Document struct {
	kubeconfig string
	signatures map[string]signature // by token ID
	elsewhere  map[string]bool      // IDs of tokens that may be signed with by others only
	next       time.Time
}

type signature struct {
	token   tokens.Token
	created time.Time
	key     string // in the data
	jws     string
}

// Update computes the Document for another time, kubeconfig or set of tokens. A signature is
// computed anew only where token or kubeconfig have changed. An error is about single records
// and comes with a good Document of all others, except for [ErrNoKubeconfig], which comes with
// d itself.
func (d Document) Update(kubeconfig []byte, records []tokens.Record, now time.Time) (Document, error) {
	if len(kubeconfig) == 0 {
		return d, ErrNoKubeconfig
	}
	same := d.kubeconfig == string(kubeconfig)
	n := Document{
		kubeconfig: string(kubeconfig),
		signatures: make(map[string]signature, len(records)),
		elsewhere:  map[string]bool{},
	}
	var errs []error
	for _, r := range records {
		if !r.Signing || r.Expired(now) {
			continue
		}
		if !r.Expires.IsZero() && (n.next.IsZero() || r.Expires.Before(n.next)) {
			n.next = r.Expires
		}
		id := r.Token.ID()
		if !r.Signs(now) {
			n.elsewhere[id] = true
			continue
		}
		s := signature{token: r.Token, created: r.Created}
		if before := d.signatures[id]; same && before.token == r.Token {
			s.key, s.jws = before.key, before.jws
		} else {
			var err error
			s.key = SignatureKey(id)
			if s.jws, err = Sign(kubeconfig, r.Token); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		n.signatures[id] = s
	}
	return n, errors.Join(errs...)
}

// Next is when the next signature expires by itself, so that there is another Document. The
// zero time is never.
func (d Document) Next() time.Time { return d.next }

// Has reports whether the Document is about a token of this ID: it has its signature, or leaves
// that to others who know its secret.
func (d Document) Has(id string) bool {
	_, found := d.signatures[id]
	return found || d.elsewhere[id]
}

func (d Document) signedBy(t tokens.Token) bool {
	s, found := d.signatures[t.ID()]
	return found && s.token.Equal(t)
}

// Data is the Document as the data of a new ConfigMap, in a map of its own.
func (d Document) Data() map[string]string { return d.Merge(nil, 0).Data }

// Merged is a ConfigMap's data with a Document in it.
type Merged struct {
	Data map[string]string
	// Changed reports whether Data differs from what was there.
	Changed bool
	// Bytes is the sum of all values, which kube-apiserver limits to [MaxData].
	Bytes int
	// Signed is the number of signatures in Data.
	Signed int
	// LeftOut are the IDs of live tokens whose signature did not fit.
	LeftOut []string
}

// Merge puts the Document into a ConfigMap's current data, which is not changed:
//   - keys that are not about signatures stay as they are;
//   - signatures that no live token makes go away;
//   - the signature of a live token whose secret is not known stays while the kubeconfig does:
//     another signer may know more, and to take it away would be a fight without end.
//
// Values have at most limit bytes in sum; 0 is no limit. If not all signatures fit, those of
// tokens that have one already come first, then the older tokens: what is full still shrinks.
func (d Document) Merge(current map[string]string, limit int) Merged {
	m := Merged{Data: make(map[string]string, len(d.signatures)+len(current))}
	put := func(key, value string) {
		m.Data[key] = value
		m.Bytes += len(value)
	}
	if d.kubeconfig != "" {
		put(KubeconfigKey, d.kubeconfig)
	}
	same := current[KubeconfigKey] == d.kubeconfig
	for key, value := range current {
		id, isSignature := strings.CutPrefix(key, SignaturePrefix)
		switch {
		case key == KubeconfigKey:
		case !isSignature:
			put(key, value)
		case d.elsewhere[id] && same && value != "":
			put(key, value)
			m.Signed++
		}
	}
	all := m.Bytes
	for _, s := range d.signatures {
		all += len(s.jws)
	}
	if limit <= 0 || all <= limit {
		for _, s := range d.signatures {
			put(s.key, s.jws)
			m.Signed++
		}
	} else {
		for _, id := range d.byPriority(current) {
			if s := d.signatures[id]; m.Bytes+len(s.jws) <= limit {
				put(s.key, s.jws)
				m.Signed++
			} else {
				m.LeftOut = append(m.LeftOut, id)
			}
		}
	}
	m.Changed = !maps.Equal(m.Data, current)
	return m
}

func (d Document) byPriority(current map[string]string) []string {
	rank := func(id string) int {
		if current[SignatureKey(id)] != "" {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(maps.Keys(d.signatures), func(a, b string) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			d.signatures[a].created.Compare(d.signatures[b].created),
			cmp.Compare(a, b),
		)
	})
}

package clusterinfo

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNoKubeconfig means that there is no kubeconfig to sign.
var ErrNoKubeconfig = errors.New("no kubeconfig to sign")

// A Document is the intended content of cluster-info at one time: a kubeconfig and its signatures. It is
// immutable: [Document.Update] returns a new Document. The zero Document is empty.
type Document struct {
	kubeconfig string
	signatures map[string]signature // by token ID
	elsewhere  map[string]bool      // IDs of live tokens whose secret is unknown: only another signer can sign with them
	next       time.Time
}

type signature struct {
	token   tokens.Token
	created time.Time
	key     string // in the ConfigMap's data
	jws     string
}

// Update returns the Document for another time, kubeconfig or set of tokens. It computes only signatures whose
// token or kubeconfig has changed. With [ErrNoKubeconfig] it returns d itself. Any other error is about single
// records; the Document then contains all other records.
func (d Document) Update(kubeconfig []byte, records []tokens.Record, now time.Time) (Document, error) {
	if len(kubeconfig) == 0 {
		return d, ErrNoKubeconfig
	}
	n := Document{
		kubeconfig: string(kubeconfig),
		signatures: make(map[string]signature, len(records)),
		elsewhere:  map[string]bool{},
	}
	same := d.kubeconfig == n.kubeconfig
	var errs []error
	for i := range records {
		r := &records[i]
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

// Next returns when the next token expires, so that the Document changes. The zero time means never.
func (d Document) Next() time.Time { return d.next }

// Has reports whether a live signing token has this ID. Either the Document contains the signature of the
// token, or another signer that knows the secret must sign.
func (d Document) Has(id string) bool {
	_, found := d.signatures[id]
	return found || d.elsewhere[id]
}

// Data returns the Document as the data of a new ConfigMap, in a new map.
func (d Document) Data() map[string]string { return d.Merge(nil, 0).Data }

// Merged is the data of a ConfigMap after a Document was merged into it.
type Merged struct {
	Data map[string]string
	// Changed reports whether Data differs from the current data.
	Changed bool
	// Bytes is the sum of all values. kube-apiserver limits it to [MaxData].
	Bytes int
	// Signed is the number of signatures in Data.
	Signed int
	// LeftOut are the IDs of live tokens whose signature did not fit.
	LeftOut []string
}

// Merge returns a ConfigMap's current data with the Document merged into it. It does not change current.
//   - Keys that are not signatures stay as they are.
//   - Signatures by tokens that are not live are removed.
//   - The signature of a live token whose secret is unknown stays while the kubeconfig does not change: another
//     signer may know the secret, and the two would otherwise add and remove the signature in turn.
//
// limit is the maximum sum of all values in bytes; 0 means unlimited. If not all signatures fit, Merge first
// takes the tokens that already have a signature in current, then older tokens. So a full ConfigMap can still
// shrink.
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
		for _, s := range d.byPriority(current) {
			if m.Bytes+len(s.jws) <= limit {
				put(s.key, s.jws)
				m.Signed++
			} else {
				m.LeftOut = append(m.LeftOut, s.token.ID())
			}
		}
	}
	m.Changed = !maps.Equal(m.Data, current)
	return m
}

// byPriority returns the signatures in the order in which Merge adds them if not all fit.
func (d Document) byPriority(current map[string]string) []signature {
	there, others := make([]signature, 0, len(current)), []signature(nil)
	for _, s := range d.signatures {
		if current[s.key] != "" {
			there = append(there, s)
		} else {
			others = append(others, s)
		}
	}
	older := func(a, b signature) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.key, b.key))
	}
	slices.SortFunc(there, older)
	slices.SortFunc(others, older)
	return append(there, others...)
}

// json returns what [MarshalConfigMap] returns for Data, in a tenth of the time. records are the records that
// the Document was made from, sorted by ID.
func (d Document) json(records []tokens.Record) ([]byte, error) {
	frame, err := MarshalConfigMap(map[string]string{KubeconfigKey: d.kubeconfig})
	if err != nil {
		return nil, err
	}
	size := len(frame)
	for _, s := range d.signatures {
		size += len(`"":"",`) + len(s.key) + len(s.jws)
	}
	// The keys of signatures sort before the key in the frame.
	at := bytes.Index(frame, []byte(`{"`+KubeconfigKey+`":`)) + 1
	all := append(make([]byte, 0, size), frame[:at]...)
	for i := range records {
		if s, found := d.signatures[records[i].Token.ID()]; found { // JSON needs no escapes in s
			all = append(all, '"')
			all = append(all, s.key...)
			all = append(all, `":"`...)
			all = append(all, s.jws...)
			all = append(all, `",`...)
		}
	}
	return append(all, frame[at:]...), nil
}

package caobserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cluster-bootstrap/token/api"
)

// tokens observes the live bootstrap tokens.
func (l *look) tokens(ctx context.Context) {
	var all []tokens.Record
	var err error
	if l.Tokens != nil {
		all, err = l.Tokens(ctx)
	} else {
		selector := fields.OneTermEqualSelector("type", string(api.SecretTypeBootstrapToken)).String()
		err = each(ctx, l.Client.CoreV1().Secrets(metav1.NamespaceSystem).List, metav1.ListOptions{FieldSelector: selector}, func(s *corev1.Secret) {
			if r, err := secretstore.Decode(s); err == nil { // ignore others: no component accepts a malformed token
				all = append(all, r)
			}
		})
	}
	for _, r := range all {
		l.add(l.token(r)...)
	}
	if err != nil {
		l.failed(rotation.KindServer, "list of tokens", "list on secrets in kube-system", err)
	}
}

// clockMargin is the maximum time that the API server's clock, which dates tokens, may be ahead of the clock that dates stages.
const clockMargin = time.Minute

// token returns the observation of a token, if machines can join with it.
//
// A join command pins the CAs that its author saw. A join command from kubejoin's API pins the CAs of cluster-info (its token
// has a creator). A join command from kubeadm pins the CAs of admin.conf. Each admin.conf changes at some time in stage trust,
// and has both CAs when stage switch begins. Stage finish begins only when no live token pins only the old CA.
//
// After an abort in stage finish, tokens created since that stage began may pin only the new CA. When the abort reaches
// stage trust, each admin.conf has both CAs again.
func (l *look) token(r tokens.Record) []rotation.Observation {
	if r.Problem != nil || r.Expired(l.now) || !r.Signing && !r.Authentication {
		return nil
	}
	o := rotation.Observation{Kind: rotation.KindToken, Name: r.Token.ID(), Until: r.Expires, Trusts: &rotation.Trusted{Old: true}}
	later := r.Created.After(l.Since.Add(clockMargin))
	switch l.Stage {
	case rotation.Trust, rotation.Switch:
		o.Trusts.New = l.Stage == rotation.Switch && later || r.Creator != "" && !l.PinsOnlyOld(r.Created)
		if l.Aborting && !l.Finishing.IsZero() && !r.Created.Before(l.Finishing.Add(-clockMargin)) && !(l.Stage == rotation.Trust && later) {
			*o.Trusts = rotation.Trusted{New: true}
		}
	case rotation.Finish:
		o.Trusts.Old, o.Trusts.New = !later, true
	}
	return []rotation.Observation{o}
}

// settle is the age from which on a certificate is assumed to have reached its kubelet. A kubelet that did not receive it
// requests another one earlier.
const settle = 5 * time.Minute

// maxCertificates is the maximum number of owners of certificates in one observation.
const maxCertificates = 200_000

// certificates observes the live certificates in the issuance record that are not revoked. It combines certificates with the
// same signer, subject and CA into one observation. For a kubelet, it looks at one certificate: the last one that is older than
// settle, or else the last one. The kubelet does not use earlier ones. The method ignores kubelets of deleted nodes, because
// they cannot renew.
func (l *look) certificates(ctx context.Context) {
	if l.Record == nil {
		l.add(rotation.Observation{
			Kind: rotation.KindCertificate, Name: "issuance record", Unseen: "it cannot be searched from here", Optional: true,
			Next: cmp.Or(l.NoRecord, "kubejoin ca status --url URL"),
		})
		return
	}
	type owner struct {
		signer, subject string
		from            rotation.From // empty for kubelets
	}
	type last struct {
		node         string
		issued, ends time.Time
		from         rotation.From // empty if the record does not show it
		more         int           // number of further certificates from the same CA
	}
	counts := func(a, b last) bool { // whether a is used rather than b
		if old := l.now.Sub(a.issued) > settle; old != (l.now.Sub(b.issued) > settle) {
			return old
		}
		return a.issued.After(b.issued)
	}
	live := map[owner]last{}
	var why string
	query := issuance.Query{Outcome: issuance.Issued, EndsAfter: l.now, Limit: issuance.MaxLimit}
	for {
		p, err := l.Record.List(ctx, query)
		if err != nil {
			why = safetext.Text(err.Error(), maxWhy)
			break
		}
		for _, e := range p.Entries {
			revoked, err := l.revoked(ctx, e)
			if err != nil {
				why = safetext.Text(err.Error(), maxWhy)
			} else if revoked {
				continue
			}
			key, c := owner{signer: e.Signer, subject: e.Subject}, last{node: e.Node, issued: e.Time, ends: e.NotAfter, from: l.issuer(e)}
			if !kubelets[e.Signer] {
				key.from = c.from
			}
			switch before, found := live[key]; {
			case !found && len(live) == maxCertificates:
				why = fmt.Sprintf("it has certificates of more than %d subjects", maxCertificates)
			case found && !kubelets[e.Signer]:
				if before.more++; c.ends.After(before.ends) {
					before.ends = c.ends
				}
				live[key] = before
			case !found || counts(c, before):
				live[key] = c
			}
		}
		if query.After = p.Next; p.Next == "" {
			break
		}
	}
	if why != "" {
		l.add(rotation.Observation{Kind: rotation.KindCertificate, Name: "issuance record", Unseen: why, Next: "kubejoin issued list"})
	}
	hosts := map[string]*host{}
	for i := range l.hosts {
		hosts[l.hosts[i].name] = &l.hosts[i]
	}
	for key, c := range live {
		o := rotation.Observation{
			Kind: rotation.KindCertificate, Name: safetext.Text(key.subject+" of "+key.signer, maxWhy), Node: c.node, From: c.from, Until: c.ends,
			Next: "kubejoin issued list # renew it; after its owner has the new one: kubejoin revoke --fingerprint HEX",
		}
		if c.more > 0 {
			o.Name = fmt.Sprintf("%s and %d more", o.Name, c.more)
		}
		if c.node != "" {
			h, exists := hosts[c.node]
			if !exists && !l.alone && kubelets[key.signer] {
				continue
			}
			o.Off, o.Next = exists && !h.ready, "kubejoin issued list --node "+c.node
		}
		if c.from == "" {
			o.Unseen = "the issuance record does not have its CA"
		}
		if c.from != rotation.FromOther {
			l.add(o)
		}
	}
}

// kubelets contains the signers of kubelet certificates.
var kubelets = map[string]bool{certificates.KubeAPIServerClientKubeletSignerName: true, certificates.KubeletServingSignerName: true}

// revoked reports whether a recorded certificate is revoked. An entry for a node does not revoke the node's serving
// certificates.
func (l *look) revoked(ctx context.Context, e issuance.Entry) (bool, error) {
	f, err := revocation.ParseFingerprint(e.Fingerprint)
	if err != nil {
		return false, nil // a malformed fingerprint cannot be looked up
	}
	s := revocation.Subject{Fingerprints: []revocation.Fingerprint{f}}
	if e.Signer != certificates.KubeletServingSignerName {
		s.Node = e.Node
	}
	bars, err := l.Revocations.Known(ctx, s)
	return bars != nil, err
}

// issuer returns the CA that signed a recorded certificate; empty if the record does not show it. Entries of earlier versions
// lack the CA.
func (l *look) issuer(e issuance.Entry) rotation.From {
	if e.CA != "" {
		switch {
		case slices.Contains(clusterinfo.Pins(l.New), e.CA):
			return rotation.FromNew
		case slices.Contains(clusterinfo.Pins(l.Old), e.CA):
			return rotation.FromOld
		}
		return rotation.FromOther
	}
	if from := l.Find(pemfile.Presented([]byte(e.Certificate))); from != "" {
		return from
	}
	if e.Time.Before(l.Started) { // the new CA had not signed yet
		return rotation.FromOld
	}
	return ""
}

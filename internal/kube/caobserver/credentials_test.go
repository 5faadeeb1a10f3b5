package caobserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestTokensPinWhatTheirAuthorSaw catches a stage finish that begins while a live join command pins only the old CA.
func TestTokensPinWhatTheirAuthorSaw(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Hour)
	byAPI := func(r *tokens.Record) { r.Creator = tokens.CreatorOf("ada") }
	for name, test := range map[string]struct {
		stage   rotation.Stage
		created time.Time
		change  func(*tokens.Record)
		want    string
	}{
		"prepare":                  {rotation.Prepare, now, nil, "trusts:old"},
		"trust":                    {rotation.Trust, now, nil, "trusts:old"},
		"trust, by kubejoin's API": {rotation.Trust, now, byAPI, "trusts:old,new"},
		"prepare, by the API":      {rotation.Prepare, now, byAPI, "trusts:old"},
		"before trust, by the API": {rotation.Switch, since.Add(-2 * time.Hour), byAPI, "trusts:old"},
		"in trust, by the API":     {rotation.Switch, since.Add(-10 * time.Minute), byAPI, "trusts:old,new"},
		"before switch":            {rotation.Switch, since.Add(-time.Second), nil, "trusts:old"},
		"by a clock that is ahead": {rotation.Switch, since.Add(clockMargin), nil, "trusts:old"},
		"in switch":                {rotation.Switch, since.Add(clockMargin + time.Second), nil, "trusts:old,new"},
		"before finish":            {rotation.Finish, since, nil, "trusts:old,new"},
		"in finish":                {rotation.Finish, now, nil, "trusts:new"},
		"expired":                  {rotation.Trust, now, func(r *tokens.Record) { r.Expires = now.Add(-time.Second) }, ""},
		"never expires":            {rotation.Trust, now, func(r *tokens.Record) { r.Expires = time.Time{} }, "trusts:old"},
		"malformed":                {rotation.Trust, now, func(r *tokens.Record) { r.Problem = tokens.ErrMalformed }, ""},
		"admits nobody":            {rotation.Trust, now, func(r *tokens.Record) { r.Disable() }, ""},
		"authenticates":            {rotation.Trust, now, func(r *tokens.Record) { r.Signing = false }, "trusts:old"},
		"signs":                    {rotation.Trust, now, func(r *tokens.Record) { r.Authentication = false }, "trusts:old"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tokens.NewRecord(must.Value(tokens.New("abcdef", "0123456789abcdeg"))(t), time.Hour, now)
			r.Created = test.created
			if test.change != nil {
				test.change(&r)
			}
			l := &look{Observer: &Observer{Tokens: func(context.Context) ([]tokens.Record, error) { return []tokens.Record{r}, nil }}, now: now}
			l.CA, l.Stage, l.Since, l.Trusting = rotation.Cluster, test.stage, since, since.Add(-time.Hour)
			l.tokens(t.Context())
			want := []string{"token abcdef " + test.want}
			if test.want == "" {
				want = nil
			}
			if got := lines(l.seen); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// After an abort, each live join command must pin the old CA before only the old CA signs.
func TestTokensOfStageFinishPinOnlyTheNewCA(t *testing.T) {
	finishing := time.Now().Add(-3 * time.Hour)
	since := finishing.Add(2 * time.Hour) // start of the present stage
	for name, test := range map[string]struct {
		stage   rotation.Stage
		began   time.Time // start of stage finish
		created time.Time
		old     bool
	}{
		"before finish":         {rotation.Trust, finishing, finishing.Add(-clockMargin - time.Second), true},
		"at its beginning":      {rotation.Trust, finishing, finishing.Add(-clockMargin), false},
		"in finish":             {rotation.Trust, finishing, finishing.Add(time.Hour), false},
		"in switch, after that": {rotation.Trust, finishing, since, false},
		"in trust, after that":  {rotation.Trust, finishing, since.Add(clockMargin + time.Second), true},
		"in the present switch": {rotation.Switch, finishing, since.Add(clockMargin + time.Second), false},
		"no stage finish":       {rotation.Trust, time.Time{}, since, true},
	} {
		r := tokens.NewRecord(must.Value(tokens.New("abcdef", "0123456789abcdeg"))(t), 24*time.Hour, time.Now())
		r.Created = test.created
		l := &look{Rotation: rotation.Rotation{Stage: test.stage, Aborting: true, Since: since, Trusting: finishing.Add(-time.Hour), Finishing: test.began}}
		if got := l.token(r)[0].Trusts; got.Old != test.old || !test.old && !got.New {
			t.Errorf("%s: got %+v, want old: %t", name, got, test.old)
		}
	}
}

// A record is an issuance record in memory.
type record struct {
	entries []issuance.Entry
	err     error
	pages   int
}

func (*record) Append(context.Context, issuance.Entry) error { panic("an observer only reads") }

func (*record) Get(context.Context, string) (issuance.Entry, error) { panic("an observer lists") }

func (r *record) List(_ context.Context, q issuance.Query) (issuance.Page, error) {
	if r.err != nil {
		return issuance.Page{}, r.err
	}
	r.pages++
	from, _ := strconv.Atoi(q.After)
	var p issuance.Page
	for at := from; at < len(r.entries); at++ {
		if len(p.Entries) == q.Limit {
			p.Next = strconv.Itoa(at)
			return p, nil
		}
		if q.Match(r.entries[at]) {
			p.Entries = append(p.Entries, r.entries[at])
		}
	}
	return p, nil
}

func TestCertificatesOfRecord(t *testing.T) {
	old, fresh, other := certtest.CA(t, "old"), certtest.CA(t, "new"), certtest.CA(t, "other")
	now := time.Now()
	entry := func(node string, ca *tls.Certificate, age, left time.Duration) issuance.Entry {
		return issuance.Entry{
			Time: now.Add(-age), Outcome: issuance.Issued, Signer: certificates.KubeAPIServerClientKubeletSignerName, Node: node, Subject: "CN=system:node:" + node, NotAfter: now.Add(left), CA: clusterinfo.Pin(ca.Leaf),
		}
	}
	with := func(e issuance.Entry, change func(*issuance.Entry)) issuance.Entry {
		change(&e)
		return e
	}
	pem := func(ca *tls.Certificate) string {
		leaf := certtest.Serving(t, ca, "127.0.0.1")
		return bundleOf(&leaf)
	}
	for name, test := range map[string]struct {
		entries []issuance.Entry
		want    string
	}{
		"old":                       {[]issuance.Entry{entry("w-1", old, time.Hour, time.Hour)}, "@w-1 from:old"},
		"new":                       {[]issuance.Entry{entry("w-1", fresh, time.Hour, time.Hour)}, "@w-1 from:new"},
		"of another CA":             {[]issuance.Entry{entry("w-1", other, time.Hour, time.Hour)}, ""},
		"expired":                   {[]issuance.Entry{entry("w-1", old, time.Hour, -time.Second)}, ""},
		"refused":                   {[]issuance.Entry{with(entry("w-1", old, time.Hour, time.Hour), func(e *issuance.Entry) { e.Outcome = issuance.Refused })}, ""},
		"renewed":                   {[]issuance.Entry{entry("w-1", fresh, time.Hour, time.Hour), entry("w-1", old, 2*time.Hour, 8760*time.Hour)}, "@w-1 from:new"},
		"renewed, other order":      {[]issuance.Entry{entry("w-1", old, 2*time.Hour, 8760*time.Hour), entry("w-1", fresh, time.Hour, 8761*time.Hour)}, "@w-1 from:new"},
		"renewed by the old":        {[]issuance.Entry{entry("w-1", fresh, 2*time.Hour, 8760*time.Hour), entry("w-1", old, time.Hour, 8761*time.Hour)}, "@w-1 from:old"},
		"renewed a moment ago":      {[]issuance.Entry{entry("w-1", old, 2*time.Hour, time.Hour), entry("w-1", fresh, time.Minute, 8760*time.Hour)}, "@w-1 from:old"},
		"first one, a moment ago":   {[]issuance.Entry{entry("w-1", fresh, time.Minute, time.Hour)}, "@w-1 from:new"},
		"of a node that is off":     {[]issuance.Entry{entry("w-off", old, time.Hour, time.Hour)}, "@w-off from:old off"},
		"of a deleted node":         {[]issuance.Entry{entry("w-2", old, time.Hour, time.Hour)}, ""},
		"of a user":                 {[]issuance.Entry{with(entry("", old, time.Hour, time.Hour), func(e *issuance.Entry) { e.Subject = "CN=system:node:" })}, "from:old"},
		"earlier version, with PEM": {[]issuance.Entry{with(entry("w-1", old, time.Hour, time.Hour), func(e *issuance.Entry) { e.CA, e.Certificate = "", pem(fresh) })}, "@w-1 from:new"},
		"earlier version, before":   {[]issuance.Entry{with(entry("w-1", old, 3*time.Hour, time.Hour), func(e *issuance.Entry) { e.CA = "" })}, "@w-1 from:old"},
		"earlier version, after":    {[]issuance.Entry{with(entry("w-1", old, time.Hour, time.Hour), func(e *issuance.Entry) { e.CA = "" })}, "@w-1 unseen:the issuance record does not have its CA"},
	} {
		t.Run(name, func(t *testing.T) {
			l := &look{Observer: &Observer{Record: &record{entries: test.entries}}, Rotation: begun(t, rotation.Switch, old, fresh), now: now}
			l.hosts = []host{{name: "w-1", ready: true}, {name: "w-off"}}
			l.certificates(t.Context())
			got := ""
			for _, o := range l.seen {
				o.Next = ""
				got += strings.TrimPrefix(line(o), "certificate "+o.Name+" ")
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestEachLiveCertificateOfAUserCounts catches an observer that ignores a user's old certificate, because another program of
// this user has renewed its own. In stage finish, the first program would lose access.
func TestEachLiveCertificateOfAUserCounts(t *testing.T) {
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	now := time.Now()
	entry := func(signer, node string, n int, ca *tls.Certificate, left time.Duration) issuance.Entry {
		e := issuance.Entry{
			Time: now.Add(time.Duration(n-100) * time.Minute), Outcome: issuance.Issued, Signer: signer, Node: node, Subject: "CN=jenkins", NotAfter: now.Add(left), CA: clusterinfo.Pin(ca.Leaf),
			Fingerprint: revocationtest.Fingerprint(n).String(),
		}
		if node != "" {
			e.Subject = "CN=system:node:" + node
		}
		return e
	}
	user := func(n int, ca *tls.Certificate, left time.Duration) issuance.Entry {
		return entry(certificates.KubeAPIServerClientSignerName, "", n, ca, left)
	}
	const kubelet, serving = certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName
	const ofUser, ofKubelet = "CN=jenkins of kubernetes.io/kube-apiserver-client", "CN=system:node:w-1 of kubernetes.io/kube-apiserver-client-kubelet @w-1"
	unnamed := entry(kubelet, "w-1", 1, old, time.Hour)
	unnamed.Fingerprint = ""
	for name, test := range map[string]struct {
		entries []issuance.Entry
		revoked listed
		want    []string
	}{
		"one of three is renewed": {[]issuance.Entry{user(1, old, time.Hour), user(2, old, 2*time.Hour), user(3, fresh, 3*time.Hour)}, nil, []string{ofUser + " and 1 more from:old 2h", ofUser + " from:new 3h"}},
		"the longer one first":    {[]issuance.Entry{user(1, old, 2*time.Hour), user(2, old, time.Hour)}, nil, []string{ofUser + " and 1 more from:old 2h"}},
		"revoked":                 {[]issuance.Entry{user(1, old, time.Hour), user(2, fresh, time.Hour)}, listed{1: ""}, []string{ofUser + " from:new 1h"}},
		"without a fingerprint":   {[]issuance.Entry{unnamed}, listed{3: "w-1"}, []string{ofKubelet + " from:old 1h"}},
		"last one of a kubelet":   {[]issuance.Entry{entry(kubelet, "w-1", 1, old, time.Hour), entry(kubelet, "w-1", 2, fresh, time.Hour)}, listed{2: ""}, []string{ofKubelet + " from:old 1h"}},
		"a revoked node":          {[]issuance.Entry{entry(kubelet, "w-1", 1, old, time.Hour), entry(serving, "w-1", 2, old, time.Hour)}, listed{3: "w-1"}, []string{"CN=system:node:w-1 of kubernetes.io/kubelet-serving @w-1 from:old 1h"}},
		"of a deleted node":       {[]issuance.Entry{entry("example.com/agent", "w-2", 1, old, time.Hour), entry(kubelet, "w-2", 2, old, time.Hour)}, nil, []string{"CN=system:node:w-2 of example.com/agent @w-2 from:old 1h"}},
		"not readable":            {[]issuance.Entry{user(1, old, time.Hour)}, listed{0: ""}, []string{ofUser + " from:old 1h", "issuance record unseen:revocation of " + revocationtest.Fingerprint(1).String() + ": no list"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &look{Observer: &Observer{Record: &record{entries: test.entries}, Revocations: &revocation.Guard{Store: test.revoked}}, Rotation: begun(t, rotation.Switch, old, fresh), now: now}
			l.hosts = []host{{name: "w-1", ready: true}}
			l.certificates(t.Context())
			var got []string
			for _, o := range l.seen {
				text := strings.TrimPrefix(line(rotation.Observation{Name: o.Name, Node: o.Node, From: o.From, Unseen: o.Unseen}), " ")
				if !o.Until.IsZero() {
					text += fmt.Sprintf(" %.0fh", o.Until.Sub(now).Hours())
				}
				got = append(got, text)
			}
			if slices.Sort(got); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// listed maps the number of a certificate to a revocation of the certificate or of a node. With the number 0, reads fail.
type listed map[int]string

func (l listed) Get(_ context.Context, key revocation.Key, read tokens.Read) (revocation.Entry, error) {
	if read != tokens.Cached {
		panic("an observer reads the cache")
	}
	for n, node := range l {
		e := revocation.Entry{Node: node, Since: time.Now()}
		if node == "" {
			e.Fingerprint = revocationtest.Fingerprint(n)
		}
		switch {
		case n == 0:
			return e, errors.New("no list")
		case e.Key() == key:
			return e, nil
		}
	}
	return revocation.Entry{}, revocation.ErrNotFound
}

func (listed) List(context.Context, tokens.Read) ([]revocation.Entry, error) {
	panic("an observer finds")
}

func (listed) Update(context.Context, revocation.Key, func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	panic("an observer only reads")
}

// TestRecordIsReadInPages catches an observer that sees only the first page, or hides that it could not read the record.
func TestRecordIsReadInPages(t *testing.T) {
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	now := time.Now()
	r := &record{}
	for i := range 2*issuance.MaxLimit + 1 {
		r.entries = append(r.entries, issuance.Entry{
			Time: now.Add(-time.Hour), Outcome: issuance.Issued, Signer: "s", Subject: fmt.Sprint("CN=", i), NotAfter: now.Add(time.Hour), CA: clusterinfo.Pin(fresh.Leaf),
		})
	}
	look := func() *look {
		l := &look{Observer: &Observer{Record: r}, Rotation: begun(t, rotation.Switch, old, fresh), now: now}
		l.certificates(t.Context())
		return l
	}
	if l := look(); len(l.seen) != len(r.entries) || r.pages != 3 {
		t.Errorf("%d observations of %d entries in %d pages", len(l.seen), len(r.entries), r.pages)
	}
	r.err = errors.New("disk is gone")
	if got := lines(look().seen); !slices.Equal(got, []string{"certificate issuance record unseen:disk is gone next:kubejoin issued list"}) {
		t.Errorf("got %q", got)
	}
}

// TestFinishNamesOldCAInPublishedAuthentication catches a rotation that ends while aggregated API servers accept certificates
// of the old CA.
func TestFinishNamesOldCAInPublishedAuthentication(t *testing.T) {
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	n := &network{}
	for ca, key := range map[rotation.CA]string{rotation.Cluster: "client-ca-file", rotation.FrontProxy: "requestheader-client-ca-file"} {
		r := begun(t, rotation.Finish, old, fresh)
		r.CA = ca
		server := &apiServer{objects: map[string]any{authPath: configMap("kube-system", "extension-apiserver-authentication", key, bundleOf(old, fresh))}}
		got := lines(must.Value(server.start(t, n).Observe(t.Context(), r))(t))
		const want = "merged configmap extension-apiserver-authentication trusts:old,new next:kubectl -n kube-system delete configmap extension-apiserver-authentication # it has a CA that is not trusted now, and kube-apiserver creates it again"
		if !slices.Contains(got, want) {
			t.Errorf("%s: got %q", ca, got)
		}
	}
}

// TestFrontProxyAndEtcdConcernControlPlanesAlone also catches an API server whose serving certificate is treated as issued
// by the front-proxy CA.
func TestFrontProxyAndEtcdConcernControlPlanesAlone(t *testing.T) {
	old, fresh, cluster := certtest.CA(t, "old"), certtest.CA(t, "new"), certtest.CA(t, "kubernetes")
	n := &network{}
	n.listen("192.0.2.11:6443", serve(t, tlsConfig(t, cluster, cluster, old, fresh)))
	n.listen("192.0.2.11:2379", serve(t, tlsConfig(t, fresh, old, fresh)))
	controlPlane, off := node("cp-1", "192.0.2.11"), node("cp-2", "192.0.2.12")
	off.Status.Conditions[0].Status = corev1.ConditionFalse
	controlPlane.Labels[controlPlaneLabel], off.Labels[controlPlaneLabel] = "", ""
	etcd := controllerManager("cp-1")
	etcd.Labels = map[string]string{"component": "etcd"}
	unlabelled := controllerManager("w-1")
	unlabelled.Name, unlabelled.Labels = "etcd-w-1", etcd.Labels
	ordinary := *unlabelled.DeepCopy() // not the mirror pod of a static pod
	ordinary.Name, ordinary.Annotations = "etcd-backup", nil
	server := &apiServer{lists: map[string][]any{nodesPath: objects(t, controlPlane, off, node("w-1", "192.0.2.21")), podsPath: objects(t, etcd, unlabelled, ordinary)}}
	o := server.start(t, n)
	for ca, want := range map[rotation.CA][]string{
		rotation.FrontProxy: {
			"api-server 192.0.2.11:6443 @cp-1 trusts:old,new", "api-server 192.0.2.12:6443 @cp-2 off next:on cp-2: kubejoin ca apply --ca front-proxy",
			"file pki/front-proxy-ca.crt on cp-2 @cp-2 off next:kubectl describe node cp-2", "file report of cp-1",
		},
		rotation.Etcd: {
			"etcd 192.0.2.11:2379 @cp-1 trusts:old,new from:new",
			"etcd etcd-w-1 @w-1 unseen:its Node has no label node-role.kubernetes.io/control-plane next:kubectl label node w-1 node-role.kubernetes.io/control-plane=",
			"file pki/etcd/ca.crt on cp-2 @cp-2 off next:kubectl describe node cp-2", "file report of cp-1",
		},
	} {
		r := begun(t, rotation.Switch, old, fresh)
		r.CA = ca
		got := lines(must.Value(o.Observe(t.Context(), r))(t))
		for i, text := range got {
			if strings.HasPrefix(text, "file report of cp-1") {
				got[i] = "file report of cp-1"
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q", ca, got)
		}
		r.Stage, r.Ended = rotation.Finish, time.Now()
		got = lines(must.Value(o.Observe(t.Context(), r))(t))
		server, _, _ := strings.Cut(want[0], " from:")
		if !slices.ContainsFunc(got, func(text string) bool {
			return strings.HasPrefix(text, server) && strings.HasSuffix(text, "next:on cp-1: "+ca.Command("apply"))
		}) {
			t.Errorf("%s, after the end: got %q", ca, got)
		}
	}
}

// manySubjects is a record with more subjects than an observation can contain.
type manySubjects struct{ *record }

func (manySubjects) List(_ context.Context, q issuance.Query) (issuance.Page, error) {
	from, _ := strconv.Atoi(q.After)
	p := issuance.Page{Next: strconv.Itoa(from + q.Limit)}
	for i := range q.Limit {
		p.Entries = append(p.Entries, issuance.Entry{Signer: "s", Subject: strconv.Itoa(from + i), CA: "sha256:of another CA"})
	}
	if from > maxCertificates {
		p.Next = ""
	}
	return p, nil
}

// TestRecordIsBounded catches an observer whose memory grows with the record.
func TestRecordIsBounded(t *testing.T) {
	l := &look{Observer: &Observer{Record: manySubjects{}}}
	l.certificates(t.Context())
	if got := lines(l.seen); !slices.Equal(got, []string{"certificate issuance record unseen:it has certificates of more than 200000 subjects next:kubejoin issued list"}) {
		t.Errorf("got %.500q", got)
	}
}

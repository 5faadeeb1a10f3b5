package rotation_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

func TestDecodeRefusesWhatEncodeDoesNotWrite(t *testing.T) {
	r := rotationtest.New(t, rotation.Etcd)
	r.LeftBehind, r.Stage = []string{"worker-1"}, rotation.Switch
	good := string(must.Value(rotation.Encode(r))(t))
	if got, err := rotation.Decode([]byte(good), rotation.Etcd); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, %v, want %+v", got, err, r)
	}
	replace := func(from, to string) string {
		t.Helper()
		if !strings.Contains(good, from) {
			t.Fatalf("%q is not in %s", from, good)
		}
		return strings.Replace(good, from, to, 1)
	}
	other := must.Value(rotation.Encode(rotationtest.New(t, rotation.Etcd)))(t)
	text := func(data []byte, field string) string {
		_, value, _ := strings.Cut(string(data), `"`+field+`":"`)
		value, _, _ = strings.Cut(value, `"`)
		return value
	}
	names := make([]string, 501)
	for i := range names {
		names[i] = fmt.Sprintf(`"worker-%d"`, i)
	}
	for name, test := range map[string]struct{ data, want string }{
		"empty":              {"", "EOF"},
		"zero":               {"{}", `the CA ""`},
		"unknown field":      {replace(`"id"`, `"key":"x","id"`), `unknown field "key"`},
		"data behind":        {good + "{}", "data behind"},
		"too large":          {good + strings.Repeat(" ", rotation.MaxSize), "want at most 262144"},
		"of another CA":      {replace(`"etcd"`, `"cluster"`), `the CA "cluster"`},
		"a CA on both sides": {replace(`"old":"`, `"old":"`+text([]byte(good), "new")), "is both old and new"},
		"unknown stage":      {replace(`"switch"`, `"swap"`), `stage is "swap"`},
		"short ID":           {replace(r.ID, r.ID[1:]), "want 16 hexadecimal digits"},
		"ID in capitals":     {replace(r.ID, "ABCDEF0123456789"), "want 16 hexadecimal digits"},
		"not started":        {replace(`"started":"2`, `"unstarted":"2`), "unknown field"},
		"no time":            {replace(`"since":"`+text([]byte(good), "since"), `"since":"0001-01-01T00:00:00Z`), "started and since are required"},
		"ended in switch":    {replace(`"leftBehind"`, `"ended":"2026-01-01T00:00:00Z","leftBehind"`), "it has ended in stage switch, want finish"},
		"aborted in switch":  {replace(`"leftBehind"`, `"aborting":true,"ended":"2026-01-01T00:00:00Z","leftBehind"`), "it has ended in stage switch, want prepare"},
		"no old CA":          {replace(`"old":"`+text([]byte(good), "old"), `"old":"`), "empty, want PEM"},
		"old CA null":        {replace(`"old":"`+text([]byte(good), "old")+`"`, `"old":null`), "old has 0 certificates"},
		"old CA cut":         {replace(`"old":"`+text([]byte(good), "old"), `"old":"`+text([]byte(good), "old")[:100]), "PEM block 1 "},
		"new CA of another":  {replace(text([]byte(good), "new"), text(other, "new")), "not of the subject and the key of the new CA"},
		"cross of another":   {replace(text([]byte(good), "cross"), text(other, "cross")), "not of the subject and the key of the new CA"},
		"two cross":          {replace(text([]byte(good), "cross"), strings.Repeat(text([]byte(good), "cross"), 2)), "cross has 2 certificates"},
		"old CA of another":  {replace(text([]byte(good), "old"), text(other, "old")), "not signed by the old CA"},
		"many certificates":  {replace(text([]byte(good), "old"), strings.Repeat(text([]byte(good), "old"), 11)), "old has 11 certificates"},
		"large certificates": {replace(text([]byte(good), "old"), strings.Repeat(text([]byte(good), "old"), 80)), "want at most 32768"},
		"a key":              {replace(`"old":"`, `"old":"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n`), "no blocks of types other than CERTIFICATE"},
		"many left behind":   {replace(`"worker-1"`, strings.Join(names, ",")), "leftBehind has 501 nodes and leftFiles 0 files, want at most 500"},
		"no node":            {replace(`"worker-1"`, `"../worker-1"`), "leftBehind:"},
	} {
		if got, err := rotation.Decode([]byte(test.data), rotation.Etcd); err == nil || !strings.Contains(err.Error(), "stored rotation of the etcd CA: ") || !strings.Contains(err.Error(), test.want) || got.ID != "" {
			t.Errorf("%s: got %+v, %v, want %q", name, got, err, test.want)
		}
	}
	r.LeftFiles = slices.Repeat([]string{"worker-1:/" + strings.Repeat("x", 600)}, 500)
	if data, err := rotation.Encode(r); err == nil || !strings.Contains(err.Error(), "want at most 262144") {
		t.Errorf("got %d bytes, %v, want them refused", len(data), err)
	}
}

func TestReportIsEvidenceOfOneStateOnly(t *testing.T) {
	r := at(t, rotation.Trust, false)
	report := rotation.Report{
		ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since.In(time.FixedZone("x", 3600)),
		Files:   []rotation.File{{Name: "pki/ca.crt", Trusts: both}, {Name: "admin\x1b.conf", Trusts: onlyOld, From: rotation.FromOld}},
		Restart: []string{"kubelet"},
	}
	change := func(f func(*rotation.Report)) string {
		changed := report
		f(&changed)
		return must.Value(changed.Encode())(t)
	}
	good := change(func(*rotation.Report) {})
	const next = "on worker-1: kubejoin ca apply"
	want := []rotation.Observation{
		{Kind: rotation.KindFile, Name: "report of worker-1", Node: "worker-1"},
		{Kind: rotation.KindFile, Name: "pki/ca.crt on worker-1", Node: "worker-1", File: "pki/ca.crt", Trusts: both, Next: next},
		{Kind: rotation.KindFile, Name: "admin\ufffd.conf on worker-1", Node: "worker-1", File: "admin\ufffd.conf", Trusts: onlyOld, From: rotation.FromOld, Next: next},
		{Kind: rotation.KindProcess, Name: "kubelet on worker-1", Node: "worker-1", File: "kubelet", Next: "on worker-1: systemctl restart kubelet; then kubejoin ca apply"},
	}
	if got := r.FromReport("worker-1", good); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for name, test := range map[string]struct{ annotation, want string }{
		"none":             {"", "'kubejoin ca apply' has not run there"},
		"another rotation": {change(func(p *rotation.Report) { p.ID = "0123456789abcdef" }), "it is about another rotation"},
		"another CA":       {change(func(p *rotation.Report) { p.CA = rotation.Etcd }), "it is about another rotation"},
		"another stage":    {change(func(p *rotation.Report) { p.Stage = rotation.Prepare }), "'kubejoin ca apply' has not run there in this stage"},
		"before an abort":  {change(func(p *rotation.Report) { p.Since = p.Since.Add(-1) }), "'kubejoin ca apply' has not run there in this stage"},
		"no JSON":          {"x", "malformed report: invalid character 'x' looking for beginning of value"},
		"unknown field":    {`{"x":1}`, `malformed report: json: unknown field "x"`},
		"data behind":      {good + "{}", "malformed report: data behind the JSON value"},
		"too large":        {good + strings.Repeat(" ", 32<<10), fmt.Sprintf("malformed report: %d bytes, want at most 32768", len(good)+32<<10)},
		"unknown value":    {strings.Replace(good, `"from":"old"`, `"from":"ancient"`, 1), `malformed report: a file is from "ancient", want "old", "new" or "other"`},
	} {
		got := r.FromReport("worker-1", test.annotation)
		if want := []rotation.Observation{{Kind: rotation.KindFile, Name: "report of worker-1", Node: "worker-1", Unseen: test.want, Next: next}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	ended := r
	ended.Ended = time.Now()
	for annotation, behind := range map[string]bool{
		"": false, "x": false, // a Node that joined later has no report
		change(func(p *rotation.Report) { p.ID = "0123456789abcdef" }): false,
		change(func(p *rotation.Report) { p.Ended = true }):            false,
		good: true,
		change(func(p *rotation.Report) { p.Stage = rotation.Trust }): true,
	} {
		seen := ended.FromReport("worker-1", annotation)
		if got := ended.Pending(seen); len(got) == 1 != behind || behind && (got[0].Node != "worker-1" || got[0].Next != next) {
			t.Errorf("after the end, report %q: got %+v, want the host behind: %t", annotation, got, behind)
		}
	}
	for name, p := range map[string]rotation.Report{
		"many files":     {Files: make([]rotation.File, 65)},
		"many processes": {Restart: make([]string, 21)},
	} {
		if _, err := p.Encode(); err == nil || !strings.Contains(err.Error(), "want at most 64 and 20") {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
}

// A writer of the state must not make a host trust another CA.
func TestUnproven(t *testing.T) {
	old, fresh, evil := certtest.CA(t, "old"), certtest.CA(t, "new"), certtest.CA(t, "evil")
	root := certtest.CA(t, "root")
	below := certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "below"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, fresh)
	cross := rotation.Bundle{rotationtest.Cross(t, old, fresh.Leaf)}
	none := func(*x509.Certificate) bool { return false }
	pinned := func(c *x509.Certificate) bool { return c.Equal(root.Leaf) || c.Equal(fresh.Leaf) }
	// A CA below the old CA, with limits, also has a self-signed certificate without limits.
	limited := func(change func(template *x509.Certificate)) rotation.Bundle {
		template := *fresh.Leaf
		change(&template)
		return rotation.Bundle{rotationtest.Cross(t, old, &template)}
	}
	for name, test := range map[string]struct {
		old, new []*x509.Certificate
		cross    rotation.Bundle
		pins     func(*x509.Certificate) bool
		want     []*x509.Certificate
	}{
		"cross-signed":          {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, cross, none, nil},
		"signed below":          {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf, below.Leaf}, cross, none, nil},
		"not cross-signed":      {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, nil, none, []*x509.Certificate{fresh.Leaf}},
		"pinned":                {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, nil, pinned, nil},
		"another CA added":      {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf, evil.Leaf}, cross, none, []*x509.Certificate{evil.Leaf}},
		"added to the old":      {[]*x509.Certificate{old.Leaf, evil.Leaf}, []*x509.Certificate{fresh.Leaf}, cross, none, []*x509.Certificate{evil.Leaf}},
		"pinned beside another": {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf, root.Leaf, evil.Leaf}, nil, pinned, []*x509.Certificate{evil.Leaf}},
		"cross by another":      {[]*x509.Certificate{old.Leaf, evil.Leaf}, []*x509.Certificate{fresh.Leaf}, rotation.Bundle{rotationtest.Cross(t, evil, fresh.Leaf)}, none, []*x509.Certificate{evil.Leaf, fresh.Leaf}},
		"cross has expired":     {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, limited(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), none, []*x509.Certificate{fresh.Leaf}},
		"cross is not yet":      {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, limited(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), none, []*x509.Certificate{fresh.Leaf}},
		"cross for some names":  {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, limited(func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"only.example"} }), none, []*x509.Certificate{fresh.Leaf}},
		"cross for servers":     {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, limited(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), none, []*x509.Certificate{fresh.Leaf}},
		"cross for one level":   {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf}, limited(func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = 0, true }), none, []*x509.Certificate{fresh.Leaf}},
		"cross of another":      {[]*x509.Certificate{old.Leaf}, []*x509.Certificate{evil.Leaf}, cross, none, []*x509.Certificate{evil.Leaf}},
	} {
		r := at(t, rotation.Trust, false)
		r.Old, r.New, r.Cross = test.old, test.new, test.cross
		if got := r.Unproven([]*x509.Certificate{old.Leaf}, test.pins, time.Now()); !slices.EqualFunc(got, test.want, (*x509.Certificate).Equal) {
			t.Errorf("%s: got %d certificates, want %d", name, len(got), len(test.want))
		}
	}
}

func TestFindAndIn(t *testing.T) {
	old, fresh, other := certtest.CA(t, "old"), certtest.CA(t, "new"), certtest.CA(t, "other")
	root := certtest.CA(t, "root")
	issue := func(name string, by *tls.Certificate) *tls.Certificate {
		return certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, by)
	}
	r := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old.Leaf}, []*x509.Certificate{fresh.Leaf, root.Leaf}, nil, time.Now()))(t)
	between := issue("between", root)
	ofOld := issue("between", old)
	for name, test := range map[string]struct {
		chain []*x509.Certificate
		want  rotation.From
	}{
		"old":                       {[]*x509.Certificate{issue("leaf", old).Leaf}, rotation.FromOld},
		"new":                       {[]*x509.Certificate{issue("leaf", fresh).Leaf}, rotation.FromNew},
		"new, cross-signed":         {[]*x509.Certificate{issue("leaf", fresh).Leaf, rotationtest.Cross(t, old, fresh.Leaf)}, rotation.FromNew},
		"an intermediate of new":    {[]*x509.Certificate{issue("leaf", between).Leaf, between.Leaf}, rotation.FromNew},
		"an intermediate of old":    {[]*x509.Certificate{issue("leaf", ofOld).Leaf, ofOld.Leaf}, rotation.FromOld},
		"its intermediate missing":  {[]*x509.Certificate{issue("leaf", between).Leaf}, rotation.FromOther},
		"an intermediate of others": {[]*x509.Certificate{issue("leaf", other).Leaf, between.Leaf}, rotation.FromOther},
		"other":                     {[]*x509.Certificate{issue("leaf", other).Leaf, other.Leaf}, rotation.FromOther},
	} {
		if got := r.Find(test.chain); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	below := must.Value(rotation.New(rotation.Cluster, []*x509.Certificate{old.Leaf}, []*x509.Certificate{between.Leaf}, nil, time.Now()))(t)
	for _, c := range []*x509.Certificate{between.Leaf, issue("leaf", between).Leaf} { // kubejoin asks which CA signs
		if got := below.Find([]*x509.Certificate{c}); got != rotation.FromNew {
			t.Errorf("%s of an intermediate: got %q, want new", c.Subject, got)
		}
	}
	for _, n := range []int{0, 11} {
		if got := r.Find(slices.Repeat([]*x509.Certificate{old.Leaf}, n)); got != "" {
			t.Errorf("%d certificates: got %q, want nothing", n, got)
		}
	}
	for name, test := range map[string]struct {
		certs []*x509.Certificate
		want  rotation.Trusted
	}{
		"none":        {nil, rotation.Trusted{}},
		"old":         {[]*x509.Certificate{old.Leaf, other.Leaf}, rotation.Trusted{Old: true}},
		"all":         {[]*x509.Certificate{root.Leaf, old.Leaf, fresh.Leaf}, rotation.Trusted{Old: true, New: true}},
		"half of new": {[]*x509.Certificate{fresh.Leaf}, rotation.Trusted{}},
		"new":         {[]*x509.Certificate{fresh.Leaf, root.Leaf}, rotation.Trusted{New: true}},
	} {
		if got := r.In(test.certs); got != test.want {
			t.Errorf("in %s: got %+v, want %+v", name, got, test.want)
		}
	}
	for stage, want := range map[rotation.Stage][]*x509.Certificate{
		rotation.Prepare: {old.Leaf}, rotation.Trust: {old.Leaf, fresh.Leaf, root.Leaf}, rotation.Switch: {old.Leaf, fresh.Leaf, root.Leaf}, rotation.Finish: {fresh.Leaf, root.Leaf},
	} {
		r.Stage = stage
		if got := r.Trusted(); !slices.EqualFunc(got, want, (*x509.Certificate).Equal) {
			t.Errorf("trusted in %s: got %d certificates, want %d", stage, len(got), len(want))
		}
	}
}

// A file or process that 'kubejoin ca apply' found on a host blocks a step until it fits, or is left behind by
// its path.
func TestReportHoldsUpSteps(t *testing.T) {
	r := at(t, rotation.Switch, false)
	p := rotation.Report{ID: r.ID, CA: r.CA, Stage: r.Stage, Since: r.Since, More: 3, Files: []rotation.File{
		{Name: "mine/x.pem", Other: true, From: rotation.FromOld}, {Name: "mine/y.pem", Other: true, Trusts: &rotation.Trusted{Old: true, New: true, Replaced: true}},
		{Name: "mine/z", Other: true, Unseen: "permission denied"},
	}}
	want := []string{
		"file mine/x.pem on cp-1 is still from the old CA (next: change it by hand, then on cp-1: kubejoin ca apply; or if nothing needs it: kubejoin ca finish --leave-behind-file cp-1:mine/x.pem)",
		"file mine/y.pem on cp-1 still trusts a CA that an earlier rotation replaced",
		"file mine/z on cp-1 was not seen: permission denied",
		"file 3 more files on cp-1 was not seen: the report names only some (next: on cp-1: kubejoin ca apply)",
	}
	behind := func(r rotation.Rotation, p rotation.Report) (all []string) {
		for _, b := range r.Pending(r.FromReport("cp-1", must.Value(p.Encode())(t))) {
			all = append(all, b.Why+" (next: "+b.Next+")")
		}
		return all
	}
	if got := behind(r, p); !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got %q, want %q", got, want)
	}
	r.LeftFiles = []string{"cp-1:mine/x.pem", "cp-1:mine/y.pem", "cp-2:mine/z"}
	if got := behind(r, p); !slices.EqualFunc(got, want[2:], strings.HasPrefix) {
		t.Errorf("with files left behind: got %q, want %q", got, want[2:])
	}
	p.Failed = "no space left"
	if got := behind(r, p); len(got) != 1 || !strings.HasPrefix(got[0], "file report of cp-1 was not seen: 'kubejoin ca apply' failed there: no space left") {
		t.Errorf("of a run that failed: got %q", got)
	}
}

// Stage trust begins when each control plane has reported its own files. Workers report in stage trust.
func TestTrustNeedsControlPlanes(t *testing.T) {
	r := at(t, rotation.Prepare, false)
	none := r.FromReport("cp-1", "")
	server := rotation.Observation{Kind: rotation.KindAPIServer, Name: "192.0.2.1:6443", Node: "cp-1", Trusts: onlyOld, From: rotation.FromOld}
	if got := r.Pending(append(none, server)); len(got) != 1 || got[0].Why != "file report of cp-1 was not seen: 'kubejoin ca apply' has not run there" {
		t.Errorf("Pending with an API server that trusts only the old CA: got %+v, want the missing report of cp-1", got)
	}
	if got := r.Pending(append(none, kubelet(onlyOld, rotation.FromOld))); len(got) > 0 {
		t.Errorf("a worker: got %+v", got)
	}
	server.Trusts, server.From, server.Unseen = nil, "", "connection refused"
	if got := r.Pending([]rotation.Observation{server}); len(got) != 1 {
		t.Errorf("an API server that was not seen: got %+v", got)
	}
}

// After the end, a thing that still uses the old CA is behind. After an abort, a thing that uses the new CA is
// behind.
func TestPendingAfterEnd(t *testing.T) {
	for _, test := range []struct {
		stage rotation.Stage
		seen  rotation.Observation
		want  string
	}{
		{rotation.Finish, kubelet(onlyNew, rotation.FromNew), ""},
		{rotation.Finish, kubelet(both, rotation.FromNew), "kubelet worker-1 still trusts the old CA"},
		{rotation.Finish, kubelet(onlyNew, rotation.FromOld), "kubelet worker-1 is still from the old CA"},
		{rotation.Finish, kubelet(&rotation.Trusted{New: true, Replaced: true}, rotation.FromNew), "kubelet worker-1 still trusts a CA that an earlier rotation replaced"},
		{rotation.Prepare, kubelet(onlyOld, rotation.FromOld), ""},
		{rotation.Prepare, kubelet(both, rotation.FromOld), "kubelet worker-1 still trusts the new CA"},
		{rotation.Prepare, kubelet(onlyOld, rotation.FromNew), "kubelet worker-1 is from the new CA"},
	} {
		r := at(t, test.stage, test.stage == rotation.Prepare)
		r.Ended = time.Now()
		if got := r.Pending([]rotation.Observation{test.seen}); (len(got) > 0) != (test.want != "") || len(got) > 0 && got[0].Why != test.want {
			t.Errorf("%s, %+v: got %+v, want %q", test.stage, test.seen, got, test.want)
		}
	}
}

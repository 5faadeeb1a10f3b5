package configmap

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

func certificates(t *testing.T, names ...string) map[string]*x509.Certificate {
	t.Helper()
	all := map[string]*x509.Certificate{}
	for _, name := range names {
		all[name] = certtest.CA(t, name).Leaf
	}
	return all
}

func pick(all map[string]*x509.Certificate, names string) (list []*x509.Certificate) {
	for name := range strings.FieldsSeq(names) {
		list = append(list, all[name])
	}
	return list
}

func namesIn(t *testing.T, kubeconfig []byte) string {
	t.Helper()
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	must.OK(t, err)
	var names []string
	for _, c := range cas {
		names = append(names, c.Subject.CommonName)
	}
	return strings.Join(names, " ")
}

func TestFollowsCAsOfRotation(t *testing.T) {
	all := certificates(t, "old", "new", "other")
	signs := certtest.CA(t, "x")
	all["renewed"] = certtest.Cross(t, signs.Leaf, all["new"], signs.PrivateKey) // another certificate for the same key
	for name, test := range map[string]struct {
		before, trusted, others string
		want                    string
	}{
		"no rotation":                   {"old", "", "", "old"},
		"prepare":                       {"old", "old", "new", "old"},
		"trust":                         {"old", "old new", "", "old new"},
		"the order does not matter":     {"new old", "old new", "", "new old"},
		"finish":                        {"old new", "new", "old", "new"},
		"aborted to prepare":            {"old new", "old", "new", "old"},
		"the old one was removed":       {"new", "old new", "", "old new"},
		"other CAs stay":                {"other old", "old new", "", "old new other"},
		"other CAs stay at the end":     {"old new other", "new", "old", "new other"},
		"a certificate of the same key": {"old renewed", "old", "new", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			before := must.Value(clusterinfo.Kubeconfig("https://a:6443", pick(all, test.before)))(t)
			f := &Follower{Rotation: func() (*Rotation, error) {
				if test.trusted == "" {
					return nil, nil
				}
				return &Rotation{Stage: "x", Trusted: pick(all, test.trusted), All: pick(all, test.trusted+" "+test.others)}, nil
			}}
			got := must.Value(f.follow(before))(t)
			if names := namesIn(t, got.kubeconfig); names != test.want || got.changed != (test.before != test.want) || got.changed == bytes.Equal(got.kubeconfig, before) || (got.stage == "x") != (test.trusted != "") {
				t.Errorf("got %s, changed %t, stage %q, want %s", names, got.changed, got.stage, test.want)
			}
			if server, _, err := clusterinfo.ParseKubeconfig(got.kubeconfig); server != "https://a:6443" || err != nil {
				t.Errorf("server %s, %v", server, err)
			}
		})
	}
	for name, f := range map[string]*Follower{
		"no state":             {Rotation: func() (*Rotation, error) { return nil, errors.New("no response") }},
		"malformed kubeconfig": {Rotation: func() (*Rotation, error) { return &Rotation{Trusted: pick(all, "old")}, nil }},
	} {
		if got, err := f.follow([]byte("x")); err == nil || string(got.kubeconfig) != "x" || got.stage != "" {
			t.Errorf("%s: %q, stage %q, %v, want an error beside the same kubeconfig", name, got.kubeconfig, got.stage, err)
		}
	}
}

// verified checks each write as kubeadm does, which gives up at the first wrong signature.
type verified struct {
	paced
	t      *testing.T
	tokens []tokens.Token
	saw    []string // the CAs of each write
}

func (v *verified) RoundTrip(r *http.Request) (*http.Response, error) {
	body := must.Value(io.ReadAll(r.Body))(v.t)
	var object corev1.ConfigMap
	must.OK(v.t, json.Unmarshal(body, &object))
	kubeconfig := object.Data[clusterinfo.KubeconfigKey]
	for _, token := range v.tokens {
		if err := clusterinfo.Verify([]byte(kubeconfig), object.Data[clusterinfo.SignatureKey(token.ID())], token); err != nil {
			v.t.Errorf("write %d: %v", len(v.saw)+1, err)
		}
	}
	v.saw = append(v.saw, namesIn(v.t, []byte(kubeconfig)))
	r.Body = io.NopCloser(bytes.NewReader(body))
	return v.paced.RoundTrip(r)
}

// Each stage must change the CAs and all signatures in one write. The signer must report and correct an edit once, and
// must not report the changes of a stage.
func TestSignerFollowsRotationInOneWriteEach(t *testing.T) {
	all := certificates(t, "old", "new")
	synctest.Test(t, func(t *testing.T) {
		before := must.Value(clusterinfo.Kubeconfig("https://a:6443", pick(all, "old")))(t)
		p := &verified{t: t}
		p.cluster = fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name, ResourceVersion: "1"},
			Data:       map[string]string{clusterinfo.KubeconfigKey: string(before)},
		})
		for range 3 {
			token := tokens.Generate()
			p.tokens, p.records = append(p.tokens, token), append(p.records, tokens.Record{Token: token, Signing: true})
		}
		client := must.Value(kubernetes.NewForConfig(&rest.Config{Host: "http://api", QPS: -1, Transport: p}))(t)
		live := Open(t.Context(), p.cluster)
		live.client = client
		synctest.Wait()
		var state *Rotation
		var hints tokens.Hints
		edits := 0
		follow := &Follower{
			Rotation: func() (*Rotation, error) { return state, nil },
			Watch:    hints.Watch,
			Edited: func(message string) {
				edits++
				if !strings.Contains(message, "kube-public/cluster-info") {
					t.Errorf("reported %q", message)
				}
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Signer{ConfigMap: live, Tokens: p, Follow: follow}.Run(ctx) }()
		settle := func() { time.Sleep(time.Second); synctest.Wait() }
		settle()
		stage := func(name, trusted, others string) {
			state = &Rotation{Stage: name, Trusted: pick(all, trusted), All: pick(all, trusted+" "+others)}
			hints.Send()
			settle()
		}
		version := 0
		edit := func(names string) {
			version += 1000
			object := must.Value(p.cluster.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(t.Context(), clusterinfo.Name, metav1.GetOptions{}))(t)
			object.Data[clusterinfo.KubeconfigKey] = string(must.Value(clusterinfo.Kubeconfig("https://a:6443", pick(all, names)))(t))
			object.ResourceVersion = strconv.Itoa(version)
			must.OK(t, p.cluster.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), object, object.Namespace))
			settle()
		}
		stage("1/prepare", "old", "new")
		stage("1/trust", "old new", "")
		if edits != 0 {
			t.Errorf("stages were reported as %d edits", edits)
		}
		edit("old")
		if edits != 1 {
			t.Errorf("got %d reports of an edit, want 1", edits)
		}
		p.writes = make([]time.Duration, version) // the next resource version is larger
		stage("1/switch", "old new", "")
		stage("1/finish", "new", "old")
		state = nil
		hints.Send()
		settle()
		edit("old new") // after the rotation, kubejoin does not change the CAs
		cancel()
		must.OK(t, <-done)
		if got, want := strings.Join(p.saw, ", "), "old, old new, old new, new, old new"; got != want {
			t.Errorf("writes with CAs %s, want %s", got, want)
		}
		if edits != 1 {
			t.Errorf("got %d reports of edits, want 1", edits)
		}
	})
}

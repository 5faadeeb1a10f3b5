package clusterinfo_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestKubeconfigReadsBack(t *testing.T) {
	a, b := certtest.CA(t, "a"), certtest.CA(t, "b")
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://10.0.0.1:6443", []*x509.Certificate{a.Leaf, b.Leaf}))(t)
	server, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if server != "https://10.0.0.1:6443" || len(cas) != 2 || !cas[0].Equal(a.Leaf) || !cas[1].Equal(b.Leaf) {
		t.Errorf("got %s and %d CAs back from:\n%s", server, len(cas), kubeconfig)
	}
	again, _ := clusterinfo.Kubeconfig(server, cas)
	if !bytes.Equal(again, kubeconfig) {
		t.Errorf("got different bytes for the same input:\n%s\n%s", kubeconfig, again)
	}
	if same, err := clusterinfo.WithServer(kubeconfig, server); err != nil || !bytes.Equal(same, kubeconfig) {
		t.Errorf("WithServer with the same server: %v\n%s", err, same)
	}
	moved := must.Value(clusterinfo.WithServer(kubeconfig, "https://api.example:443"))(t)
	if server, cas, err := clusterinfo.ParseKubeconfig(moved); err != nil || server != "https://api.example:443" || len(cas) != 2 {
		t.Errorf("WithServer: %s, %d CAs, %v", server, len(cas), err)
	}
}

func TestKubeconfigRefuses(t *testing.T) {
	ca := certtest.CA(t, "a")
	leaf := must.Value(x509.ParseCertificate(certtest.Serving(t, ca, "127.0.0.1").Certificate[0]))(t)
	leaf.BasicConstraintsValid = true
	good := []*x509.Certificate{ca.Leaf}
	for name, test := range map[string]struct {
		server string
		cas    []*x509.Certificate
		want   string
	}{
		"no server":       {"", good, "server"},
		"http":            {"http://a:1", good, "server"},
		"no scheme":       {"a:6443", good, "server"},
		"no host":         {"https://:6443", good, "server"},
		"password":        {"https://u:p@a:6443", good, "server"},
		"query":           {"https://a:6443?x", good, "server"},
		"fragment":        {"https://a:6443#", good, "server"},
		"no CA":           {"https://a:6443", nil, "certificate-authority-data"},
		"nil CA":          {"https://a:6443", []*x509.Certificate{nil}, "certificate-authority-data"},
		"leaf":            {"https://a:6443", []*x509.Certificate{leaf}, "not a CA"},
		"too many CAs":    {"https://a:6443", bytesOver(ca.Leaf), "allowed"},
		"newline in host": {"https://a\nb:6443", good, "server"},
	} {
		_, err := clusterinfo.Kubeconfig(test.server, test.cas)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error about %q", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: the error contains the password: %v", name, err)
		}
	}
}

func bytesOver(ca *x509.Certificate) []*x509.Certificate {
	cas := make([]*x509.Certificate, clusterinfo.MaxKubeconfig/len(ca.Raw))
	for i := range cas {
		cas[i] = ca
	}
	return cas
}

func TestParseKubeconfig(t *testing.T) {
	ca := certtest.CA(t, "a")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw})
	data := base64.StdEncoding.EncodeToString(block)
	key := base64.StdEncoding.EncodeToString(append(block, "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"...))
	with := func(cluster, rest string) string {
		return "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n" + cluster + rest
	}
	fields := "    server: https://a:6443\n    certificate-authority-data: " + data + "\n"
	for name, test := range map[string]struct{ in, want string }{
		"kubeadm's": {with(fields, "contexts: null\ncurrent-context: \"\"\npreferences: {}\nusers: null\n"), ""},
		"extension": {with(fields+"    disable-compression: true\n", "extensions: []\n"), ""},
		"JSON":      {`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"","cluster":{"server":"https://a:6443","certificate-authority-data":"` + data + `"}}]}`, ""},

		"no kind": {strings.Replace(with(fields, ""), "apiVersion: v1\nkind: Config\n", "", 1), ""},
		"named":   {strings.Replace(with(fields, "contexts: [{name: c, context: {cluster: x, user: ''}}]\ncurrent-context: c\n"), `name: ""`, "name: x", 1), ""},

		"empty":             {"", "kubeconfig: empty"},
		"white space":       {" \n", "kubeconfig: empty"},
		"no context":        {strings.Replace(with(fields, ""), `name: ""`, "name: x", 1), "clusters[0].name"},
		"other context":     {strings.Replace(with(fields, "contexts: [{name: c, context: {cluster: x}}]\ncurrent-context: d\n"), `name: ""`, "name: x", 1), "clusters[0].name"},
		"empty CA":          {with("    server: https://a:6443\n    certificate-authority-data: ''\n", ""), "certificate-authority-data: empty"},
		"not YAML":          {"\t: {", "YAML"},
		"list":              {"[1,2]", "fields of the usual types"},
		"other kind":        {"apiVersion: v1\nkind: Secret\n", "apiVersion and kind"},
		"no cluster":        {"apiVersion: v1\nkind: Config\n", "clusters: 0"},
		"two clusters":      {with(fields, "- name: b\n  cluster:\n"+fields), "clusters: 2"},
		"two documents":     {with(fields, "---\nkind: Config\n"), "more than one YAML document"},
		"credential":        {with(fields, "users:\n- name: u\n  user: {token: hunter2}\n"), "users"},
		"other case":        {with(strings.Replace(fields, "server:", "Server:", 1), ""), "server"},
		"duplicate field":   {with(fields+"    server: https://b:6443\n", ""), "duplicate"},
		"http":              {with(strings.Replace(fields, "https", "http", 1), ""), "server"},
		"no CA":             {with("    server: https://a:6443\n", ""), "certificate-authority-data"},
		"CA not base64":     {with("    server: https://a:6443\n    certificate-authority-data: '%'\n", ""), "types"},
		"CA not PEM":        {with("    server: https://a:6443\n    certificate-authority-data: aGk=\n", ""), "certificate-authority-data"},
		"key in the bundle": {with("    server: https://a:6443\n    certificate-authority-data: "+key+"\n", ""), "other than CERTIFICATE"},
		"CA file":           {with(fields+"    certificate-authority: /etc/ca.crt\n", ""), "clusters[0].certificate-authority:"},
		"insecure":          {with(fields+"    insecure-skip-tls-verify: true\n", ""), "clusters[0].insecure-skip-tls-verify:"},
		"proxy":             {with(fields+"    proxy-url: http://evil\n", ""), "clusters[0].proxy-url:"},
		"other name":        {with(fields+"    tls-server-name: evil\n", ""), "clusters[0].tls-server-name:"},
		"too big":           {with(fields, "# "+strings.Repeat("x", clusterinfo.MaxKubeconfig)), "allowed"},
	} {
		server, cas, err := clusterinfo.ParseKubeconfig([]byte(test.in))
		switch {
		case test.want == "" && (err != nil || server != "https://a:6443" || len(cas) != 1):
			t.Errorf("%s: %q, %d CAs, %v", name, server, len(cas), err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: got %v, want an error with %q", name, err, test.want)
		case test.want != "" && (server != "" || cas != nil):
			t.Errorf("%s: got an error and %q, %v", name, server, cas)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error contains a credential: %v", name, err)
		}
	}
}

func TestParseCAsCallsEmptyBundleEmpty(t *testing.T) {
	for _, test := range []struct{ bundle, want string }{{"", "empty"}, {" \r\n", "empty"}, {"\x00", "no certificate found"}, {"no certificate", "no certificate found"}} {
		if cas, err := clusterinfo.ParseCAs([]byte(test.bundle)); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%q: got %d CAs, %v, want an error that begins with %q", test.bundle, len(cas), err, test.want)
		}
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	ca := certtest.CA(f, "a")
	good := must.Value(clusterinfo.Kubeconfig("https://10.0.0.1:6443", []*x509.Certificate{ca.Leaf}))(f)
	f.Add(good)
	f.Add(append(good, good...))
	f.Add([]byte("apiVersion: v1\nkind: Config\nusers: [{name: a}]\n"))
	f.Add([]byte("a: &a [1]\nb: [*a, *a]\n"))
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw}))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----"))
	for _, slow := range []string{"a: b,", "k: v\n", "- 1.1\n", "- 2001-01-01\n", "- &a x\n", "[", "{a: ", "? ", "- ", "\t", "- *a\n"} {
		f.Add([]byte(strings.Repeat(slow, clusterinfo.MaxKubeconfig/len(slow))))
		f.Add([]byte("[" + strings.Repeat(slow, clusterinfo.MaxKubeconfig/len(slow)-1) + "]"))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzzing.RunWithinLimit(t, func() {
			if cas, err := clusterinfo.ParseCAs(in); (err == nil) != (len(cas) > 0) {
				t.Errorf("%d CAs, %v", len(cas), err)
			}
			server, cas, err := clusterinfo.ParseKubeconfig(in)
			if err != nil {
				return
			}
			if _, err := clusterinfo.Kubeconfig(server, cas[:1]); err != nil && !strings.Contains(err.Error(), "not a CA") && !strings.Contains(err.Error(), "kubeconfig: server: ") {
				t.Errorf("got %q from ParseKubeconfig, but Kubeconfig fails: %v", server, err)
			}
		})
	})
}

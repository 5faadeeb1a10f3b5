package kubeadmcerts

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

const stacked = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncertificatesDir: /etc/kubernetes/pki\n"

// writeHost writes the files of a host below a folder. It returns the content of the files, which is a valid
// certificate.
func writeHost(t *testing.T, dir string, files ...string) string {
	t.Helper()
	content := must.Value(cert.EncodeCertificates(certtest.CA(t, "ca").Leaf))(t)
	for _, name := range files {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, content, 0o600))
	}
	return string(content)
}

var onStacked = []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key", "etcd/ca.crt", "etcd/ca.key"}

func without(list []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(names, s) })
}

// The names must be the same as in kubeadm's phases/copycerts.
func TestReadsFilesOfKubeadm(t *testing.T) {
	external := func(ca, crt, key string) string {
		return stacked + "etcd:\n  external:\n    endpoints: [https://192.0.2.1:2379]\n    caFile: " + ca + "\n    certFile: " + crt + "\n    keyFile: " + key + "\n"
	}
	outside := t.TempDir()
	writeHost(t, outside, "etcd.crt")
	all := []string{"ca.crt", "ca.key", "etcd-ca.crt", "etcd-ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub"}
	shared := without(all, "etcd-ca.crt", "etcd-ca.key")
	withExternal := slices.Sorted(slices.Values(append(slices.Clone(shared), "external-etcd-ca.crt", "external-etcd.crt", "external-etcd.key")))
	for name, test := range map[string]struct {
		config      string
		host        []string
		want, empty []string
		err         string
	}{
		"stacked etcd":         {stacked, onStacked, all, nil, ""},
		"external CA":          {stacked, without(onStacked, "ca.key", "front-proxy-ca.key", "etcd/ca.key"), without(all, "ca.key", "front-proxy-ca.key", "etcd-ca.key"), []string{"ca.key", "front-proxy-ca.key", "etcd-ca.key"}, ""},
		"external etcd":        {external("/etc/kubernetes/pki/etcd/ca.crt", "/etc/kubernetes/pki/client.crt", filepath.Join(outside, "etcd.crt")), append(without(onStacked, "etcd/ca.key"), "client.crt"), withExternal, nil, ""},
		"etcd without TLS":     {external(`""`, `""`, `""`), without(onStacked, "etcd/ca.crt", "etcd/ca.key"), shared, []string{"external-etcd-ca.crt", "external-etcd.crt", "external-etcd.key"}, ""},
		"no etcd client":       {external("/etc/kubernetes/pki/etcd/ca.crt", "/etc/etcd/none.crt", "/etc/etcd/none.key"), onStacked, nil, nil, "/etc/etcd/none.crt, /etc/etcd/none.key"},
		"no service account":   {stacked, without(onStacked, "sa.key", "sa.pub"), nil, nil, "pki/sa.pub, "},
		"no etcd CA":           {stacked, without(onStacked, "etcd/ca.crt"), nil, nil, "etcd/ca.crt"},
		"no front proxy CA":    {stacked, without(onStacked, "front-proxy-ca.crt"), nil, nil, "front-proxy-ca.crt"},
		"not a control plane":  {stacked, nil, nil, nil, "ca.crt"},
		"no certificates' dir": {"apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n", onStacked, all, nil, ""},
		"kubeadm before 1.31":  {strings.Replace(stacked, "v1beta4", "v1beta3", 1), onStacked, all, nil, ""},
		"experimental v1":      {strings.Replace(stacked, "v1beta4", "v1", 1), onStacked, all, nil, ""},
	} {
		dir := filepath.Join(t.TempDir(), "pki")
		content := writeHost(t, dir, test.host...)
		c, err := parseConfiguration(test.config)
		if err != nil {
			t.Fatal(name, err)
		}
		files, err := c.read(dir)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: got %v, want an error with %s", name, err, test.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := names(files); !slices.Equal(got, test.want) || len(files) != len(test.want)+len(test.empty) {
			t.Errorf("%s: got %v of %d, want %v and %v", name, got, len(files), test.want, test.empty)
		}
		for _, empty := range test.empty {
			if value, found := files[empty]; !found || len(value) > 0 {
				t.Errorf("%s: want an empty %s, which kubeadm requires in the Secret", name, empty)
			}
		}
		if name == "stacked etcd" && string(files["etcd-ca.key"]) != content {
			t.Errorf("%s: the content differs", name)
		}
	}
}

func TestReadRefusesFilesThatKubeadmCannotDownload(t *testing.T) {
	for what, content := range map[string]string{"empty": "", "text": "not a key", "larger": strings.Repeat("a", maxFile+1)} {
		dir := t.TempDir()
		writeHost(t, dir, onStacked...)
		must.OK(t, os.WriteFile(filepath.Join(dir, "ca.key"), []byte(content), 0o600))
		c := must.Value(parseConfiguration(stacked))(t)
		if _, err := c.read(dir); err == nil || !strings.Contains(err.Error(), "ca.key") || len(err.Error()) > 300 || content != "" && strings.Contains(err.Error(), content) {
			t.Errorf("%s: got %.400v, want an error that names ca.key", what, err)
		}
	}
}

func TestParseConfigurationRefuses(t *testing.T) {
	for content, want := range map[string]string{
		"":                          `kind "" given`,
		"kind: InitConfiguration\n": `kind "InitConfiguration" given`,
		"a: [":                      "malformed YAML",
		stacked + "etcd: 5\n":       "malformed YAML",
		strings.Replace(stacked, "v1beta4", "v1beta2", 1):                       `apiVersion "kubeadm.k8s.io/v1beta2" given, want kubeadm.k8s.io/v1beta3, kubeadm.k8s.io/v1beta4, kubeadm.k8s.io/v1`,
		strings.Replace(stacked, "v1beta4", "v2", 1):                            `apiVersion "kubeadm.k8s.io/v2" given`,
		strings.Replace(stacked, "kubeadm.k8s.io", "kubeadm.example", 1):        `apiVersion "kubeadm.example/v1beta4" given`,
		strings.Replace(stacked, "apiVersion: kubeadm.k8s.io/v1beta4\n", "", 1): `apiVersion "" given`,
	} {
		if c, err := parseConfiguration(content); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want an error with %s", content, c, err, want)
		}
	}
}

// The ClusterConfiguration names files to read, but only people who may write in kube-system can change it.
func FuzzParseConfiguration(f *testing.F) {
	f.Add(stacked)
	f.Add(stacked + "etcd:\n  external:\n    caFile: /etc/kubernetes/pki/../../../a\n    certFile: x\n    keyFile: ''\n")
	f.Fuzz(func(t *testing.T, content string) {
		fuzzing.RunWithinLimit(t, func() {
			c, err := parseConfiguration(content)
			if err != nil {
				return
			}
			list := c.sources("/pki")
			if n := len(list); n != 8 && n != 9 {
				t.Errorf("got %d files, want 8 or 9", n)
			}
			for _, s := range list[:6] {
				if filepath.Dir(s.path) != "/pki" {
					t.Errorf("%s is in %s", s.name, s.path)
				}
			}
		})
	})
}

// Without one of the files, nobody must be able to compute the key that decrypts it.
func TestKeyNeedsAllFilesAndSalt(t *testing.T) {
	files := Files{"ca.key": []byte("a"), "sa.key": []byte("b"), "etcd-ca.key": nil}
	key := files.key("salt")
	if again := files.key("salt"); again != key {
		t.Error("the same files and salt have two keys")
	}
	for name, other := range map[string]Files{
		"another ca.key": {"ca.key": []byte("c"), "sa.key": []byte("b"), "etcd-ca.key": nil},
		"another sa.key": {"ca.key": []byte("a"), "sa.key": []byte("c"), "etcd-ca.key": nil},
		"swapped":        {"ca.key": []byte("b"), "sa.key": []byte("a"), "etcd-ca.key": nil},
		"no ca.key":      {"ca.key": nil, "sa.key": []byte("b"), "etcd-ca.key": nil},
	} {
		if other.key("salt") == key {
			t.Errorf("%s: got the same key", name)
		}
	}
	if files.key("another") == key {
		t.Error("another salt has the same key")
	}
}

// A key from a clock that is far ahead must not be shared, because it would be valid for too long.
func TestKeyFromFutureIsNotShared(t *testing.T) {
	files := Files{"sa.key": []byte("private")}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for ahead, want := range map[time.Duration]bool{0: true, maxSkew: true, maxSkew + time.Second: false, 365 * 24 * time.Hour: false} {
		made := must.Value(plan(stored{}, files, now.Add(ahead)))(t)
		live := stored{secret: &corev1.Secret{Data: made.data}, owner: &corev1.Secret{}, expires: made.expires}
		live.secret.Annotations = map[string]string{saltAnnotation: made.salt}
		if next, err := plan(live, files, now); err != nil || next.shared != want {
			t.Errorf("%s ahead: got shared %v, %v, want %v", ahead, next.shared, err, want)
		}
	}
}

// FuzzSecret shows that no content of the Secret stops an upload or a download. A Secret from another program must
// never be treated as an upload of these files.
func FuzzSecret(f *testing.F) {
	files := Files{"ca.crt": []byte("certificate"), "ca.key": nil, "sa.key": []byte("private")}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := must.Value(plan(stored{}, files, now))(f)
	f.Add(first.salt, first.key.Reveal(), "sa.key", first.data["sa.key"])
	f.Add("2026-01-02T03:04:05Z/", strings.Repeat("0", 64), "", []byte("short"))
	f.Add("9999-12-31T23:59:59+23:59/x", "g", "ca.key", bytes.Repeat([]byte{0}, 40))
	f.Fuzz(func(t *testing.T, salt, key, name string, value []byte) {
		fuzzing.RunWithinLimit(t, func() {
			data := maps.Clone(first.data)
			data[name] = value
			live := stored{secret: &corev1.Secret{Data: data}, owner: &corev1.Secret{}, expires: now.Add(time.Hour)}
			live.secret.Annotations = map[string]string{saltAnnotation: salt}
			next, err := plan(live, files, now)
			if same := salt == first.salt && bytes.Equal(data["sa.key"], first.data["sa.key"]) && bytes.Equal(data["ca.crt"], first.data["ca.crt"]) && len(data["ca.key"]) == 0 && len(data) == 3; err != nil || next.shared != same {
				t.Errorf("got shared %v, %v, want %v", next.shared, err, same)
			}
			if inside, err := Decrypt(next.data, next.key); err != nil || !inside.equal(files) {
				t.Errorf("the upload does not have the files: %v", err)
			}
			parsed, err := joinformat.ParseCertificateKey(key)
			if err != nil {
				return
			}
			if inside, err := Decrypt(data, parsed); err != nil && (inside != nil || strings.Contains(err.Error(), key)) {
				t.Errorf("got %v, %v", inside, err)
			}
		})
	})
}

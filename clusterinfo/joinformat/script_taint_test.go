package joinformat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"sigs.k8s.io/yaml"
)

// kubeadm must read the taint once, beside all that the user gives. Catches a file that replaces the taint, a taint that
// replaces the user's, and a file with two fields of one name, which kubeadm refuses.
func TestScriptMergesTaint(t *testing.T) {
	t.Parallel()
	ca := certtest.CA(t, "cluster")
	s := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	j := joinOf(t, s, ca)
	j.JoiningTaint = true
	const joining = "kubejoin.io/joining:NoSchedule"
	for name, test := range map[string]struct {
		added string
		want  string // name of the node and its taints; empty: refused
	}{
		"nothing":                  {"", " " + joining},
		"other fields":             {"dryRun: false", " " + joining},
		"another document":         {"dryRun: false\n---\nnodeRegistration:\n  name: b\n", " " + joining},
		"only another document":    {"---\nnodeRegistration:\n  name: b\n", " " + joining},
		"a name":                   {"nodeRegistration:\n  name: a\n  kubeletExtraArgs:\n  - name: v\n    value: taints\n", "a " + joining},
		"a deep name":              {"patches: {}\nnodeRegistration: # of rack 7\n\n# taints: []\n      name: a\ndryRun: false", "a " + joining},
		"a name in a flow":         {"nodeRegistration: {name: a}\n", "a " + joining},
		"an empty flow":            {"nodeRegistration: {}", " " + joining},
		"no fields":                {"nodeRegistration:\ndryRun: false\n", " " + joining},
		"JSON":                     {"\"nodeRegistration\": {\"name\": \"a\"}", "a " + joining},
		"Windows":                  {"nodeRegistration:\r\n  name: a\r\n  taints: []\r\n", "a " + joining},
		"a taint":                  {"nodeRegistration:\n  taints:\n  - key: b\n    effect: NoExecute\n  name: a\n", "a " + joining + " b:NoExecute"},
		"a deeper taint":           {"nodeRegistration:\n  taints: # mine\n\n    # the first\n    - key: b\n      effect: NoExecute\n    - key: c\n      effect: NoSchedule", " " + joining + " b:NoExecute c:NoSchedule"},
		"no taints":                {"nodeRegistration:\n  taints: []\n", " " + joining},
		"empty taints":             {"nodeRegistration:\n  taints:\n  name: a\n", "a " + joining},
		"a taint in a flow":        {"nodeRegistration:\n  name: a\n  taints: [{key: b, effect: NoExecute}]\n", "a " + joining + " b:NoExecute"},
		"a flow of lines":          {"nodeRegistration:\n  taints: [\n    {key: b, effect: NoExecute},\n  ]\n", " " + joining + " b:NoExecute"},
		"taints of something else": {"patches:\n  taints: []\nnodeRegistration:\n  kubeletExtraArgs:\n    taints: []\n", " " + joining},
		"the taint in a comment":   {"# kubejoin.io/joining\nnodeRegistration:\n  name: a # kubejoin.io/joining\n", "a " + joining},
		"the flag in a comment":    {"nodeRegistration: # not register-with-taints\n  name: a\n", "a " + joining},
		"single quotes":            {"'nodeRegistration':\n  'taints':\n  - key: b\n    effect: NoExecute\n", " " + joining + " b:NoExecute"},

		"a flag of the kubelet":    {"nodeRegistration:\n  kubeletExtraArgs:\n  - name: register-with-taints\n    value: b:NoExecute\n", ""},
		"taints in a flow of all":  {"nodeRegistration: {taints: []}\n", ""},
		"a flow of all over lines": {"nodeRegistration: {\n  name: a}\n", ""},
		"an alias":                 {"nodeRegistration: *all\n", ""},
		"the taint itself":         {"nodeRegistration:\n  taints:\n  - key: kubejoin.io/joining\n    effect: NoSchedule\n", ""},
		"the taint in a label":     {"nodeRegistration:\n  kubeletExtraArgs:\n  - name: node-labels\n    value: kubejoin.io/joining-x=y\n", ""},
		"two of one name":          {"nodeRegistration:\n  name: a\nnodeRegistration:\n  name: b\n", ""},
		"a key with a mark":        {"? nodeRegistration\n: name: a\n", ""},
		"a key with a tag":         {"nodeRegistration:\n  !!str taints: []\n", ""},
		"null":                     {"nodeRegistration:\n  taints: null\n", ""},
	} {
		for _, awk := range [][]string{{"awk"}, {"busybox", "awk"}} {
			t.Run(name+", "+awk[0], func(t *testing.T) {
				t.Parallel()
				if awk[0] == "busybox" {
					need.Programs(t, awk[0])
				}
				m := newMachine(t, j)
				m.kubeadm(t, 0)
				m.write(t, "bin/awk", "#!/bin/sh\nPATH=/usr/bin:/bin\nexec "+strings.Join(awk, " ")+` "$@"`+"\n")
				args := []string{}
				if test.added != "" {
					m.write(t, "more.yaml", test.added)
					args = []string{"--add-config", m.file("more.yaml")}
				}
				output, code := m.run(t, args...)
				if test.want == "" {
					if _, err := os.Stat(m.file("args")); code != 1 || err == nil || !strings.Contains(output, "--add-config: cannot add the taint "+joining+" to "+filepath.Join(m.dir, "more.yaml")) {
						t.Errorf("got exit code %d, want 1 and no kubeadm:\n%s", code, output)
					}
					return
				}
				if code != 0 {
					t.Fatalf("got exit code %d:\n%s", code, output)
				}
				config, _, _ := strings.Cut(m.read(t, "config"), "\n---")
				var got struct {
					NodeRegistration struct {
						Name   string
						Taints []struct{ Key, Effect string }
					}
				}
				must.OK(t, json.Unmarshal(must.Value(yaml.YAMLToJSONStrict([]byte(config)))(t), &got))
				var taints []string
				for _, one := range got.NodeRegistration.Taints {
					taints = append(taints, one.Key+":"+one.Effect)
				}
				slices.Sort(taints)
				want := strings.Fields(test.want)
				slices.Sort(want)
				if all := append(strings.Fields(got.NodeRegistration.Name), taints...); strings.Join(slices.Sorted(slices.Values(all)), " ") != strings.Join(want, " ") {
					t.Errorf("got %q, want %q:\n%s", all, want, config)
				}
			})
		}
	}
	m := newMachine(t, j)
	if output, code := m.run(t, "--no-kubeadm"); code != 0 || !strings.Contains(output, " --register-with-taints="+joining+"\n") {
		t.Errorf("without kubeadm: got exit code %d:\n%s", code, output)
	}
}

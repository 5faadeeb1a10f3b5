package clusterinfo_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/fuzzing"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// FuzzReadAnswer reads responses of an untrusted discovery endpoint. It must accept only signed kubeconfigs.
func FuzzReadAnswer(f *testing.F) {
	token := mustToken(f, "abc123.9876543210fedcba")
	jws := must.Value(clusterinfo.Sign([]byte("a kubeconfig"), token))(f)
	good := must.Value(clusterinfo.MarshalConfigMap(map[string]string{"kubeconfig": "a kubeconfig", clusterinfo.SignatureKey("abc123"): jws}))(f)
	f.Add(good)
	f.Add([]byte(strings.Replace(string(good), "a kubeconfig", "another", 1)))
	f.Add([]byte(`{"DATA":{"kubeconfig":null},"data":{"kubeconfig":1}}`))
	f.Add([]byte(`{"data":{` + strings.Repeat(`"":"",`, 50_000) + `"":""}}`))
	f.Add([]byte(strings.Repeat("[", 100_000)))
	f.Fuzz(func(t *testing.T, body []byte) {
		fuzzing.RunWithinLimit(t, func() {
			kubeconfig, err := clusterinfo.ReadAnswer(body, token)
			if err == nil && kubeconfig != "a kubeconfig" { // this test signs nothing else
				t.Errorf("got trusted response %q", kubeconfig)
			}
			if err != nil && (kubeconfig != "" || strings.Contains(err.Error(), token.RevealSecret())) {
				t.Errorf("%q, %v", kubeconfig, err)
			}
		})
	})
}

// FuzzMerge merges into a ConfigMap with any content. The result must contain valid signatures of all live tokens and
// all foreign keys except stale signatures. A second merge must change nothing.
func FuzzMerge(f *testing.F) {
	live, unknown := record(f, "aaaaaa.9876543210fedcba"), onlyID(f, "ffffff")
	f.Add("kubeconfig", "a kubeconfig", "jws-kubeconfig-aaaaaa", "a..b", "jws-kubeconfig-zzzzzz", "dead", 0)
	f.Add("kubeconfig", "another", "jws-kubeconfig-ffffff", "x", "note", "keep me", 150)
	f.Add("jws-kubeconfig-", "", "", "\xff", "kubeconfig", "", -1)
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2, key3, value3 string, limit int) {
		current := map[string]string{key1: value1, key2: value2, key3: value3}
		kept := maps.Clone(current)
		fuzzing.RunWithinLimit(t, func() {
			d := update(t, clusterinfo.Document{}, kubeconfig, start, live, unknown)
			m := d.Merge(current, limit)
			if !maps.Equal(current, kept) {
				t.Error("Merge changed its argument")
			}
			if m.Changed == maps.Equal(m.Data, current) {
				t.Errorf("changed: %v", m.Changed)
			}
			if again := d.Merge(m.Data, limit); again.Changed {
				t.Errorf("second Merge: got %[2]q, want %[1]q", m.Data, again.Data)
			}
			bytes := 0
			for key, value := range m.Data {
				bytes += len(value)
				id, isSignature := strings.CutPrefix(key, clusterinfo.SignaturePrefix)
				switch {
				case key == clusterinfo.KubeconfigKey:
					if value != string(kubeconfig) {
						t.Errorf("kubeconfig is %q", value)
					}
				case !isSignature:
					if was, found := current[key]; !found || was != value {
						t.Errorf("key %q: got %q, want %q", key, value, was)
					}
				case id == "aaaaaa":
					if err := clusterinfo.Verify(kubeconfig, value, live.Token); err != nil {
						t.Error(err)
					}
				case id != "ffffff" || value == "" || value != current[key]:
					t.Errorf("signature %q is %q", key, value)
				}
			}
			for key := range current {
				if _, found := m.Data[key]; !found && !strings.HasPrefix(key, clusterinfo.SignaturePrefix) {
					t.Errorf("key %q is missing", key)
				}
			}
			signed := m.Data[clusterinfo.SignatureKey("aaaaaa")] != ""
			if bytes != m.Bytes || signed == (len(m.LeftOut) == 1) || limit <= 0 && !signed || limit > 0 && signed && bytes > limit {
				t.Errorf("limit %d: %d bytes, said %d; signed %v, left out %q", limit, bytes, m.Bytes, signed, m.LeftOut)
			}
		})
	})
}

// FuzzJoinCommand builds a join command from any input. It must fail, or return one line of plain words for a shell.
func FuzzJoinCommand(f *testing.F) {
	pin := "sha256:" + strings.Repeat("0a", 32)
	f.Add("10.0.0.1:6443", pin)
	f.Add("[fe80::1]:6443", pin+","+strings.ToUpper(pin))
	f.Add("$(reboot):1", "sha256:;")
	f.Add("[::1%eth0]:99999", "")
	token := mustToken(f, "abc123.9876543210fedcba")
	f.Fuzz(func(t *testing.T, endpoint, pins string) {
		command := clusterinfo.JoinCommand{Endpoint: endpoint, Token: token, Pins: strings.Split(pins, ",")}
		fuzzing.RunWithinLimit(t, func() {
			line, err := command.Reveal()
			if err != nil {
				if strings.Contains(err.Error(), token.RevealSecret()) && !strings.Contains(endpoint+pins, token.RevealSecret()) {
					t.Errorf("got the secret in %v", err)
				}
				return
			}
			for _, printed := range []string{line, strings.Replace(line, " --discovery", " \\\r\n\t--discovery", 1)} {
				if got, err := clusterinfo.ParseJoinCommand(printed); err != nil || got.String() != command.String() {
					t.Errorf("%s: parsed as %s, %v", command, got, err)
				}
			}
			words := strings.Split(line, " ")
			if len(words) < 7 || len(words)%2 == 0 || words[0] != "kubeadm" || words[4] != token.Reveal() {
				t.Fatalf("not a join command: %q", line)
			}
			if quoted, found := strings.CutPrefix(words[2], "'"); found {
				words[2] = strings.Trim(strings.TrimSuffix(quoted, "'"), "[]") // quoted
			}
			for _, word := range words {
				if strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:]") != "" {
					t.Errorf("a shell may see more than words in %q", line)
				}
			}
			if strings.Contains(command.String(), token.RevealSecret()) {
				t.Errorf("not redacted: %s", command)
			}
			if _, err := json.Marshal(line); err != nil {
				t.Error(err)
			}
		})
	})
}

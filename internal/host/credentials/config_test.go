package credentials_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/tools/clientcmd"
)

// The error of client-go names KUBERNETES_MASTER, which no user has set. Catches an error that lacks the flag or variable, the
// file, or the fault of the file.
func TestLoadConfigNamesSourceFileAndFault(t *testing.T) {
	empty, other, missing := filepath.Join(t.TempDir(), "empty"), filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "missing")
	must.OK(t, os.WriteFile(empty, nil, 0o600))
	must.OK(t, os.WriteFile(other, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	malformed, two := filepath.Join(t.TempDir(), "malformed"), filepath.Join(t.TempDir(), "two")
	must.OK(t, os.WriteFile(malformed, []byte("apiVersion: v1\nkind: Config\nusers: {secret-0123456789: a}\n"), 0o600))
	must.OK(t, os.WriteFile(two, []byte("apiVersion: v1\nkind: Config\n---\nkind: Config\n"), 0o600))
	for files, want := range map[string][]string{
		missing + ":" + malformed: {malformed + ": want a kubeconfig: YAML with kind Config"},
		two:                       {two + ": more than one YAML document given"},
		filepath.Dir(empty):       {filepath.Dir(empty) + ": is a directory"},
		missing:                   {missing + ": there is no such file"},
		empty:                     {empty + ": the file is empty"},
		other:                     {other + ": the file has no current context, or no cluster for it"},
		missing + ":" + empty:     {missing + ": there is no such file", empty + ": the file is empty"},
	} {
		t.Setenv("KUBECONFIG", files)
		_, err := credentials.LoadConfig(clientcmd.NewDefaultClientConfigLoadingRules(), "")
		for _, text := range want {
			if err == nil || !strings.HasPrefix(err.Error(), "$KUBECONFIG: ") || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "KUBERNETES_MASTER") {
				t.Errorf("%s: got %v, want %q", files, err, text)
			}
		}
	}
	for file, want := range map[string]string{empty: "the file is empty", missing: "there is no such file"} {
		if _, err := credentials.LoadConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, ""); err == nil || err.Error() != "--kubeconfig: "+file+": "+want {
			t.Errorf("got %v, want the flag and the file", err)
		}
	}
}

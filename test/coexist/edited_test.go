package coexist

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestRepairsEditedClusterInfo edits and deletes cluster-info. It catches an edit that kubejoin neither repairs nor
// reports, and a join command or token made from an unusable kubeconfig.
func TestRepairsEditedClusterInfo(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	args, token := s.JoinArgs(t, "")
	pin := args[len(args)-1]
	good := s.ClusterInfo(t)
	put := func(data map[string]any) {
		t.Helper()
		patch := must.Value(json.Marshal(map[string]any{"data": data}))(t)
		s.RunKubectl(t, "-n", "kube-public", "patch", "configmap", "cluster-info", "--type=merge", "-p", string(patch))
	}
	discovers := func() error {
		_, err := clusterinfo.Discover(t.Context(), s.Endpoint, token, []string{pin})
		return err
	}
	ready := func(failing string) error {
		status, body, err := s.Get(t.Context(), "/readyz?verbose", "")
		if err == nil && (status == 200) != (failing == "") || !strings.Contains(body, failing) {
			err = fmt.Errorf("/readyz returns %d %s, want %q", status, body, failing)
		}
		return err
	}
	waitRepaired := func(what string) {
		t.Helper()
		harness.Wait(t, "repair of "+what, func() error {
			if now := s.ClusterInfo(t); now["kubeconfig"] != good["kubeconfig"] || now[clusterinfo.SignatureKey(token.ID())] != good[clusterinfo.SignatureKey(token.ID())] {
				return fmt.Errorf("cluster-info has keys %q, or another kubeconfig or signature than before", slices.Sorted(maps.Keys(now)))
			}
			return ready("")
		})
		if err := discovers(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		s.JoinArgs(t, "")
	}

	put(map[string]any{"jws-kubeconfig-foreig": "e30..c29tZWJvZHkgZWxzZQ", clusterinfo.SignatureKey(token.ID()): "e30..YnkgaGFuZA"})
	waitRepaired("a foreign signature and a wrong one")
	harness.Wait(t, "removal of the foreign signature", func() error {
		if s.ClusterInfo(t)["jws-kubeconfig-foreig"] != "" {
			return fmt.Errorf("cluster-info still has it")
		}
		return nil
	})
	s.RunKubectl(t, "-n", "kube-public", "delete", "configmap", "cluster-info")
	waitRepaired("a deleted cluster-info")
	put(map[string]any{"kubeconfig": nil})
	waitRepaired("a missing kubeconfig")

	for what, edit := range map[string]string{
		"without CA":      strings.Replace(good["kubeconfig"], "certificate-authority-data", "something-else", 1),
		"with credential": strings.Replace(good["kubeconfig"], "users: null", "users: [{name: a, user: {token: kkkkkkkkkkkkkkkk}}]", 1),
	} {
		if edit == good["kubeconfig"] {
			t.Fatalf("%s: nothing was edited in\n%s", what, edit)
		}
		before := tokenSecrets(t, s)
		put(map[string]any{"kubeconfig": edit})
		harness.Wait(t, "/readyz to report a kubeconfig "+what, func() error { return ready("[-]cluster-info failed: kubeconfig: ") })
		status, body, err := s.Get(t.Context(), harness.ClusterInfoPath, "")
		if err != nil || status != 500 || !strings.Contains(body, "joining nodes cannot use the kubeconfig") || strings.Contains(body, "kkkkkkkk") {
			t.Errorf("%s: discovery returns %d %s, %v, want 500 without the credential", what, status, body, err)
		}
		if line, err := s.JoinCommand(t, ""); err == nil || !strings.Contains(err.Error(), "malformed-cluster-info") || strings.Contains(err.Error(), "was deleted") {
			t.Errorf("%s: got a join command of %d bytes, %v; want problem malformed-cluster-info", what, len(line), err)
		}
		if after := tokenSecrets(t, s); after != before {
			t.Errorf("%s: got tokens\n%s\nwant\n%s", what, after, before)
		}
		harness.Wait(t, "the log to report a kubeconfig "+what, func() error {
			if !strings.Contains(s.Log(), "kubeconfig in cluster-info is malformed") {
				return errors.New("not in the log")
			}
			return nil
		})
		put(map[string]any{"kubeconfig": good["kubeconfig"]})
		waitRepaired("a kubeconfig " + what)
	}
}

func tokenSecrets(t *testing.T, s *harness.Site) string {
	t.Helper()
	return s.RunKubectl(t, "-n", "kube-system", "get", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", "name")
}

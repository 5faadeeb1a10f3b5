package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// TestVersionChoosesPrograms catches programs of two versions that share a folder.
func TestVersionChoosesPrograms(t *testing.T) {
	versions := must.Value(Versions())(t)
	var folders []string
	for _, version := range versions {
		p := must.Value(choose(version))(t)
		m := kube(p)
		if flags := strings.Join(m.flags, " "); !strings.Contains(flags, "gitVersion=v"+version+" ") {
			t.Errorf("%s: go build has the flags %s", version, flags)
		}
		folders = append(folders, m.bin)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(folders)))) != len(versions) {
		t.Errorf("the programs of %v are in %v", versions, folders)
	}
	if p, err := choose(""); err != nil || p.version != versions[len(versions)-1] || kube(p).bin != "bin" {
		t.Errorf("without a version: got %v, %v, want the newest", p, err)
	}
	if _, err := choose("1.2.3"); err == nil || !strings.Contains(err.Error(), `invalid KUBE="1.2.3": want one of `+strings.Join(versions, ", ")) {
		t.Errorf("unknown version: got error %v", err)
	}
}

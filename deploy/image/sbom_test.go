package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

// The SBOM must list the modules that `go version -m` prints, and for an image also the module with the CA certificates.
func TestSBOMListsTheModulesOfTheBinaryAndNoOthers(t *testing.T) {
	for _, platform := range append(platforms, "darwin-arm64") {
		binary := "kubejoin-v1.2.3-" + platform
		output, err := exec.Command("go", "version", "-m", filepath.Join(dist, binary)).Output()
		if err != nil {
			t.Fatal(err)
		}
		goVersion := regexp.MustCompile(`: go(1\.\S+)`).FindSubmatch(output)
		want := []string{module + " v1.2.3", "stdlib " + string(goVersion[1])}
		for _, m := range regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllSubmatch(output, -1) {
			want = append(want, string(m[1])+" "+string(m[2]))
		}
		if len(want) < 30 {
			t.Fatalf("%s: %d modules: `go version -m` was not understood", platform, len(want))
		}
		doc := parse(t, read(t, binary+".spdx.json"))
		if strings.HasPrefix(platform, "linux") {
			want = append(want, "ghcr.io/kubejoin/kubejoin v1.2.3")
			required, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", roots).Output()
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, roots+" "+strings.TrimSpace(string(required)))
		}
		var got []string
		for _, p := range doc.Packages {
			got = append(got, p.PackageName+" "+p.PackageVersion)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant:\n%s", platform, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestSBOMDescribesBinaryAndImage(t *testing.T) {
	for _, platform := range platforms {
		digest, err := image(t, platform).Digest()
		if err != nil {
			t.Fatal(err)
		}
		binary := "kubejoin-v1.2.3-" + platform
		doc := parse(t, read(t, binary+".spdx.json"))
		if got, want := doc.CreationInfo.Created, "2026-01-01T00:00:00Z"; got != want {
			t.Errorf("%s: created %s, want %s", platform, got, want)
		}
		var described []string
		for _, r := range doc.Relationships {
			if r.Relationship == "DESCRIBES" {
				described = append(described, string(r.RefB.ElementRefID))
			}
		}
		if want := []string{"Package-ghcr.io-kubejoin-kubejoin-v1.2.3"}; !slices.Equal(described, want) {
			t.Errorf("%s: describes %q, want %q", platform, described, want)
		}
		sums := map[string]string{}
		for _, p := range doc.Packages {
			for _, sum := range p.PackageChecksums {
				sums[p.PackageName] = sum.Value
			}
		}
		if got := sums[repository]; got != digest.Hex {
			t.Errorf("%s: image %s, want %s", platform, got, digest.Hex)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(read(t, binary))); sums[module] != want {
			t.Errorf("%s: binary %s, want %s", platform, sums[module], want)
		}
	}
}

func TestSBOMNamesReplacement(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Deps: []*debug.Module{{
		Path: "example.com/a", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/b", Version: "v2.0.0+incompatible"},
	}}}
	content, err := newSBOM("kubejoin", []byte("binary"), info, nil, source{"v1.2.3", "abc", time.Unix(epoch, 0).UTC()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range parse(t, content).Packages {
		got = append(got, p.PackageExternalReferences[0].Locator)
	}
	want := []string{"pkg:golang/github.com/kubejoin/kubejoin@v1.2.3", "pkg:golang/stdlib@1.26.8", "pkg:golang/example.com/b@v2.0.0%2Bincompatible"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

var validID = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)

// parse parses and checks an SPDX document.
func parse(t *testing.T, content []byte) *spdx.Document {
	t.Helper()
	if !bytes.Contains(content, []byte(`"spdxVersion": "SPDX-2.3"`)) {
		t.Error("want SPDX-2.3")
	}
	doc, err := json.Read(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(doc); err != nil {
		t.Error(err)
	}
	seen := map[common.ElementID]bool{"DOCUMENT": true}
	for _, p := range doc.Packages {
		if id := p.PackageSPDXIdentifier; seen[id] || !validID.MatchString(string(id)) {
			t.Errorf("identifier %s is used twice or invalid", id)
		} else {
			seen[id] = true
		}
	}
	return doc
}

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// VersionVariable is the environment variable that chooses the Kubernetes version of the tests, for example "1.35.4". Empty
// means the newest.
const VersionVariable = "KUBE"

// A pin is a Kubernetes version that test/kube pins.
type pin struct {
	version string // for example "1.37.2"
	modfile string // in test/kube
}

// Versions returns the Kubernetes versions that the tests can run, the oldest first.
func Versions() ([]string, error) {
	pins, err := pins()
	var versions []string
	for _, p := range pins {
		versions = append(versions, p.version)
	}
	return versions, err
}

var kubeRequirement = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes v(\d+\.\d+\.\d+\S*)`)

// pins returns the pinned versions, the oldest first. go.mod has the newest version, and a file go.VERSION.mod has each
// other version.
func pins() ([]pin, error) {
	root, err := Repository()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, "test", "kube", "go*.mod"))
	if err != nil {
		return nil, err
	}
	var pins []pin
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m := kubeRequirement.FindSubmatch(data)
		if m == nil {
			return nil, fmt.Errorf("%s does not require k8s.io/kubernetes", file)
		}
		pins = append(pins, pin{string(m[1]), filepath.Base(file)})
	}
	sort.Slice(pins, func(i, j int) bool {
		return version.MustParseGeneric(pins[i].version).LessThan(version.MustParseGeneric(pins[j].version))
	})
	for i, p := range pins {
		want := "go." + p.version + ".mod"
		if i == len(pins)-1 {
			want = "go.mod"
		}
		if p.modfile != want {
			return nil, fmt.Errorf("test/kube/%s requires Kubernetes %s, which belongs into %s", p.modfile, p.version, want)
		}
	}
	return pins, nil
}

// choose returns the version with this number, or the newest version if number is empty.
func choose(number string) (pin, error) {
	pins, err := pins()
	if err != nil {
		return pin{}, err
	}
	if number == "" {
		return pins[len(pins)-1], nil
	}
	var known []string
	for _, p := range pins {
		if p.version == number {
			return p, nil
		}
		known = append(known, p.version)
	}
	return pin{}, fmt.Errorf("invalid %s=%q: want one of %s", VersionVariable, number, strings.Join(known, ", "))
}

package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

// MaxProperties is the maximum number of labels of a token, and of taints.
const MaxProperties = 16

// Values of [NodeProperties.ReadyAfter].
const (
	ReadyAfterLabels             = "labels"
	ReadyAfterServingCertificate = "serving-certificate"
)

// JoiningTaint is the key of the taint that a kubelet registers with if its token has [NodeProperties.ReadyAfter]. Its effect
// is NoSchedule. kubejoin removes it.
const JoiningTaint = "kubejoin.io/joining"

// NodeProperties are what a Node gets from the token that admits its machine. Compare two values with ==.
type NodeProperties struct {
	// Labels are KEY=VALUE, joined with commas and sorted. Empty means none.
	Labels string `json:"labels,omitempty"`
	// Taints are KEY=VALUE:EFFECT or KEY:EFFECT, as in kubectl taint, joined with commas and sorted. Empty means none.
	Taints string `json:"taints,omitempty"`
	// ReadyAfter is what a Node must have before kubejoin removes [JoiningTaint] from it: [ReadyAfterLabels] are its Labels
	// and Taints, [ReadyAfterServingCertificate] are these and a serving certificate. Empty means that machines do not
	// register with the taint.
	ReadyAfter string `json:"readyAfter,omitempty"`
}

// JoinProperties returns labels or taints in the form of [NodeProperties]. It does not check them.
func JoinProperties(all []string) string {
	all = slices.Clone(all)
	slices.Sort(all)
	return strings.Join(all, ",")
}

// A Taint is one of [NodeProperties.Taints], with the fields of a taint in Kubernetes.
type Taint struct{ Key, Value, Effect string }

func (t Taint) String() string {
	if t.Value == "" {
		return t.Key + ":" + t.Effect
	}
	return t.Key + "=" + t.Value + ":" + t.Effect
}

// LabelMap returns the labels by key. The properties must be valid.
func (p NodeProperties) LabelMap() map[string]string {
	all := map[string]string{}
	for _, label := range SplitProperties(p.Labels) {
		key, value, _ := strings.Cut(label, "=")
		all[key] = value
	}
	return all
}

// TaintList returns the taints. The properties must be valid.
func (p NodeProperties) TaintList() []Taint {
	var all []Taint
	for _, text := range SplitProperties(p.Taints) {
		all = append(all, taintOf(text))
	}
	return all
}

func taintOf(text string) Taint {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(rest, "=")
	return Taint{key, value, effect}
}

// SplitProperties returns the parts that [JoinProperties] has joined.
func SplitProperties(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, ",")
}

// propertyWord is a label value of Kubernetes, and the part of a key after its prefix.
var propertyWord = regexp.MustCompile(`\A[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\z`)

// owners are the prefixes and keys that a token must not set, and who sets them.
var owners = []struct{ pattern, who string }{
	{"kubejoin.io/*", "kubejoin"},
	{"*.kubejoin.io/*", "kubejoin"},
	{"kubernetes.io/hostname", "the kubelet"},
	{"kubernetes.io/os", "the kubelet"},
	{"kubernetes.io/arch", "the kubelet"},
	{"beta.kubernetes.io/*", "the kubelet"},
	{"node.kubernetes.io/*", "the kubelet, the cloud or kube-controller-manager"},
	{"node.cloudprovider.kubernetes.io/*", "the cloud"},
	{"cloud.google.com/*", "the cloud"},
	{"eks.amazonaws.com/*", "the cloud"},
	{"kubernetes.azure.com/*", "the cloud"},
	{"topology.kubernetes.io/*", "the cloud"},
	{"failure-domain.beta.kubernetes.io/*", "the cloud"},
}

// checkKey returns an error if key is not a label key of Kubernetes, or if a token must not set it.
func checkKey(key string) error {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	if !propertyWord.MatchString(name) || found && !dnsname.IsSubdomain(prefix) {
		return fmt.Errorf("key %.300q, want [PREFIX/]NAME of at most 63 characters of [A-Za-z0-9_.-], with a DNS name as PREFIX", Redact(key))
	}
	for _, o := range owners {
		if MatchNodeName(o.pattern, key) {
			return fmt.Errorf("key %s, want one that %s does not set", key, o.who)
		}
	}
	return nil
}

func checkValue(value string) error {
	if value != "" && !propertyWord.MatchString(value) {
		return fmt.Errorf("value %.100q, want at most 63 characters of [A-Za-z0-9_.-] that begin and end with a letter or digit", Redact(value))
	}
	return nil
}

func checkLabel(text string) (key string, err error) {
	key, value, found := strings.Cut(text, "=")
	if !found {
		return key, fmt.Errorf("%.300q given, want KEY=VALUE", Redact(text))
	}
	return key, errors.Join(checkKey(key), checkValue(value))
}

func checkTaint(text string) (key string, err error) {
	t := taintOf(text)
	if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect) || t.String() != text {
		return "", fmt.Errorf("%.300q given, want KEY=VALUE:EFFECT or KEY:EFFECT with NoSchedule, PreferNoSchedule or NoExecute", Redact(text))
	}
	return t.Key + ":" + t.Effect, errors.Join(checkKey(t.Key), checkValue(t.Value))
}

// check returns an error if a property is invalid. It joins all errors.
func (p NodeProperties) check(role string) error {
	var errs []error
	for _, field := range []struct {
		name, joined string
		check        func(string) (string, error)
	}{
		{"node-labels", p.Labels, checkLabel},
		{"node-taints", p.Taints, checkTaint},
	} {
		all := SplitProperties(field.joined)
		if len(all) > MaxProperties {
			errs = append(errs, fieldErrorf(field.name, "%d given, %d allowed", len(all), MaxProperties))
			continue
		}
		seen := map[string]bool{}
		for _, text := range all {
			key, err := field.check(text)
			if err == nil && seen[key] {
				err = fmt.Errorf("%s is given twice", key)
			}
			if err != nil {
				errs = append(errs, &FieldError{field.name, err})
			}
			seen[key] = true
		}
		if !slices.IsSorted(all) {
			errs = append(errs, fieldErrorf(field.name, "%.300q given, want them sorted", Redact(field.joined)))
		}
	}
	switch {
	case p.ReadyAfter == "":
	case p.ReadyAfter != ReadyAfterLabels && p.ReadyAfter != ReadyAfterServingCertificate:
		errs = append(errs, fieldErrorf("node-ready-after", "%.100q given, want %s or %s", Redact(p.ReadyAfter), ReadyAfterLabels, ReadyAfterServingCertificate))
	case role != "":
		errs = append(errs, fieldErrorf("node-ready-after", "%s given, want none with role %s: the taint is for workers", p.ReadyAfter, role))
	case p.ReadyAfter == ReadyAfterLabels && cmp.Or(p.Labels, p.Taints) == "":
		errs = append(errs, fieldErrorf("node-ready-after", "%s given, want node-labels or node-taints with it", p.ReadyAfter))
	}
	return errors.Join(errs...)
}

// KubeletMaySet reports whether the admission plugin NodeRestriction of Kubernetes allows a kubelet to set a label of its own
// Node. A kubelet may change each such label at any time.
func KubeletMaySet(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	under := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	return under("kubelet.kubernetes.io") || under("node.kubernetes.io") || !under("kubernetes.io") && !under("k8s.io")
}

package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cluster-bootstrap/token/util"
)

// TokenLimitsKind is the kind of a file for 'kubejoin serve --token-limits'.
const TokenLimitsKind = "TokenLimits"

// A tokenLimitsFile is the content of the file.
type tokenLimitsFile struct {
	APIVersion string `yaml:"apiVersion" only:"kubejoin.io/v1alpha1"`
	Kind       string `yaml:"kind" only:"TokenLimits"`
	Rules      []struct {
		Name  string `yaml:"name" want:"a name such as cluster-api"`
		Match struct {
			Description string   `yaml:"description,omitempty" want:"a pattern of descriptions"`
			Groups      []string `yaml:"groups,omitempty" list:"groups" want:"a group such as system:bootstrappers:rack-7"`
			Labels      labels   `yaml:"labels,omitempty"`
		} `yaml:"match,omitempty"`
		MaxNodes            nodes               `yaml:"maxNodes,omitempty"`
		NodeNames           []string            `yaml:"nodeNames,omitempty" list:"names and patterns" want:"a node name or a pattern such as rack7-*"`
		CertificateDuration certificateDuration `yaml:"certificateDuration,omitempty"`
		Rejoin              string              `yaml:"rejoin,omitempty" only:"deny"`
		Role                string              `yaml:"role,omitempty" only:"worker"`
	} `yaml:"rules" list:"rules"`
}

// nodes is a number of nodes.
type nodes int

func (n *nodes) UnmarshalYAML(node *yaml.Node) error {
	return whole(node, (*int)(n), 1, tokens.MaxNodes, fmt.Sprintf("1 to %d nodes", tokens.MaxNodes))
}

// A certificateDuration is the longest lifetime of certificates of a token.
type certificateDuration time.Duration

func (to *certificateDuration) UnmarshalYAML(n *yaml.Node) error {
	d, _ := time.ParseDuration(n.Value) // zero after an error
	if n.ShortTag() != "!!str" || d == 0 || (tokens.Limits{CertificateDuration: d}).Check() != nil {
		return fmt.Errorf("%s given, want whole seconds from %s to %s, such as 720h", describe(n), safetext.Duration(tokens.MinCertificateDuration), safetext.Duration(tokens.MaxCertificateDuration))
	}
	*to = certificateDuration(d)
	return nil
}

// labels are the labels of a Secret.
type labels map[string]string

func (l *labels) UnmarshalYAML(node *yaml.Node) error {
	const want = "want labels such as {app: scaler}, each once, with a text as value"
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 || len(node.Content) > 2*maxItems {
		return fmt.Errorf("%s given, %s", describe(node), want)
	}
	*l = labels{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if _, found := (*l)[key.Value]; found || key.ShortTag() != "!!str" || value.ShortTag() != "!!str" {
			return fmt.Errorf("%s: %s given, %s", describe(key), describe(value), want)
		}
		(*l)[key.Value] = value.Value
	}
	return nil
}

var ruleName = regexp.MustCompile(`\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\z`)

// LoadTokenLimits reads the rules in a file. An [Errors] holds the mistakes in it. Any other error means that the file could
// not be read.
func LoadTokenLimits(file string) ([]tokens.LimitRule, error) {
	content, err := read(file)
	if err != nil {
		return nil, err
	}
	return ParseTokenLimits(file, content)
}

// ParseTokenLimits is [LoadTokenLimits] for the content of a file.
func ParseTokenLimits(file string, content []byte) ([]tokens.LimitRule, error) {
	var f tokenLimitsFile
	d := newDocument(file, TokenLimitsKind, content, &f)
	return result(d.tokenLimits(&f), d.errs)
}

func (d *document) tokenLimits(f *tokenLimitsFile) (rules []tokens.LimitRule) {
	first := map[string]int{}
	for i, from := range f.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		if from.Name == "" {
			continue // it has an error
		}
		if line := first[from.Name]; line > 0 {
			d.fail(path+".name", "duplicate rule %s, first defined in line %d", quoted(from.Name), line)
		} else if first[from.Name] = d.lines[path+".name"]; !ruleName.MatchString(from.Name) {
			d.fail(path+".name", "%s given, want at most 63 characters of [a-z0-9-], such as cluster-api", quoted(from.Name))
		}
		if len(from.Match.Description) > tokens.MaxDescription {
			d.fail(path+".match.description", "%d bytes given, want at most %d", len(from.Match.Description), tokens.MaxDescription)
		}
		d.each(path+".match.groups", from.Match.Groups, util.ValidateBootstrapGroupName)
		for _, key := range slices.Sorted(maps.Keys(from.Match.Labels)) {
			d.check(path+".match.labels", checkLabel(key, from.Match.Labels[key]))
		}
		rule := tokens.Rule{Name: from.Name, Worker: from.Role != "", Limits: tokens.Limits{
			MaxNodes: int(from.MaxNodes), NodeNames: from.NodeNames, CertificateDuration: time.Duration(from.CertificateDuration), Rejoin: from.Rejoin,
		}}
		if rule.Limits.IsZero() && !rule.Worker && !d.wrong[path] {
			d.fail(path, "no limit given, want at least one of maxNodes, nodeNames, certificateDuration, rejoin and role")
		}
		if at := path + ".nodeNames"; !d.wrong[at] {
			for _, e := range tokens.FieldErrors(rule.Limits.Check()) {
				d.check(at, e.Err)
			}
		}
		rules = append(rules, tokens.LimitRule{Rule: rule, Description: from.Match.Description, Groups: from.Match.Groups, Labels: from.Match.Labels})
	}
	return rules
}

// checkLabel returns why no object has a label, or nil.
func checkLabel(key, value string) error {
	if why := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(why) > 0 {
		return fmt.Errorf("%s: %s given: %s", quoted(key), quoted(value), strings.Join(why, "; "))
	}
	return nil
}

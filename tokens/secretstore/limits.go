package secretstore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// annotationPrefix is the prefix of the annotations for limits. They are on the Secret of a token, and
// copied to the Leases of its claims.
const annotationPrefix = "kubejoin.io/"

// nodesAnnotation contains [tokens.Record.Nodes] on the Secret, each name with a mark. All marks have one byte, so the
// annotation does not grow when a name gets another mark: a name that fits when it is counted can be released.
const nodesAnnotation = "nodes"

// creatorAnnotation contains [tokens.Record.Creator] on the Secret. It does not have annotationPrefix,
// because with an unknown annotation under that prefix, earlier versions allow no machine to join.
const creatorAnnotation = "tokens.kubejoin.io/creator"

// maxCreator is the maximum length of a creator, in bytes. decode ignores longer ones: kubejoin did not
// write them.
const maxCreator = 64

var limitAnnotations = []limitAnnotation{
	{
		"max-nodes",
		func(l tokens.Limits) string {
			if l.MaxNodes == 0 {
				return ""
			}
			return strconv.Itoa(l.MaxNodes)
		},
		func(l *tokens.Limits, value string) error {
			n, _ := strconv.Atoi(value)
			if strconv.Itoa(n) != value || n < 1 || n > tokens.MaxNodes {
				return fmt.Errorf("%.100q given, want 1 to %d", tokens.Redact(value), tokens.MaxNodes)
			}
			l.MaxNodes = n
			return nil
		},
	},
	{
		"node-names",
		func(l tokens.Limits) string { return strings.Join(l.NodeNames, ",") },
		func(l *tokens.Limits, value string) error {
			names, err := readNames(value)
			if err != nil {
				return err
			}
			l.NodeNames = names
			return nil
		},
	},
	{
		"certificate-duration",
		func(l tokens.Limits) string {
			if l.CertificateDuration == 0 {
				return ""
			}
			return l.CertificateDuration.String()
		},
		func(l *tokens.Limits, value string) error {
			d, _ := time.ParseDuration(value) // 0 on error
			if d == 0 || (tokens.Limits{CertificateDuration: d}).Check() != nil {
				return fmt.Errorf("%.100q given, want whole seconds from %s to %s, such as 8h", tokens.Redact(value), safetext.Duration(tokens.MinCertificateDuration), safetext.Duration(tokens.MaxCertificateDuration))
			}
			l.CertificateDuration = d
			return nil
		},
	},
	{
		"replaces-node",
		func(l tokens.Limits) string {
			if l.Replaces == (tokens.NodeRef{}) {
				return ""
			}
			return l.Replaces.Name + "/" + l.Replaces.UID
		},
		func(l *tokens.Limits, value string) error {
			name, uid, _ := strings.Cut(value, "/")
			node := tokens.NodeRef{Name: name, UID: uid}
			if name == "" || (tokens.Limits{Replaces: node}).Check() != nil {
				return fmt.Errorf("%.300q given, want NAME/UID of a Node", tokens.Redact(value))
			}
			l.Replaces = node
			return nil
		},
	},
	{
		"role",
		func(l tokens.Limits) string { return l.Role },
		func(l *tokens.Limits, value string) error {
			if value != tokens.RoleControlPlane {
				return fmt.Errorf("%.100q given, want %s, or remove the annotation", tokens.Redact(value), tokens.RoleControlPlane)
			}
			l.Role = value
			return nil
		},
	},
	{
		"rejoin",
		func(l tokens.Limits) string { return l.Rejoin },
		func(l *tokens.Limits, value string) error {
			if value != tokens.RejoinAllow && value != tokens.RejoinDeny {
				return fmt.Errorf("%.100q given, want %s or %s, or remove the annotation", tokens.Redact(value), tokens.RejoinAllow, tokens.RejoinDeny)
			}
			l.Rejoin = value
			return nil
		},
	},
	nodeAnnotations[0], nodeAnnotations[1], nodeAnnotations[2],
}

// nodeAnnotations are the annotations for [tokens.NodeProperties].
var nodeAnnotations = []limitAnnotation{
	nodeAnnotation("node-labels", func(p *tokens.NodeProperties) *string { return &p.Labels }),
	nodeAnnotation("node-taints", func(p *tokens.NodeProperties) *string { return &p.Taints }),
	nodeAnnotation("node-ready-after", func(p *tokens.NodeProperties) *string { return &p.ReadyAfter }),
}

// A limitAnnotation is an annotation for a limit. write returns its value, which is empty if there is no limit. The error of
// read contains the given value, shortened, and the expected one.
type limitAnnotation struct {
	name  string
	write func(tokens.Limits) string
	read  func(l *tokens.Limits, value string) error
}

// nodeAnnotation returns the annotation for a field of [tokens.NodeProperties]. readLimits checks its value.
func nodeAnnotation(name string, field func(*tokens.NodeProperties) *string) limitAnnotation {
	return limitAnnotation{
		name,
		func(l tokens.Limits) string { return *field(&l.Node) },
		func(l *tokens.Limits, value string) error {
			if value == "" {
				return errors.New(`"" given, want a value, or remove the annotation`)
			}
			*field(&l.Node) = value
			return nil
		},
	}
}

// readLimits returns the limits in the annotations. It sets Problem if an annotation with the prefix is
// neither a limit nor in known. So it does not miss misspelt limits, or limits of a later version.
func readLimits(annotations map[string]string, known ...string) tokens.Limits {
	var l tokens.Limits
	var problems []error
	known = slices.Clone(known)
	for _, a := range limitAnnotations {
		known = append(known, a.name)
		value, given := annotations[annotationPrefix+a.name]
		if !given {
			continue
		}
		if err := a.read(&l, value); err != nil {
			problems = append(problems, annotationError(a.name, err))
		}
	}
	var unknown []string
	for key := range annotations {
		if name, ours := strings.CutPrefix(key, annotationPrefix); ours && !slices.Contains(known, name) {
			unknown = append(unknown, key)
		}
	}
	if slices.Sort(unknown); len(unknown) > 0 {
		problems = append(problems, fmt.Errorf("%.300s: unknown annotation, want %s%s", tokens.Redact(strings.Join(unknown, ", ")), annotationPrefix, strings.Join(known, ", ")))
	}
	if len(problems) == 0 {
		for _, e := range tokens.FieldErrors(l.Check()) { // all names together are too long, or two limits conflict
			problems = append(problems, annotationError(e.Field, fmt.Errorf("%.300s", tokens.Redact(e.Err.Error()))))
		}
	}
	if (tokens.Limits{Role: l.Role, Node: l.Node}).Check() != nil { // the values may be long, or contain a misplaced secret
		l.Node = tokens.NodeProperties{}
	}
	l.Problem = errors.Join(problems...)
	return l
}

// annotationError returns err as an error about the annotation with this name.
func annotationError(name string, err error) error {
	return &tokens.FieldError{Field: annotationPrefix + name, Err: err}
}

// readNames splits a comma-separated list. At the first invalid or repeated name, it returns the names
// before it and an error.
func readNames(value string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	for name := range strings.SplitSeq(value, ",") {
		if err := tokens.CheckNodePattern(name); err != nil {
			return names, err
		}
		if seen[name] {
			return names, fmt.Errorf("%q is given twice", name)
		}
		seen[name] = true
		names = append(names, name)
	}
	return names, nil
}

// writeNodes returns the value of nodesAnnotation.
func writeNodes(r tokens.Record) string {
	entries := make([]string, len(r.Nodes))
	for i, name := range r.Nodes {
		entries[i] = cmp.Or(r.Marks[name], joinedMark) + name
	}
	return strings.Join(entries, ",")
}

// readNodes adds the names in the value of nodesAnnotation to a record. At the first invalid or repeated name, it stops
// with an error.
func readNodes(r *tokens.Record, value string) error {
	seen := map[string]bool{}
	for entry := range strings.SplitSeq(value, ",") {
		as, name := entry[:min(1, len(entry))], entry[min(1, len(entry)):]
		if !slices.Contains([]string{joinedMark, leftMark, lostMark}, as) {
			return fmt.Errorf("%.300q given, want a node name after %s, %s or %s", tokens.Redact(entry), joinedMark, leftMark, lostMark)
		}
		if err := tokens.CheckNodeName(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("%q is given twice", name)
		}
		seen[name] = true
		r.Nodes = append(r.Nodes, name)
		if as != joinedMark {
			mark(r, name, as)
		}
	}
	return nil
}

// applyLimits writes the differences between before and after. If before has a Problem, applyLimits writes all
// limits, and removes all other annotations with the prefix that are not in known.
func applyLimits(object metav1.Object, before, after tokens.Limits, known ...string) {
	repaired := before.Problem != nil
	known = slices.Clone(known)
	for _, a := range limitAnnotations {
		known = append(known, a.name)
		if value := a.write(after); repaired || value != a.write(before) {
			annotate(object, a.name, value)
		}
	}
	if repaired {
		maps.DeleteFunc(object.GetAnnotations(), func(key, _ string) bool {
			name, ours := strings.CutPrefix(key, annotationPrefix)
			return ours && !slices.Contains(known, name)
		})
	}
}

// annotate sets an annotation with the prefix, or removes it if the value is empty.
func annotate(object metav1.Object, name, value string) {
	annotateKey(object, annotationPrefix+name, value)
}

func annotateKey(object metav1.Object, key, value string) {
	all := object.GetAnnotations()
	if value == "" {
		delete(all, key)
		return
	}
	if all == nil {
		all = map[string]string{}
		object.SetAnnotations(all)
	}
	all[key] = value
}

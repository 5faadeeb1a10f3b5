package secretstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits are annotations under this prefix: on the Secret of a token and, copied, on the Leases
// of its claims.
const annotationPrefix = "kubejoin.io/"

// nodesAnnotation has the names in [tokens.Record.Nodes] on the Secret.
const nodesAnnotation = "nodes"

// creatorAnnotation has [tokens.Record.Creator] on the Secret. It is no limit: earlier versions, which
// let nobody join with an unknown annotation under annotationPrefix, are to pass it over.
const creatorAnnotation = "tokens.kubejoin.io/creator"

// maxCreator is the most bytes of it. Longer ones are not kubejoin's.
const maxCreator = 64

// limitAnnotations are how each limit is written, as "" where it is none, and read. An error of
// read says what was given, shortened, and what is wanted.
var limitAnnotations = []struct {
	name  string
	write func(tokens.Limits) string
	read  func(l *tokens.Limits, value string) error
}{
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
			names, err := readNames(value, tokens.CheckNodePattern)
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
			d, _ := time.ParseDuration(value) // 0 where it fails
			if d == 0 || (tokens.Limits{CertificateDuration: d}).Check() != nil {
				return fmt.Errorf("%.100q given, want whole seconds from %s to %s, such as 8h0m0s", tokens.Redact(value), tokens.MinCertificateDuration, tokens.MaxCertificateDuration)
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
				return fmt.Errorf("%.100q given, want %s or no such annotation", tokens.Redact(value), tokens.RoleControlPlane)
			}
			l.Role = value
			return nil
		},
	},
}

// readLimits reads the limits among annotations. All others under the prefix must be in known:
// a limit that is misspelt, or that only a later version knows, is not to be missed.
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
		problems = append(problems, fmt.Errorf("%.300s: not known, want %s%s", tokens.Redact(strings.Join(unknown, ", ")), annotationPrefix, strings.Join(known, ", ")))
	}
	if len(problems) == 0 {
		for _, e := range tokens.FieldErrors(l.Check()) { // of all names together, or of two limits that contradict each other
			problems = append(problems, annotationError(e.Field, fmt.Errorf("%.300s", tokens.Redact(e.Err.Error()))))
		}
	}
	l.Problem = errors.Join(problems...)
	return l
}

// annotationError returns what is wrong with the annotation of this name.
func annotationError(name string, err error) error {
	return &tokens.FieldError{Field: annotationPrefix + name, Err: err}
}

// readNames gives the names of a list up to the first that is no good.
func readNames(value string, check func(string) error) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	for name := range strings.SplitSeq(value, ",") {
		if err := check(name); err != nil {
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

// applyLimits writes what differs. Limits with a Problem that are good now are written wholly,
// and what nobody knows under the prefix, beside known, is taken away.
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

// annotate sets an annotation under the prefix, or takes it away where the value is empty.
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

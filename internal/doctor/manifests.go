package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/deploy"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// The identity of kubejoin in the manifests.
const (
	kubejoinNamespace = "kubejoin-system"
	kubejoinAccount   = "kubejoin"
)

// A right is one verb on one resource. If namespace is empty, the right holds in the whole cluster.
type right struct{ namespace, group, resource, name, verb string }

func (r right) String() string {
	s := r.verb + " " + r.resource
	if r.name != "" {
		s += "/" + r.name
	}
	if r.namespace != "" {
		s += " in " + r.namespace
	}
	return s
}

// wanted is what deploy/manifests creates.
type wanted struct {
	namespaces []string // namespaces with roles
	objects    []string // all except RBAC objects, as "Kind NAME"
	rights     []right
}

// manifests returns what deploy/manifests creates for kubejoin.
var manifests = sync.OnceValue(func() wanted {
	w, err := readManifests()
	if err != nil { // never happens: the files are embedded, and a test reads them
		panic(err)
	}
	return w
})

func readManifests() (wanted, error) {
	var w wanted
	var set Facts
	files, err := deploy.Manifests.ReadDir("manifests")
	if err != nil {
		return w, err
	}
	for _, file := range files {
		content, err := deploy.Manifests.ReadFile("manifests/" + file.Name())
		if err != nil {
			return w, err
		}
		for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return w, err
			}
			if document, err = yaml.ToJSON(document); err != nil {
				return w, fmt.Errorf("%s: %w", file.Name(), err)
			}
			if string(document) == "null" { // the document contains only comments
				continue
			}
			object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
			if err != nil {
				return w, fmt.Errorf("%s: %w", file.Name(), err)
			}
			switch o := object.(type) {
			case *rbacv1.ClusterRole:
				set.ClusterRoles = append(set.ClusterRoles, *o)
			case *rbacv1.ClusterRoleBinding:
				set.ClusterRoleBindings = append(set.ClusterRoleBindings, *o)
			case *rbacv1.Role:
				set.Roles = append(set.Roles, *o)
			case *rbacv1.RoleBinding:
				set.RoleBindings = append(set.RoleBindings, *o)
			case *corev1.Namespace, *corev1.ServiceAccount, *admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding:
				w.objects = append(w.objects, kind.Kind+" "+o.(metav1.Object).GetName())
			}
		}
	}
	for _, binding := range set.RoleBindings {
		if !slices.Contains(w.namespaces, binding.Namespace) {
			w.namespaces = append(w.namespaces, binding.Namespace)
		}
	}
	for _, rule := range set.rules("", isKubejoin) {
		w.rights = append(w.rights, expand("", rule)...)
	}
	for _, namespace := range w.namespaces {
		for _, binding := range set.RoleBindings {
			if binding.Namespace == namespace && slices.ContainsFunc(binding.Subjects, isKubejoin) {
				for _, rule := range set.rulesOf(binding.RoleRef, namespace) {
					w.rights = append(w.rights, expand(namespace, rule)...)
				}
			}
		}
	}
	return w, nil
}

// isKubejoin reports whether a binding for this subject includes the service account of kubejoin.
func isKubejoin(s rbacv1.Subject) bool {
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		return s.Namespace == kubejoinNamespace && s.Name == kubejoinAccount
	case rbacv1.GroupKind:
		return slices.Contains([]string{"system:serviceaccounts", "system:serviceaccounts:" + kubejoinNamespace, "system:authenticated"}, s.Name)
	}
	return s.Name == "system:serviceaccount:"+kubejoinNamespace+":"+kubejoinAccount
}

// rules returns the rules that hold for a subject in a namespace. If namespace is empty, it returns only the rules
// for the whole cluster.
func (f *Facts) rules(namespace string, is func(rbacv1.Subject) bool) []rbacv1.PolicyRule {
	var all []rbacv1.PolicyRule
	for _, binding := range f.ClusterRoleBindings {
		if slices.ContainsFunc(binding.Subjects, is) {
			all = append(all, f.rulesOf(binding.RoleRef, "")...)
		}
	}
	for _, binding := range f.RoleBindings {
		if namespace != "" && binding.Namespace == namespace && slices.ContainsFunc(binding.Subjects, is) {
			all = append(all, f.rulesOf(binding.RoleRef, namespace)...)
		}
	}
	return all
}

// rulesOf returns the rules of a role; none if it does not exist.
func (f *Facts) rulesOf(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
	if ref.Kind == "ClusterRole" {
		for _, role := range f.ClusterRoles {
			if role.Name == ref.Name {
				return role.Rules
			}
		}
		return nil
	}
	for _, role := range f.Roles {
		if role.Namespace == namespace && role.Name == ref.Name {
			return role.Rules
		}
	}
	return nil
}

// expand returns the rights of a rule.
func expand(namespace string, rule rbacv1.PolicyRule) []right {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var all []right
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				for _, verb := range rule.Verbs {
					all = append(all, right{namespace, group, resource, name, verb})
				}
			}
		}
	}
	return all
}

// allowed reports whether one of the rules allows the right, by the logic of kube-apiserver.
func (r right) allowed(rules []rbacv1.PolicyRule) bool {
	_, sub, hasSub := strings.Cut(r.resource, "/")
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return containsOrAll(rule.APIGroups, r.group) && containsOrAll(rule.Verbs, r.verb) &&
			(containsOrAll(rule.Resources, r.resource) || hasSub && slices.Contains(rule.Resources, "*/"+sub)) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.name))
	})
}

func containsOrAll(list []string, one string) bool {
	return slices.Contains(list, one) || slices.Contains(list, "*")
}

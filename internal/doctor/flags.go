package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Names of components: of their containers, and of their files in /etc/kubernetes/manifests.
const (
	kubeAPIServer         = "kube-apiserver"
	kubeControllerManager = "kube-controller-manager"
)

// flags are the values of each flag of a command line, in their order.
type flags map[string][]string

// flagsOf returns the flags in a command line. A flag without a value is true.
func flagsOf(words []string) flags {
	all := flags{}
	for i, word := range words {
		name, found := strings.CutPrefix(word, "--")
		if !found {
			continue
		}
		value := "true"
		if before, after, found := strings.Cut(name, "="); found {
			name, value = before, after
		} else if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			value = words[i+1]
		}
		all[name] = append(all[name], value)
	}
	return all
}

// last is the value that counts of a flag that is not a list.
func (f flags) last(name string) string {
	if all := f[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// list is the value of a flag that is a list. If such a flag is given twice, its lists are joined.
func (f flags) list(name string) []string {
	if len(f[name]) == 0 {
		return nil
	}
	return strings.Split(strings.Join(f[name], ","), ",")
}

// A component is a static pod of the control plane.
type component struct {
	machine string
	flags   flags
}

// componentsOf returns the containers of a component.
func componentsOf(pods []corev1.Pod, name string) []component {
	var all []component
	for _, pod := range pods {
		for _, c := range pod.Spec.Containers {
			if c.Name == name {
				all = append(all, component{cmp.Or(pod.Spec.NodeName, pod.Name), flagsOf(slices.Concat(c.Command, c.Args))})
			}
		}
	}
	return all
}

// plain are values that a command may repeat from a Pod.
var plain = regexp.MustCompile(`^[A-Za-z0-9,.:/*-]*$`)

// setFlag returns a shell command that replaces a flag in the manifest of a component. The kubelet starts every file
// in the folder of manifests, so the copy is in another one. A value that is not plain becomes otherwise.
func setFlag(component, flag, value, otherwise string) string {
	if !plain.MatchString(value) {
		value = otherwise
	}
	file := component + ".yaml"
	return fmt.Sprintf(`sed -e '/- --%[1]s=/d' -e 's|^\( *\)- %[2]s$|&\n\1- --%[1]s=%[3]s|' /etc/kubernetes/manifests/%[4]s > /root/%[4]s && cp /root/%[4]s /etc/kubernetes/manifests/%[4]s`,
		flag, component, value, file)
}

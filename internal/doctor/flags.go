package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	corev1 "k8s.io/api/core/v1"
)

// controlPlaneLabel marks the Nodes of control planes. The admission plugin NodeRestriction prevents kubelets from setting it.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// Names of components. Their containers and their files in /etc/kubernetes/manifests have the same names.
const (
	kubeAPIServer         = "kube-apiserver"
	kubeControllerManager = "kube-controller-manager"
	kubeScheduler         = "kube-scheduler"
)

// flags maps each flag of a command line to its values, in order.
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

// last returns the last value of a flag that is not a list: components use only the last one.
func (f flags) last(name string) string {
	if all := f[name]; len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// list returns the value of a flag that is a list. If the flag is given several times, it joins the lists.
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

// controlPlanes returns the names of the Nodes of control planes.
func (f *Facts) controlPlanes() []string {
	var all []string
	for _, node := range f.Nodes {
		if _, found := node.Labels[controlPlaneLabel]; found {
			all = append(all, node.Name)
		}
	}
	return all
}

// isMirror reports whether a kubelet posted the Pod as a mirror of a static pod. A kubelet can post a mirror Pod with any
// content, but only for its own Node.
func isMirror(pod corev1.Pod) bool { return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" }

// componentsOf returns the static pods of a component on control planes.
func (f *Facts) componentsOf(name string) []component {
	return componentsOf(name, f.controlPlanes(), f.ControlPlane)
}

func componentsOf(name string, controlPlanes []string, pods []corev1.Pod) []component {
	var all []component
	for _, pod := range pods {
		if !isMirror(pod) || !slices.Contains(controlPlanes, pod.Spec.NodeName) {
			continue
		}
		for _, c := range pod.Spec.Containers {
			if c.Name == name {
				all = append(all, component{pod.Spec.NodeName, flagsOf(slices.Concat(c.Command, c.Args))})
			}
		}
	}
	return all
}

// unseenOf returns a finding for the control planes without a visible static pod of a component.
func (f *Facts) unseenOf(name string) []Finding {
	all, seen := f.controlPlanes(), f.componentsOf(name)
	without := slices.DeleteFunc(slices.Clone(all), func(node string) bool {
		return slices.ContainsFunc(seen, func(c component) bool { return c.machine == node })
	})
	switch {
	case len(all) == 0:
		return []Finding{unseen("no Node has the label %s, so the flags of %s are not visible", controlPlaneLabel, name)}
	case len(without) > 0:
		return []Finding{unseen("%s has no visible static Pod on %s", name, safetext.Few(without))}
	}
	return nil
}

// onEach calls find with the flags of each static pod of a component, and returns all findings. It adds a finding for
// control planes without a visible pod.
func (f *Facts) onEach(name string, find func(machine string, flags flags) []Finding) []Finding {
	all := f.unseenOf(name)
	for _, c := range f.componentsOf(name) {
		for _, one := range find(c.machine, c.flags) {
			all = append(all, one.on(c.machine))
		}
	}
	return all
}

// plain matches values from a Pod that a command may contain.
var plain = regexp.MustCompile(`^[A-Za-z0-9,.:/*=-]*$`)

// setFlag returns a shell command that replaces a flag in the manifest of a component. The command edits a copy in another
// folder, because the kubelet starts every file in the manifest folder. If value does not match plain, the command uses the
// value otherwise.
func setFlag(component, flag, value, otherwise string) string {
	if !plain.MatchString(value) {
		value = otherwise
	}
	file := component + ".yaml"
	return fmt.Sprintf(`sed -e '/- --%[1]s=/d' -e 's|^\( *\)- %[2]s$|&\n\1- --%[1]s=%[3]s|' /etc/kubernetes/manifests/%[4]s > /root/%[4]s && cp /root/%[4]s /etc/kubernetes/manifests/%[4]s`,
		flag, component, value, file)
}

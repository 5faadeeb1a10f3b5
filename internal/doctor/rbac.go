package doctor

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	certificatesGroup = "certificates.k8s.io"
	nodeClient        = "certificatesigningrequests/nodeclient"
	selfNodeClient    = "certificatesigningrequests/selfnodeclient"
	nodesGroup        = "system:nodes"
	nodePolicy        = "kubejoin-node-properties" // of deploy/node-properties.yaml
)

// inGroups returns a function that reports whether a subject is one of the groups, or the group of all authenticated users.
func inGroups(groups ...string) func(rbacv1.Subject) bool {
	return func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.GroupKind && (slices.Contains(groups, s.Name) || s.Name == "system:authenticated")
	}
}

// isToken reports whether a binding for a subject includes all bootstrap tokens of the default group.
var isToken = inGroups(tokens.BootstrappersGroup, tokens.DefaultGroup)

// checkApprovalBindings finds subjects whose requests are approved automatically, but should not be.
func checkApprovalBindings(f *Facts) []Finding {
	var all []Finding
	for _, binding := range f.ClusterRoleBindings {
		rules := slices.DeleteFunc(slices.Clone(f.rulesOf(binding.RoleRef, "")), func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Resources, "*") // skip rules of administrators
		})
		first := right{"", certificatesGroup, nodeClient, "", "create"}.allowed(rules)
		renews := right{"", certificatesGroup, selfNodeClient, "", "create"}.allowed(rules)
		var wrong []int // indexes of subjects to remove
		ofBinding := len(all)
		for i, subject := range binding.Subjects {
			before, who := len(all), subject.Kind+" "+subject.Name
			switch {
			case !first || isFirst(subject):
			case isOther(subject):
				all = append(all, found("nodeclient-other", "",
					"ClusterRoleBinding %s lets kubejoin approve client certificates of nodes for %s, which is not the group of kubeadm's tokens", binding.Name, who))
			default:
				all = append(all, found("nodeclient-too-wide", "",
					"ClusterRoleBinding %s lets kubejoin approve client certificates of any node name for %s", binding.Name, who))
			}
			if renews && (subject.Kind != rbacv1.GroupKind || subject.Name != nodesGroup) {
				all = append(all, found("selfnodeclient-too-wide", "",
					"ClusterRoleBinding %s lets kubejoin approve renewals of node certificates for %s, want only for %s", binding.Name, who, nodesGroup))
			}
			if len(all) > before {
				wrong = append(wrong, i)
			}
		}
		for i := range all[ofBinding:] {
			all[ofBinding+i].Command = withoutSubjects(binding, wrong)
		}
	}
	return all
}

func isFirst(s rbacv1.Subject) bool {
	return s.Kind == rbacv1.GroupKind && s.Name == tokens.DefaultGroup
}

// isOther reports whether a subject includes only some machines: tokens of another group, or one user.
func isOther(s rbacv1.Subject) bool {
	if s.Kind == rbacv1.GroupKind {
		return s.Name == tokens.BootstrappersGroup || strings.HasPrefix(s.Name, tokens.BootstrappersGroup+":")
	}
	return s.Kind == rbacv1.ServiceAccountKind || s.Name != "system:anonymous"
}

// withoutSubjects returns a command that removes subjects. The command fails if the binding has changed in the meantime.
func withoutSubjects(binding rbacv1.ClusterRoleBinding, wrong []int) string {
	type step struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value string `json:"value,omitempty"`
	}
	var steps []step
	for _, i := range slices.Backward(wrong) { // remove the last subject first, so that the indexes of the others stay valid
		path := fmt.Sprintf("/subjects/%d", i)
		steps = append(steps, step{"test", path + "/name", binding.Subjects[i].Name}, step{"remove", path, ""})
	}
	patch, _ := json.Marshal(steps) // never fails: all fields are strings
	return "kubectl patch clusterrolebinding " + safetext.Quote(binding.Name) + " --type=json -p " + safetext.Quote(string(patch))
}

// bind returns a command that binds a ClusterRole to a group.
func bind(name, role, group string) string {
	return "kubectl create clusterrolebinding " + name + " --clusterrole=" + role + " --group=" + group
}

// letRead returns a command that lets tokens and nodes read a ConfigMap in kube-system, as kubeadm does. The command
// also corrects an existing Role and RoleBinding.
func letRead(role, name string) string {
	const create, reconcile = "kubectl -n kube-system create ", " --dry-run=client -o yaml | kubectl auth reconcile -f -"
	return create + "role " + role + " --verb=get --resource=configmaps --resource-name=" + name + reconcile + " && " +
		create + "rolebinding " + role + " --role=" + role + " --group=" + tokens.DefaultGroup + " --group=" + nodesGroup + reconcile
}

// checkJoinRights finds missing rights of joining and renewing machines.
func checkJoinRights(f *Facts) []Finding {
	var all []Finding
	token := f.rules("", isToken)
	if !(right{"", certificatesGroup, nodeClient, "", "create"}.allowed(token)) {
		all = append(all, found("nodeclient-missing", bind("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", tokens.DefaultGroup),
			"no ClusterRoleBinding lets kubejoin approve client certificates for %s, so new nodes wait for a person", tokens.DefaultGroup))
	}
	if !(right{"", certificatesGroup, selfNodeClient, "", "create"}.allowed(f.rules("", inGroups(nodesGroup)))) {
		all = append(all, found("selfnodeclient-missing", bind("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodesGroup),
			"no ClusterRoleBinding lets kubejoin approve renewals for %s, so certificates of nodes expire", nodesGroup))
	}
	for _, need := range []struct {
		right
		mend string
	}{
		{right{"", certificatesGroup, "certificatesigningrequests", "", "create"}, bind("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", tokens.DefaultGroup)},
		{right{"", "", "nodes", "", "get"}, "kubectl create clusterrole kubeadm:get-nodes --verb=get --resource=nodes; " + bind("kubeadm:get-nodes", "kubeadm:get-nodes", tokens.DefaultGroup)},
		{right{metav1.NamespaceSystem, "", "configmaps", "kubeadm-config", "get"}, letRead("kubeadm:nodes-kubeadm-config", "kubeadm-config")},
		{right{metav1.NamespaceSystem, "", "configmaps", "kubelet-config", "get"}, letRead("kubeadm:kubelet-config", "kubelet-config")},
	} {
		if !need.allowed(f.rules(need.namespace, isToken)) {
			all = append(all, found("join-rights-missing", need.mend, "%s may not %s, so no machine joins with a token", tokens.DefaultGroup, need.right))
		}
	}
	return all
}

// checkKubeletClient finds a missing binding for the certificate apiserver-kubelet-client. kubeadm 1.35.5, 1.36.1, 1.37
// and later create that certificate without a group. Only 'kubeadm init' and 'kubeadm upgrade apply' bind its user.
func checkKubeletClient(f *Facts) []Finding {
	all := f.unseenOf(kubeAPIServer)
	if !slices.ContainsFunc(f.componentsOf(kubeAPIServer), func(c component) bool {
		return path.Base(c.flags.last("kubelet-client-certificate")) == "apiserver-kubelet-client.crt"
	}) {
		return all // kubeadm did not set up this control plane
	}
	rules := f.rules("", func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.UserKind && s.Name == accessreview.KubeletClientUser || s.Kind == rbacv1.GroupKind && s.Name == "system:authenticated"
	})
	for _, verb := range []string{"get", "create"} {
		if need := (right{"", "", "nodes/proxy", "", verb}); !need.allowed(rules) {
			return append(all, found("kubelet-client-rights-missing", accessreview.BindKubeletClient,
				"user %s may not %s, so kubectl logs and exec fail on control planes that kubeadm 1.35.5, 1.36.1, 1.37 or later made", accessreview.KubeletClientUser, need))
		}
	}
	return all
}

// checkImpersonation finds subjects that may impersonate a node. For the Node authorizer, they also need the group
// system:nodes. Constrained impersonation (KEP-5284) adds this group automatically.
func checkImpersonation(f *Facts) []Finding {
	var all []Finding
	for _, binding := range f.ClusterRoleBindings {
		may := slices.ContainsFunc(f.rulesOf(binding.RoleRef, ""), func(rule rbacv1.PolicyRule) bool {
			if slices.Contains(rule.Resources, "*") && slices.Contains(rule.Verbs, "*") {
				return false // skip rules of administrators
			}
			if (right{"", "", "groups", nodesGroup, "impersonate"}).allowed([]rbacv1.PolicyRule{rule}) {
				return true
			}
			rule.ResourceNames = nil // a right to impersonate one node is already a finding
			return slices.ContainsFunc([]string{"impersonate:arbitrary-node", "impersonate:associated-node"}, func(verb string) bool {
				return right{"", "authentication.k8s.io", "nodes", "", verb}.allowed([]rbacv1.PolicyRule{rule})
			})
		})
		var wrong []int
		var who []string
		for i, subject := range binding.Subjects {
			if may && (subject.Kind != rbacv1.GroupKind || subject.Name != "system:masters") {
				wrong, who = append(wrong, i), append(who, subject.Kind+" "+subject.Name)
			}
		}
		if len(wrong) > 0 {
			all = append(all, found("impersonates-nodes", withoutSubjects(binding, wrong),
				"ClusterRoleBinding %s lets %s impersonate nodes, so they can do what a node may without its certificate", binding.Name, safetext.Few(who)))
		}
	}
	return all
}

const applyManifests = "kubectl apply -f deploy/manifests/namespace.yaml -f deploy/manifests"

// checkRights finds rights that kubejoin needs but its service account lacks.
func checkRights(f *Facts) []Finding {
	var missing []string
	for _, r := range manifests().rights {
		// kubejoin needs the right to create only if cluster-info is missing.
		if r.resource == "configmaps" && r.verb == "create" && f.ClusterInfo != nil {
			continue
		}
		if !r.allowed(f.rules(r.namespace, isKubejoin)) {
			missing = append(missing, r.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []Finding{found("rights-missing", applyManifests, "the service account %s/%s may not %s", kubejoinNamespace, kubejoinAccount, safetext.Few(missing))}
}

// checkObjects finds missing objects of the manifests.
func checkObjects(f *Facts) []Finding {
	var all []Finding
	for _, object := range f.Missing {
		kind, name, _ := strings.Cut(object, " ")
		switch {
		case name == nodePolicy: // checkNodePolicy reports it
		case kind == "Namespace":
			all = append(all, found("namespace-missing", "kubectl create namespace "+name,
				"there is no namespace %s, so kubejoin has no claims of node names, and every request with a limited token waits", name))
		case kind == "ServiceAccount":
			all = append(all, found("service-account-missing", applyManifests, "there is no service account %s/%s", kubejoinNamespace, name))
		default:
			all = append(all, found("admission-policy-missing", applyManifests,
				"there is no %s %s, so a stolen credential of kubejoin can create any Secret in kube-system", kind, name))
		}
	}
	return all
}

// checkNodePolicy finds a service account of kubejoin that may patch Nodes without the policy that limits the patches.
func checkNodePolicy(f *Facts) []Finding {
	may := right{"", "", "nodes", "", "patch"}.allowed(f.rules("", isKubejoin))
	missing := slices.ContainsFunc(f.Missing, func(object string) bool { return strings.HasSuffix(object, " "+nodePolicy) })
	if !may || !missing {
		return nil
	}
	return []Finding{found("node-policy-missing", "kubectl apply -f deploy/node-properties.yaml",
		"the service account %s/%s may patch Nodes, and the policy %s or its binding is missing, so a stolen credential of kubejoin can relabel and evict every Node", kubejoinNamespace, kubejoinAccount, nodePolicy)}
}

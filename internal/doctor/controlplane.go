package doctor

import (
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	corev1 "k8s.io/api/core/v1"
)

// A replaced is a controller of kube-controller-manager whose work kubejoin does.
type replaced struct {
	long, short string
	byDefault   bool // whether '*' in --controllers switches it on
}

var (
	kcmApprover        = replaced{"certificatesigningrequest-approving-controller", "csrapproving", true}
	kcmSigner          = replaced{"certificatesigningrequest-signing-controller", "csrsigning", true}
	kcmBootstrapSigner = replaced{"bootstrap-signer-controller", "bootstrapsigner", false}
	kcmTokenCleaner    = replaced{"token-cleaner-controller", "tokencleaner", false}
)

// in reports whether --controllers switches the controller on. If --controllers names the controller several times,
// the first entry decides, as in kube-controller-manager.
func (c replaced) in(controllers []string) bool {
	if len(controllers) == 0 {
		controllers = []string{"*"}
	}
	for _, name := range controllers {
		switch name {
		case c.long, c.short:
			return true
		case "-" + c.long, "-" + c.short:
			return false
		}
	}
	return c.byDefault && slices.Contains(controllers, "*")
}

// signsNodes reports whether the flags give kube-controller-manager a CA for client certificates of kubelets.
func signsNodes(f flags) bool {
	own := f.last("cluster-signing-kubelet-client-cert-file") != "" && f.last("cluster-signing-kubelet-client-key-file") != ""
	return own || f.last("cluster-signing-cert-file") != "" && f.last("cluster-signing-key-file") != ""
}

// controllersOff is the value of --controllers that leaves the work to kubejoin.
const controllersOff = "*,-csrapproving,-csrsigning,-csrcleaner"

func checkControllerManager(f *Facts) []Finding {
	return f.onEach(kubeControllerManager, func(machine string, flags flags) (all []Finding) {
		on := flags.list("controllers")
		for _, one := range []struct {
			runs     bool
			id, does string
		}{
			{kcmSigner.in(on) && signsNodes(flags), "kcm-signs", "signs certificates of nodes, so the limits of tokens do not hold"},
			{kcmApprover.in(on), "kcm-approves", "approves requests of nodes without checking the limits of tokens"},
			{kcmBootstrapSigner.in(on), "kcm-signs-cluster-info", "signs cluster-info too: it keeps signatures of spent tokens, and removes those of tokens that it does not know"},
			{kcmTokenCleaner.in(on), "kcm-cleans-tokens", "deletes expired tokens too, and may delete a token that was just renewed"},
		} {
			if one.runs {
				all = append(all, found(one.id, setFlag(kubeControllerManager, "controllers", controllersOff, ""), "kube-controller-manager on %s %s", machine, one.does))
			}
		}
		return all
	})
}

// OtherSigners returns a finding for each kube-controller-manager among the static pods of control planes that signs any
// certificates, and the control planes whose kube-controller-manager is not visible.
func OtherSigners(controlPlanes []string, pods []corev1.Pod) (signing []Finding, unseen []string) {
	unseen = slices.Clone(controlPlanes)
	for _, c := range componentsOf(kubeControllerManager, controlPlanes, pods) {
		unseen = slices.DeleteFunc(unseen, func(name string) bool { return name == c.machine })
		if kcmSigner.in(c.flags.list("controllers")) && c.flags.signs() {
			signing = append(signing, found("kcm-signs", setFlag(kubeControllerManager, "controllers", controllersOff, ""), "kube-controller-manager on %s signs certificates", c.machine).on(c.machine))
		}
	}
	return signing, unseen
}

// EtcdServers returns the URLs of etcd in the flags of kube-apiserver, by the Node of its static pod.
func EtcdServers(controlPlanes []string, pods []corev1.Pod) map[string][]string {
	all := map[string][]string{}
	for _, c := range componentsOf(kubeAPIServer, controlPlanes, pods) {
		urls := c.flags.list("etcd-servers")
		for _, override := range c.flags.list("etcd-servers-overrides") { // GROUP/RESOURCE#URL;URL
			_, others, _ := strings.Cut(override, "#")
			urls = append(urls, strings.Split(others, ";")...)
		}
		all[c.machine] = append(all[c.machine], slices.DeleteFunc(urls, func(u string) bool { return u == "" })...)
	}
	return all
}

// signs reports whether the flags give kube-controller-manager a CA for any signer.
func (f flags) signs() bool {
	for name := range f {
		if strings.HasPrefix(name, "cluster-signing-") && strings.HasSuffix(name, "cert-file") && f.last(name) != "" {
			return true
		}
	}
	return false
}

func checkBootstrapTokens(f *Facts) []Finding {
	return f.onEach(kubeAPIServer, func(machine string, flags flags) []Finding {
		if flags.last("enable-bootstrap-token-auth") == "true" {
			return nil
		}
		if file := flags.last("authentication-token-webhook-config-file"); file != "" {
			return []Finding{unseen("kube-apiserver on %s has bootstrap tokens reviewed by the webhook in %s", machine, file)}
		}
		return []Finding{found("apiserver-bootstrap-tokens-off", setFlag(kubeAPIServer, "enable-bootstrap-token-auth", "true", ""),
			"kube-apiserver on %s lacks --enable-bootstrap-token-auth, so it refuses every bootstrap token", machine)}
	})
}

func checkKubeletCA(f *Facts) []Finding {
	return f.onEach(kubeAPIServer, func(machine string, flags flags) []Finding {
		if flags.last("kubelet-certificate-authority") != "" {
			return nil
		}
		return []Finding{found("apiserver-trusts-any-kubelet", setFlag(kubeAPIServer, "kubelet-certificate-authority", "/etc/kubernetes/pki/ca.crt", ""),
			"kube-apiserver on %s lacks --kubelet-certificate-authority, so it verifies no certificate of a kubelet for logs and exec", machine)}
	})
}

func checkAuthorizers(f *Facts) []Finding {
	return f.onEach(kubeAPIServer, func(machine string, flags flags) []Finding {
		modes := flags.list("authorization-mode")
		set := func(value string) string { return setFlag(kubeAPIServer, "authorization-mode", value, "Node,RBAC") }
		switch file := flags.last("authorization-config"); {
		case file != "":
			return []Finding{unseen("kube-apiserver on %s reads its authorizers from %s", machine, file)}
		case len(modes) == 0 || slices.Contains(modes, "AlwaysAllow"): // an empty list means AlwaysAllow
			return []Finding{found("apiserver-always-allow", set("Node,RBAC"),
				"kube-apiserver on %s authorizes every request, because --authorization-mode is AlwaysAllow", machine)}
		case !slices.Contains(modes, "Node"):
			return []Finding{found("apiserver-node-authorizer-off", set("Node,"+strings.Join(modes, ",")),
				"kube-apiserver on %s lacks Node in --authorization-mode, so a node that joined cannot register", machine)}
		}
		return nil
	})
}

func checkNodeRestriction(f *Facts) []Finding {
	const name = "NodeRestriction"
	return f.onEach(kubeAPIServer, func(machine string, flags flags) []Finding {
		enabled, disabled := flags.list("enable-admission-plugins"), flags.list("disable-admission-plugins")
		mend := ""
		switch {
		case slices.Contains(disabled, name):
			others := slices.DeleteFunc(slices.Clone(disabled), func(plugin string) bool { return plugin == name })
			mend = setFlag(kubeAPIServer, "disable-admission-plugins", strings.Join(others, ","), "")
		case !slices.Contains(enabled, name):
			mend = setFlag(kubeAPIServer, "enable-admission-plugins", strings.Join(append(slices.Clone(enabled), name), ","), name)
		default:
			return nil
		}
		return []Finding{found("apiserver-node-restriction-off", mend,
			"kube-apiserver on %s runs without the admission plugin NodeRestriction, so each node can change other Nodes and Pods", machine)}
	})
}

// checkRevocations finds revocations that no kube-apiserver enforces.
func checkRevocations(f *Facts) []Finding {
	if f.Revoked == 0 || f.RevocationPolicy {
		return nil
	}
	return f.onEach(kubeAPIServer, func(machine string, flags flags) []Finding {
		if file := flags.last("authorization-config"); file != "" {
			return []Finding{unseen("kube-apiserver on %s reads its authorizers from %s, which may lack kubejoin", machine, file)}
		}
		return []Finding{found("revocations-not-enforced", "kubejoin authorization-config --ca-file /etc/kubernetes/pki/ca.crt",
			"nodes or certificates are revoked, but kube-apiserver on %s lacks --authorization-config, and ValidatingAdmissionPolicy kubejoin-revocation is not bound: revoked certificates still work there", machine)}
	})
}

// checkRevocationsFill finds a list of revocations that is nearly full.
func checkRevocationsFill(f *Facts) []Finding {
	if f.RevocationsFill < configmaps.NearlyFull {
		return nil
	}
	return []Finding{found("revocations-nearly-full", "kubejoin revoke list",
		"a ConfigMap of revocations is %.0f %% full, and a full one takes no new revocations: if machines on it were destroyed, remove their entries with kubejoin revoke undo", 100*f.RevocationsFill)}
}

package doctor

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/kube/nodeproperties"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// The minor versions of Kubernetes 1 that kubejoin supports. A test compares them with the versions that the test suite runs.
const (
	OldestMinor = 35
	NewestMinor = 37
)

func checkKubernetesVersion(f *Facts) []Finding {
	v, err := version.ParseGeneric(f.KubernetesVersion)
	switch {
	case err != nil:
		return []Finding{found("kubernetes-version", "kubectl version", "the API server reports version %q, which is none of Kubernetes", f.KubernetesVersion)}
	case v.Major() != 1 || v.Minor() < OldestMinor:
		return []Finding{found("kubernetes-version", "kubeadm upgrade plan", "the API server has version %s, and kubejoin supports 1.%d to 1.%d", f.KubernetesVersion, OldestMinor, NewestMinor)}
	case v.Minor() > NewestMinor:
		return []Finding{found("kubernetes-version", "helm upgrade kubejoin deploy/chart/kubejoin -n kubejoin-system --reset-then-reuse-values",
			"the API server has version %s, and this kubejoin supports 1.%d to 1.%d: use a newer kubejoin", f.KubernetesVersion, OldestMinor, NewestMinor)}
	}
	return nil
}

func checkKubejoinVersion(f *Facts) []Finding {
	if f.Kubejoin == nil {
		return nil
	}
	own, err := version.ParseSemantic(f.Version)
	theirs, err2 := version.ParseSemantic(f.Kubejoin.Version)
	if err != nil || err2 != nil || !theirs.LessThan(own) { // Read reports versions that cannot be compared
		return nil
	}
	return []Finding{found("kubejoin-older", "helm upgrade kubejoin deploy/chart/kubejoin -n kubejoin-system --reset-then-reuse-values",
		"%s runs kubejoin %s, which is older than this command, %s", f.Kubejoin.URL, f.Kubejoin.Version, f.Version)}
}

// leaseMargin is the tolerated difference between the clocks of the API server and the leader.
const leaseMargin = 30 * time.Second

func checkRunning(f *Facts) []Finding {
	if k := f.Kubejoin; k != nil {
		switch {
		case k.Unreachable != "":
			return []Finding{found("kubejoin-unreachable", "curl -vk "+safetext.Quote(k.URL+"/readyz?verbose"), "%s does not respond as a kubejoin: %s", k.URL, k.Unreachable)}
		case len(k.Failing) > 0:
			return []Finding{found("kubejoin-not-ready", "curl -k "+safetext.Quote(k.URL+"/readyz?verbose"), "%s is not ready: %s", k.URL, strings.Join(k.Failing, "; "))}
		case k.Signers != "":
			return []Finding{found("signer-ca", "curl -k "+safetext.Quote(k.URL+"/readyz?verbose"), "%s: %s", k.URL, k.Signers)}
		}
		return nil
	}
	const start = "kubejoin serve --kubeconfig kubejoin.conf --cluster-signing-cert-file /etc/kubernetes/pki/ca.crt --cluster-signing-key-file /etc/kubernetes/pki/ca.key"
	why := "there is none"
	if l := f.Lease; l != nil {
		s := l.Spec
		if s.HolderIdentity != nil && *s.HolderIdentity != "" && s.RenewTime != nil && s.LeaseDurationSeconds != nil &&
			f.Time.Before(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second+leaseMargin)) {
			return nil
		}
		why = "nobody renews it"
	}
	return []Finding{found("kubejoin-not-running", start, "no kubejoin leads by the Lease kubejoin-system/kubejoin: %s; if one runs with --leader-elect=false, give its --url", why)}
}

// checkWrites reports writes of kubejoin that have failed, and writes that would fail but that kubejoin may not have tried yet.
func checkWrites(f *Facts) []Finding {
	const show = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"
	var all []Finding
	for _, w := range failedwrites.Of(f.Lease, f.Time) {
		all = append(all, found("writes-fail", show, "kubejoin could not %s, last at %s: %s", w, w.At.Format(time.RFC3339), w.Message))
	}
	for _, w := range f.Refused {
		all = append(all, found("writes-fail", show, "kubejoin cannot %s, as a dry run shows: %s", w, w.Message))
	}
	if f.Kubejoin != nil && f.Kubejoin.Writes != "" && len(all) == 0 {
		all = append(all, found("writes-fail", show, "%s: %s", f.Kubejoin.URL, f.Kubejoin.Writes))
	}
	if why := f.Unread[factDryRun]; why != "" {
		all = append(all, unseen("%s", why))
	}
	return all
}

// How long a Node may be not Ready, and a request may wait, before the doctor reports a finding.
const (
	notReadyFor = 10 * time.Minute
	joiningFor  = 10 * time.Minute
	pendingFor  = 30 * time.Second
)

func checkNodes(f *Facts) []Finding {
	var all []Finding
	for _, node := range f.Nodes {
		since, why := node.CreationTimestamp.Time, "it never reported"
		ready := false
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready, since, why = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time, c.Reason
			}
		}
		if ready || f.Time.Sub(since) < notReadyFor {
			continue
		}
		if !f.Claims[node.Name].Machine.IsZero() { // no token can replace it
			all = append(all, found("node-not-ready", "kubejoin explain "+safetext.Quote(node.Name),
				"Node %s is not Ready since %s (%s): its machine joins again with its key, if its join script runs on a new disk", node.Name, since.UTC().Format(time.RFC3339), why))
			continue
		}
		all = append(all, found("node-not-ready", "kubejoin token create --replace-node "+safetext.Quote(node.Name)+" --print-join-command",
			"Node %s is not Ready since %s (%s) and keeps its name from other machines: replace it, or if its machine is gone, delete the Node", node.Name, since.UTC().Format(time.RFC3339), why))
	}
	return all
}

// checkJoining finds Nodes that wait for what their tokens ask for.
func checkJoining(f *Facts) []Finding {
	var all []Finding
	for _, err := range f.Malformed {
		all = append(all, unseen("%s", oneLine(err)))
	}
	for _, node := range f.Nodes {
		claim, known := f.Claims[node.Name]
		tainted, since := nodeproperties.Joining(&node), nodeproperties.Since(node.CreationTimestamp.Time, claim)
		if !tainted && (!claim.Waits || claim.NodeUID != string(node.UID)) || f.Time.Sub(since) < joiningFor {
			continue
		}
		served := slices.ContainsFunc(f.Requests, func(r certificates.CertificateSigningRequest) bool {
			return nodeproperties.Serves(&r, node.Name, claim.Created)
		})
		patch, waits := nodeproperties.Plan(&node, claim.Remaining().Node, served)
		until := cmp.Or(waits.Text, "kubejoin patches it")
		if patch != nil && f.Lease != nil && f.Lease.Annotations[leader.NodePropertiesAnnotation] == "" {
			until = nodeproperties.WaitsForRight.Text
		} else if !known { // it may be malformed, or in a file or in etcd
			until += " (the cluster has no valid claim of its name)"
		}
		if tainted {
			until += ", and no pods run on it without a toleration of its taint " + tokens.JoiningTaint
		}
		all = append(all, found("node-joining", "kubejoin explain "+safetext.Quote(node.Name), "Node %s waits since %s until %s",
			node.Name, since.UTC().Format(time.RFC3339), until))
	}
	return all
}

// checkMachines finds copied keys of machines, and machines that expired before they got a token.
func checkMachines(f *Facts) []Finding {
	var all []Finding
	for _, node := range slices.Sorted(maps.Keys(f.Claims)) {
		switch m := f.Claims[node].Machine; {
		case m.Cloned(f.Time) && !m.Revoked:
			all = append(all, found("machine-cloned", "kubejoin revoke "+safetext.Quote(node),
				"another machine has proven the key of Node %s since %s, while the Node was Ready; the command locks out all machines with this key", node, m.RefusedSince.Format(time.RFC3339)))
		case m.Expired(f.Time) && m.TokenID == "":
			all = append(all, found("machine-expired", "kubejoin machine delete "+safetext.Quote(node),
				"the machine of node %s expired at %s without a token, and no other machine can use this name", node, m.Expires.Format(time.RFC3339)))
		}
	}
	return all
}

func checkRequests(f *Facts) []Finding {
	var all []Finding
	for _, r := range f.Requests {
		if r.Spec.SignerName != certificates.KubeAPIServerClientKubeletSignerName && r.Spec.SignerName != certificates.KubeletServingSignerName {
			continue
		}
		state := "approved"
		decided := false
		for _, c := range r.Status.Conditions {
			decided = decided || c.Type != certificates.CertificateApproved
		}
		if len(r.Status.Conditions) == 0 {
			state = "created"
		}
		if decided || len(r.Status.Certificate) > 0 || f.Time.Sub(r.CreationTimestamp.Time) < pendingFor {
			continue
		}
		command := "kubejoin explain --csr " + r.Name
		if !safetext.SafeInShell(r.Name) {
			command = safetext.ShowCSR(r.Name, string(r.UID))
		}
		all = append(all, found("csr-pending", command, "certificate request %s of %s was %s and has no certificate since %s",
			r.Name, r.Spec.Username, state, r.CreationTimestamp.UTC().Format(time.RFC3339)))
	}
	return all
}

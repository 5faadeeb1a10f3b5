package doctor

import (
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/caexpiry"
	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

const editClusterInfo = "kubectl -n kube-public edit configmap cluster-info"

// kubeconfig returns the server and the CAs in cluster-info. It returns an error if they are unusable.
func (f *Facts) kubeconfig() (server string, cas []*x509.Certificate, err error) {
	return clusterinfo.ParseKubeconfig([]byte(f.ClusterInfo[clusterinfo.KubeconfigKey]))
}

func checkClusterInfo(f *Facts) []Finding {
	if f.ClusterInfo == nil {
		return []Finding{found("cluster-info-missing", "kubejoin serve --kubeconfig kubejoin.conf --api-server "+safetext.Quote(f.Host),
			"there is no ConfigMap kube-public/cluster-info, so no machine can discover the cluster; kubejoin creates it with --api-server")}
	}
	_, cas, err := f.kubeconfig()
	if err != nil {
		return []Finding{found("cluster-info-malformed", editClusterInfo, "ConfigMap kube-public/cluster-info is malformed: %v", err)}
	}
	var all []Finding
	if len(f.CAs) == 0 {
		all = append(all, unseen("your kubeconfig has no CA to compare with those in cluster-info"))
	} else if !slices.ContainsFunc(f.CAs, func(ca *x509.Certificate) bool { return slices.ContainsFunc(cas, ca.Equal) }) {
		all = append(all, found("cluster-info-other-ca", editClusterInfo, "cluster-info has none of the CAs of your kubeconfig, so machines trust another cluster"))
	}
	switch e := f.Discovery; {
	case e == nil:
	case e.Unreachable != "":
		all = append(all, found("cluster-info-server-unreachable", editClusterInfo, "the API server in cluster-info, %s, is unreachable from here: %s", e.Address, e.Unreachable))
	case e.Untrusted != "":
		all = append(all, found("cluster-info-server-untrusted", editClusterInfo, "the API server in cluster-info, %s, has no certificate of a CA in cluster-info: %s", e.Address, e.Untrusted))
	default:
		all = append(all, loopback(e.Address, editClusterInfo, "cluster-info names")...)
	}
	return all
}

// signingDelay is how long a new token may have no signature.
const signingDelay = 30 * time.Second

// spentDelay is the minimum time that kubejoin keeps the signature of a spent token after its last node has registered. If
// all nodes of the token are deleted, kubejoin removes the signature earlier.
const spentDelay = 10 * time.Minute

func checkSignatures(f *Facts) []Finding {
	if f.ClusterInfo == nil {
		return nil
	}
	var all []Finding
	kubeconfig := []byte(f.ClusterInfo[clusterinfo.KubeconfigKey])
	for _, r := range f.Tokens {
		id := r.Token.ID()
		jws := f.ClusterInfo[clusterinfo.SignatureKey(id)]
		stays := func(name string) bool { return !secretstore.Steps{}.Ended(r, tokens.Claim{Node: name, TokenID: id}) }
		switch {
		case r.Problem != nil, !r.Signs(f.Time), f.Time.Sub(r.Created) < signingDelay:
			continue
		// A token that counts nodes without a limit of its own has one by --token-limits of kubejoin.
		case (r.Spent() || len(r.Nodes) > 0 && r.Limits.NodeLimit() == 0) && jws == "" && (f.Time.Sub(r.Created) >= spentDelay || !slices.ContainsFunc(r.Nodes, stays)):
			continue
		}
		if clusterinfo.Verify(kubeconfig, jws, r.Token) != nil {
			all = append(all, found("cluster-info-unsigned", "kubectl -n kubejoin-system get lease kubejoin -o yaml",
				"cluster-info has no valid signature of token %s, so no machine joins with it: no bootstrap-signer works, or cluster-info is full", id))
		}
	}
	return all
}

// limitAnonymous allows anonymous requests only to the paths that probes of static pods need.
const limitAnonymous = `printf '%s\n' 'apiVersion: apiserver.config.k8s.io/v1' 'kind: AuthenticationConfiguration' ` +
	`'anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]}' > /etc/kubernetes/pki/authentication.yaml && `

// checkAnonymous checks anonymous access to the API server. Machines need this access unless they read cluster-info from
// kubejoin.
func checkAnonymous(f *Facts) []Finding {
	if checkAdvertise(f) != nil {
		return nil // machines may need the API server until join commands lead to this cluster
	}
	var all []Finding
	switch {
	case f.Advertise != nil && f.Anonymous == http.StatusOK:
		all = append(all, found("cluster-info-public", "kubectl -n kube-public delete rolebinding kubeadm:bootstrap-signer-clusterinfo",
			"anybody can read cluster-info at the API server, although machines read it from kubejoin at %s", f.Advertise.Address))
	case f.Advertise == nil && f.Anonymous == http.StatusForbidden:
		all = append(all, found("cluster-info-not-public", "kubectl apply -f deploy/cluster-info-public.yaml",
			"anonymous users cannot read cluster-info, so no machine can discover the cluster at the API server"))
	case f.Advertise == nil && f.Anonymous == http.StatusUnauthorized:
		all = append(all, found("cluster-info-not-public", "kubejoin serve --advertise HOST:9443 --kubeconfig kubejoin.conf",
			"the API server refuses anonymous requests, so no machine can discover the cluster there: let join commands name kubejoin"))
	}
	if f.Advertise != nil && f.Anonymous != http.StatusUnauthorized {
		all = append(all, found("anonymous-on", limitAnonymous+setFlag(kubeAPIServer, "authentication-config", "/etc/kubernetes/pki/authentication.yaml", ""),
			"the API server accepts anonymous requests, which machines do not need, because they read cluster-info from kubejoin").on("each control plane"))
	}
	return all
}

// loopback finds an endpoint that is a loopback address. It responds on this machine, but no other machine can join with it.
func loopback(endpoint, mend, who string) []Finding {
	if !clusterinfo.IsLoopback(endpoint) {
		return nil
	}
	return []Finding{found("loopback-address", mend, "%s %s, at which each machine connects to itself: give an address that all machines reach", who, endpoint)}
}

func checkAdvertise(f *Facts) []Finding {
	e := f.Advertise
	if e == nil {
		return nil
	}
	show := "curl -vk https://" + safetext.Quote(e.Address) + "/readyz?verbose"
	switch {
	case e.Unreachable != "":
		return []Finding{found("advertise-unreachable", show, "the address in join commands, %s, is unreachable from here: %s", e.Address, e.Unreachable)}
	case e.Untrusted != "":
		return []Finding{found("advertise-untrusted", show, "%s has no certificate of a CA in cluster-info, so machines refuse it: %s", e.Address, e.Untrusted)}
	case e.Kubeconfig != f.ClusterInfo[clusterinfo.KubeconfigKey]:
		return []Finding{found("advertise-other-cluster", show, "%s serves another cluster-info than this cluster has", e.Address)}
	}
	return loopback(e.Address, "kubejoin serve --advertise HOST:9443 --kubeconfig kubejoin.conf", "join commands name")
}

func checkPins(f *Facts) []Finding {
	const mend = "kubejoin token create --print-join-command"
	_, cas, err := f.kubeconfig()
	if err != nil {
		return nil // checkClusterInfo reports this error
	}
	pins := clusterinfo.Pins(cas)
	var all []Finding
	for _, pin := range f.Pins {
		if !slices.Contains(pins, pin) {
			all = append(all, found("pin-mismatch", mend, "CA pin %s is of no CA in cluster-info, so join commands with it fail", pin))
		}
	}
	if f.Kubejoin != nil {
		if why := f.Kubejoin.PinsUnread; why != "" {
			all = append(all, unseen("the CA pins of %s: %s", f.Kubejoin.URL, why))
		}
		for _, pin := range f.Kubejoin.Pins {
			if !slices.Contains(pins, pin) {
				all = append(all, found("pin-mismatch", editClusterInfo, "join commands of %s have the CA pin %s, which is of no CA in cluster-info", f.Kubejoin.URL, pin))
			}
		}
	}
	return all
}

// checkTrust finds CAs whose certificates clients refuse, for example because of name constraints. It checks the names
// that kubelets request.
func checkTrust(f *Facts) []Finding {
	_, cas, err := f.kubeconfig()
	if err != nil {
		return nil // checkClusterInfo reports this error
	}
	var hosts []string
	for _, node := range f.Nodes {
		for _, a := range node.Status.Addresses {
			if host := approval.Host(a.Address); dnsname.IsHost(host) || net.ParseIP(host) != nil {
				hosts = append(hosts, host)
			}
		}
	}
	var all []Finding
	for _, ca := range cas {
		if err := signer.CheckTrust(ca, cas, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, hosts); err != nil {
			all = append(all, found("ca-not-trusted", "openssl x509 -noout -text -in /etc/kubernetes/pki/ca.crt", "%v", err).on("a control plane"))
		}
	}
	return all
}

// checkCA checks the CA that expires last. During a rotation, cluster-info also contains the old CA, which may expire earlier.
func checkCA(f *Facts) []Finding {
	_, cas, err := f.kubeconfig()
	if err != nil || len(cas) == 0 {
		return nil
	}
	end := slices.MaxFunc(cas, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
	switch days, _ := caexpiry.Within(end, f.Time); {
	case !f.Time.Before(end):
		return []Finding{found("ca-expired", "kubeadm certs check-expiration", "the CA in cluster-info expired at %s, so no machine can join", end.UTC().Format(time.RFC3339))}
	case days > 0:
		return []Finding{found("ca-expires-soon", "kubejoin ca prepare", "the CA in cluster-info expires at %s, within %d days", end.UTC().Format(time.RFC3339), days)}
	}
	return nil
}

// maxSkew is the tolerated difference between two clocks. If the clocks differ by 5 minutes or more, machines reject
// new certificates.
const maxSkew = time.Minute

func checkClocks(f *Facts) []Finding {
	const mend = "timedatectl set-ntp true"
	var all []Finding
	compare := func(of string, local, remote time.Time) {
		if skew := local.Sub(remote).Round(time.Second); !remote.IsZero() && skew.Abs() > maxSkew {
			direction := "ahead of"
			if skew < 0 {
				direction = "behind"
			}
			all = append(all, found("clock-skew", mend, "the clock of this machine is %s %s that of %s", skew.Abs(), direction, of))
		}
	}
	compare("the API server", f.Local, f.Time)
	if f.Kubejoin != nil {
		compare(f.Kubejoin.URL, f.Kubejoin.Local, f.Kubejoin.Time)
	}
	return all
}

// maxStage is how long a stage of a rotation may take before it is a finding. A stage waits for certificates and tokens, which
// usually expire within a day.
const maxStage = 3 * 24 * time.Hour

// checkRotations finds abandoned rotations of CAs, during which the cluster trusts two CAs. It also finds a rotation state
// for hosts that somebody other than kubejoin has written.
func checkRotations(f *Facts) []Finding {
	var all []Finding
	if f.RotationCopy != nil {
		all = append(all, found("ca-rotation-edited", "kubectl -n kube-public get configmap kubejoin-ca -o yaml --show-managed-fields",
			"%v", f.RotationCopy))
	}
	for _, r := range f.Rotations {
		if r.InProgress() && f.Time.Sub(r.Since) > maxStage {
			all = append(all, found("ca-rotation-stuck", "kubejoin ca status --ca "+string(r.CA),
				"the rotation of the %s CA has been in stage %s since %s, and waits for 'kubejoin ca %s'", r.CA, r.Stage, r.Since.UTC().Format(time.RFC3339), r.Next()))
		}
	}
	return all
}

package doctor

import (
	"crypto/x509"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// A Fact is the name of a set of data that Read reads. Reading may fail for each Fact separately.
type Fact string

const (
	factVersion            Fact = "version of the API server"
	factControlPlane       Fact = "static pods of the control plane"
	factClusterRoles       Fact = "cluster roles"
	factRoles              Fact = "roles"
	factJoinConfig         Fact = "ConfigMaps of kubeadm"
	factObjects            Fact = "objects of kubejoin"
	factLease              Fact = "lease of kubejoin"
	factDryRun             Fact = "dry run of writes"
	factTokens             Fact = "tokens"
	factClusterInfo        Fact = "cluster-info"
	factAnonymous          Fact = "anonymous access"
	factNodes              Fact = "nodes"
	factClaims             Fact = "claims of node names"
	factRequests           Fact = "certificate requests"
	factRevocations        Fact = "revocations"
	factRotations          Fact = "rotations of CAs"
	factAdvertise          Fact = "advertised address"
	factVersionsComparable Fact = "version of kubejoin"
)

// Facts are the input of the checks. Only [Read] reads them from a cluster.
type Facts struct {
	// Unread says why a fact could not be read.
	Unread map[Fact]string

	// Version is the version of this command.
	Version string
	// Pins are CA pins of an existing join command.
	Pins []string

	// Local is the time of this machine, and Time the time of the API server at the same moment.
	Local, Time time.Time
	// KubernetesVersion is the version of the API server.
	KubernetesVersion string
	// Host is the URL of the API server in the kubeconfig. CAs are the CAs that the kubeconfig trusts; empty if it
	// trusts the system's CAs.
	Host string
	CAs  []*x509.Certificate

	// ControlPlane are the Pods that are labelled as kube-apiserver, kube-controller-manager and kube-scheduler. The Pods
	// of workers may be forged: see componentsOf.
	ControlPlane []corev1.Pod

	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	// Roles and RoleBindings are from the namespaces of the manifests, and from kube-system and kube-public.
	Roles        []rbacv1.Role
	RoleBindings []rbacv1.RoleBinding
	// JoinConfig is the data of the ConfigMaps in kube-system that 'kubeadm join' reads, by name.
	JoinConfig map[string]map[string]string
	// Missing are objects of the manifests that do not exist, except RBAC objects, as "Kind NAME".
	Missing []string
	// Lease is the Lease of kubejoin's leader, with its failed writes. It is nil if the Lease is missing.
	Lease *coordinationv1.Lease
	// Refused are dry runs of kubejoin's writes that failed because of a webhook. Only their Message may name the webhook.
	Refused []failedwrites.Write

	Tokens []tokens.Record
	// UploadMissing reports that the Secret of uploaded certificates of control planes does not exist.
	UploadMissing bool
	// ClusterInfo is the data of the ConfigMap; nil if there is none.
	ClusterInfo map[string]string
	// Anonymous is the status of an anonymous read of cluster-info at the API server.
	Anonymous int
	// Discovery is the result of a connection to the server in cluster-info; nil if there is no valid cluster-info.
	Discovery *Endpoint
	// Advertise is the result of a connection to the address of --advertise; nil if join commands name the API server.
	Advertise *Endpoint
	// Kubejoin is the state of a running kubejoin; nil without --url.
	Kubejoin *Kubejoin

	// Revoked is the number of revoked nodes and certificates. RevocationsFill is how full their fullest ConfigMap is, from 0
	// to 1. RevocationPolicy reports whether the ValidatingAdmissionPolicy that enforces revocations is bound.
	Revoked          int
	RevocationsFill  float64
	RevocationPolicy bool

	// Rotations are the last rotations of CAs.
	Rotations []rotation.Rotation
	// RotationCopy says how the rotations that hosts read differ from the stored rotations; nil if they do not.
	RotationCopy error

	Nodes    []corev1.Node
	Requests []certificates.CertificateSigningRequest
	// Claims are the claims of node names, by name. Malformed says what is wrong with those that are not among them.
	Claims    map[string]tokens.Claim
	Malformed []error
}

// An Endpoint is an address that joining machines connect to.
type Endpoint struct {
	Address string
	// Unreachable says why no connection is possible. Untrusted says why the server's certificate does not chain to a
	// CA in cluster-info.
	Unreachable, Untrusted string
	// Kubeconfig is the kubeconfig in the cluster-info that the server returned. It is set only for the address of --advertise.
	Kubeconfig string
}

// A Kubejoin is the state that a kubejoin server reports about itself.
type Kubejoin struct {
	URL string
	// Unreachable says why the server does not respond; empty if it does.
	Unreachable string
	Version     string
	// Failing are the failed checks of /readyz.
	Failing []string
	// Signers is the notice of kubejoin's readiness check signer-config, for example that the CA of a signer expires; empty
	// without a notice.
	Signers string
	// Writes is the notice of the readiness check "writes"; empty if all writes succeed.
	Writes string
	// Pins are the CA pins in kubejoin's join commands. PinsUnread says why they could not be read.
	Pins       []string
	PinsUnread string
	// Local is the time of this machine, and Time the time of the server at the same moment.
	Local, Time time.Time
}

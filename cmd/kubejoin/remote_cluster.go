package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/credentials"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/cluster-bootstrap/token/api"
)

// leaderLease is the Lease for the leader election of replicas, in the namespace of claims.
const leaderLease = tokens.OwnName

// reachTimeout limits how long the first response of an API server may take.
const reachTimeout = 10 * time.Second

// onKubeconfig is a cluster that a command accesses directly, without a kubejoin server.
type onKubeconfig struct {
	client kubernetes.Interface
	store  tokens.Store
}

// clusterClient returns a client of the API server in a kubeconfig.
func clusterClient(rules *clientcmd.ClientConfigLoadingRules) (*rest.Config, kubernetes.Interface, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err == nil {
		err = credentials.CheckConfig(config)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "kubejoin/" + buildVersion().Version
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.WarningHandler = rest.NoWarnings{}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, clientset, nil
}

// connectCluster runs a kubejoin server in this process, so that a command has the same result as with a kubejoin
// server on that cluster.
func connectCluster(ctx context.Context, rules *clientcmd.ClientConfigLoadingRules, pkiDir string) (*remote, func(), error) {
	config, clientset, err := clusterClient(rules)
	if err != nil {
		return nil, nil, err
	}
	signer, forbidden, err := findSigner(ctx, clientset)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	store, err := secretstore.Open(ctx, clientset, nil)
	if err != nil {
		stop()
		return nil, nil, err
	}
	claims, err := secretstore.OpenClaims(ctx, clientset, secretstore.ClaimNamespace, nil)
	if err != nil {
		stop()
		return nil, nil, err
	}
	revoked, err := configmaps.Open(ctx, clientset, secretstore.ClaimNamespace, nil)
	if err != nil {
		stop()
		return nil, nil, err
	}
	info := configmap.Open(ctx, clientset)
	s := server.Server{
		Tokens: store, ClusterInfo: info,
		Node:           liveNode(clientset),
		Explain:        kube.Reader{Client: clientset, Tokens: store, Claims: claims, ClusterInfo: info, Revocations: revoked}.Explain,
		ExplainRequest: byDefaults(ctx, clientset, store, claims).Explain,

		Revocations: &desk.Desk{
			Guard: &revocation.Guard{Store: revoked}, Tokens: store, ClusterInfo: info, Node: liveNode(clientset),
			Requested: func(ctx context.Context) ([]revocation.Issued, error) { return csr.Issued(ctx, clientset) },
			ClientCAs: func(ctx context.Context) ([]*x509.Certificate, error) { return configmaps.ClientCAs(ctx, clientset) },
		},

		UploadCertificates: (&kubeadmcerts.Uploader{Client: clientset, Dir: pkiDir, CreateRole: true}).Upload,

		SignedBy: signer.signedBy(),
		Warnings: func(ctx context.Context, made tokens.Record) []string {
			return tokenwarning.All(ctx, made, signer.warning, tokenwarning.Size(info), tokenwarning.ClusterInfoCAs(info), tokenwarning.KubeletClient(clientset))
		},
		Version: buildVersion(),
	}
	if !forbidden {
		s.Claims, s.Revocations.Claims = claims, claims
	}
	// The in-process server does not authorize: the API server does.
	asks := client.InProcess(s.InProcess())
	asks.URL = config.Host // for messages
	return &remote{Client: asks, cluster: &onKubeconfig{clientset, store}}, stop, nil
}

// liveNode reads Nodes from the API server, not from a cache.
func liveNode(client kubernetes.Interface) func(context.Context, string) (tokens.NodeRef, error) {
	return func(ctx context.Context, name string) (tokens.NodeRef, error) {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return tokens.NodeRef{}, fmt.Errorf("node %s: %w", name, tokens.ErrNotFound)
		}
		if err != nil {
			return tokens.NodeRef{}, err
		}
		return tokens.NodeRef{Name: node.Name, UID: string(node.UID)}, nil
	}
}

// mayList returns an error if the API server does not allow to list tokens. Without this check, the informer of
// tokens would retry until the permission exists.
func (c *onKubeconfig) mayList(ctx context.Context) error {
	_, err := c.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(api.SecretTypeBootstrapToken)).String(), Limit: 1,
	})
	return err
}

// mayListClaims is [onKubeconfig.mayList] for claims. It returns nil for a kubejoin server, which checks by itself.
func (r *remote) mayListClaims(ctx context.Context) error {
	if r.cluster == nil {
		return nil
	}
	_, err := r.cluster.client.CoordinationV1().Leases(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// A signerState tells whether a kubejoin runs on a cluster, by its Lease.
type signerState struct {
	lease *coordinationv1.Lease // nil: it does not exist, or known is false
	known bool                  // false: kubejoin was not allowed to read the Lease
	now   time.Time
}

// findSigner reads the leader Lease. It is also the first request, so it fails if the API server does not respond.
// forbidden reports that the user may not read Leases.
func findSigner(ctx context.Context, client kubernetes.Interface) (s signerState, forbidden bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	lease, err := client.CoordinationV1().Leases(secretstore.ClaimNamespace).Get(ctx, leaderLease, metav1.GetOptions{})
	s.now = time.Now()
	switch {
	case apierrors.IsForbidden(err):
		return s, true, nil
	case apierrors.IsNotFound(err):
		s.known = true
		return s, false, nil
	case err != nil:
		return s, false, err
	}
	s.lease, s.known = lease, true
	return s, false, nil
}

// clockSkew is the tolerated difference between the clocks of this machine and of the leader.
const clockSkew = 30 * time.Second

// holder returns the identity of the current leader. It is empty if there is none or its Lease has expired.
func (s signerState) holder() string {
	if s.lease == nil || s.lease.Spec.HolderIdentity == nil || s.lease.Spec.RenewTime == nil || s.lease.Spec.LeaseDurationSeconds == nil {
		return ""
	}
	lasts := time.Duration(*s.lease.Spec.LeaseDurationSeconds) * time.Second
	if s.now.After(s.lease.Spec.RenewTime.Add(lasts + clockSkew)) {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

func (s signerState) why() string {
	switch {
	case !s.known:
		return fmt.Sprintf("the Lease %s/%s cannot be read", secretstore.ClaimNamespace, leaderLease)
	case s.lease == nil:
		return fmt.Sprintf("there is no Lease %s/%s", secretstore.ClaimNamespace, leaderLease)
	case s.holder() == "":
		return fmt.Sprintf("no replica holds the Lease %s/%s", secretstore.ClaimNamespace, leaderLease)
	}
	return fmt.Sprintf("%s holds the Lease %s/%s", s.holder(), secretstore.ClaimNamespace, leaderLease)
}

// warning returns a warning for a new token with limits if no kubejoin runs on the cluster, or "".
func (s signerState) warning(_ context.Context, made tokens.Record) string {
	if made.Limits.IsZero() || !s.known || s.holder() != "" {
		return ""
	}
	return fmt.Sprintf("the limits of this token apply only to certificates that kubejoin signs, and no kubejoin runs on this cluster (%s): start one with 'kubejoin serve --kubeconfig FILE'", s.why())
}

func (s signerState) signedBy() string {
	if holder := s.holder(); holder != "" {
		return fmt.Sprintf("the bootstrap-signer of kubejoin (%s), or if it is switched off there the bootstrap-signer-controller of kube-controller-manager; see its log", s.why())
	}
	return fmt.Sprintf("the bootstrap-signer-controller of kube-controller-manager, or the bootstrap-signer of kubejoin (%s)", s.why())
}

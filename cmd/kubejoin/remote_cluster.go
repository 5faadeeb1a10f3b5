package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/explain/kube"
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

// leaderLease is the Lease that replicas lead by, in the namespace of claims.
const leaderLease = "kubejoin"

// reachTimeout is how long an API server may take for its first answer.
const reachTimeout = 10 * time.Second

// onKubeconfig is a cluster on which a command works by itself.
type onKubeconfig struct {
	client kubernetes.Interface
	store  tokens.Store
}

// connectCluster answers a command in this process, with what a kubejoin server on that cluster
// would say: there is one meaning of each command.
func connectCluster(ctx context.Context, rules *clientcmd.ClientConfigLoadingRules) (*remote, func(), error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
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
	info := configmap.Open(ctx, clientset)
	s := server.Server{
		Tokens: store, ClusterInfo: info,
		Node:           liveNode(clientset),
		Explain:        kube.Reader{Client: clientset, Tokens: store, Claims: claims, ClusterInfo: info}.Explain,
		ExplainRequest: byDefaults(ctx, clientset, store, claims).Explain,

		SignedBy: signer.signedBy(),
		Warnings: func(ctx context.Context, made tokens.Record) []string {
			return tokenwarning.All(ctx, made, signer.warning, tokenwarning.Size(info), tokenwarning.ClusterInfoCAs(info))
		},
		Version: buildVersion(),
	}
	if !forbidden {
		s.Claims = claims
	}
	// Who may do what, the API server decides.
	asks := client.InProcess(s.InProcess())
	asks.URL = config.Host // for messages
	return &remote{Client: asks, cluster: &onKubeconfig{clientset, store}}, stop, nil
}

// liveNode reads Nodes as they are now.
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

// mayList is the API server's word on whether tokens can be listed. What follows them would wait
// for leave.
func (c *onKubeconfig) mayList(ctx context.Context) error {
	_, err := c.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(api.SecretTypeBootstrapToken)).String(), Limit: 1,
	})
	return err
}

// mayListClaims is the same for claims, of which a server says so by itself.
func (r *remote) mayListClaims(ctx context.Context) error {
	if r.cluster == nil {
		return nil
	}
	_, err := r.cluster.client.CoordinationV1().Leases(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// A signerState is whether a kubejoin is at work on a cluster.
type signerState struct {
	lease *coordinationv1.Lease // nil: there is none, or it may not be read
	known bool
	now   time.Time
}

// findSigner looks for the Lease of a kubejoin, and at whether the API server answers at all.
// forbidden is that Leases may not be read.
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

// clockSkew is how much this machine's clock may differ from a leader's.
const clockSkew = 30 * time.Second

// holder is who leads now, or empty.
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

// warning is for who makes a token with limits.
func (s signerState) warning(_ context.Context, made tokens.Record) string {
	if made.Limits.IsZero() || !s.known || s.holder() != "" {
		return ""
	}
	return fmt.Sprintf("the limits of this token hold only where kubejoin signs certificates, and no kubejoin is at work on this cluster (%s): start one with 'kubejoin serve --kubeconfig FILE'", s.why())
}

func (s signerState) signedBy() string {
	if holder := s.holder(); holder != "" {
		return fmt.Sprintf("the bootstrap-signer of kubejoin (%s), or kube-controller-manager's bootstrap-signer-controller if that is switched off there; see its log", s.why())
	}
	return fmt.Sprintf("kube-controller-manager's bootstrap-signer-controller, or kubejoin's bootstrap-signer (%s)", s.why())
}

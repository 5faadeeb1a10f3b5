// Package kube opens the operations of a cluster for commands with a kubeconfig. It authorizes nothing: the API server does.
package kube

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	explainkube "github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
)

// A Cluster is a cluster that commands work on without a kubejoin server. Its methods have the arguments and results of
// the methods of client.Client.
type Cluster struct {
	operations.Operations // Claims is nil if the user may not read Leases
	*operations.Rotations
	Client kubernetes.Interface

	withClaims operations.Operations
	upload     func(context.Context) (joinformat.Upload, error)
	// mayListClaims is the check of Records for claims. It sends one request, even if it is called several times.
	mayListClaims func() error
	// mayListJoins is the check of ListJoins.
	mayListJoins func() error
}

// Open returns the Cluster of an API server. It fails if the API server does not respond. Informers run until ctx ends.
// pkiDir has the certificates that JoinControlPlane uploads, and the CA keys that PrepareCA uses.
func Open(ctx context.Context, client kubernetes.Interface, pkiDir string) (*Cluster, error) {
	running, forbidden, err := findSigner(ctx, client)
	if err != nil {
		return nil, err
	}
	store, err := secretstore.Open(ctx, client, nil)
	if err != nil {
		return nil, err
	}
	claims, err := secretstore.OpenClaims(ctx, client, store, secretstore.ClaimNamespace, nil)
	if err != nil {
		return nil, err
	}
	revoked, err := configmaps.Open(ctx, client, secretstore.ClaimNamespace, nil)
	if err != nil {
		return nil, err
	}
	info := configmap.Open(ctx, client)
	reader := explainkube.Reader{Client: client, Tokens: store, Claims: claims, ClusterInfo: info, Revocations: revoked}
	c := &Cluster{
		Client: client, Rotations: Rotations(client, pkiDir),
		upload: (&kubeadmcerts.Uploader{Client: client, Dir: pkiDir, CreateRole: true}).Upload,
		Operations: operations.Operations{
			ClusterInfo: info, Why: func(_ string, cause error) string { return safetext.Text(cause.Error(), safetext.MaxMessage) },
			Minter: &mint.Minter{Tokens: store, ClusterInfo: info, SignedBy: running.signedBy(), Warnings: func(ctx context.Context, made tokens.Record) []string {
				return tokenwarning.All(ctx, made, running.warning(), tokenwarning.Size(info), tokenwarning.ClusterInfoCAs(info), tokenwarning.KubeletClient(client))
			}},
			ExplainNode: reader.Explain, Joins: explainkube.OpenJoins(ctx, reader, kubefacts.OpenNodes(ctx, client)).List,
			ExplainCSR: explainkube.Requests{
				Client: client, Authority: sync.OnceValues(func() (*signer.Authority, error) { return byDefaults(ctx, client, store, claims) }),
				Notes: []string{"this is what kubejoin with default flags would do; for a running kubejoin with its own flags and --signer-config, give --url"},
			}.Explain,
		},
	}
	c.Readers = operations.Readers{Node: c.node, Owner: c.owner, NodeProperties: NodeProperties(client, secretstore.ClaimNamespace, leaderLease)}
	c.Revocations = &desk.Revoker{
		Guard: &revocation.Guard{Store: revoked}, Tokens: store, ClusterInfo: info, Node: c.node,
		Claims:    claims, // also if the user may not read them: a machine whose key was not barred can join again
		Requested: func(ctx context.Context) ([]revocation.Certificate, error) { return csr.Issued(ctx, client) },
		Withdraw: func(ctx context.Context, revoked func(revocation.Certificate) bool) error {
			return csr.Withdraw(ctx, client, builtin, revoked)
		},
		ClientCAs: func(ctx context.Context) ([]*x509.Certificate, error) { return configmaps.ClientCAs(ctx, client) },
	}
	c.Desk.ExpireTokens = operations.ExpireTokens(c.Minter)
	c.mayListClaims = sync.OnceValue(func() error {
		_, err := client.CoordinationV1().Leases(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{Limit: 1})
		return storeError(err)
	})
	c.mayListJoins = sync.OnceValue(func() error {
		_, nodes := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		_, requests := client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{Limit: 1})
		return errors.Join(storeError(nodes), storeError(requests), c.mayListTokens(ctx), c.mayListClaims())
	})
	c.withClaims = c.Operations
	c.withClaims.Claims = claims
	if !forbidden {
		c.Operations = c.withClaims
		c.Minter.Claims = claims
	}
	return c, nil
}

// node reads a Node from the API server, not from a cache.
func (c *Cluster) node(ctx context.Context, name string) (tokens.NodeRef, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = tokens.ErrNotFound
	}
	if err != nil {
		return tokens.NodeRef{}, fmt.Errorf("node %s: %w", name, err)
	}
	return tokens.NodeRef{Name: node.Name, UID: string(node.UID)}, nil
}

// owner reads the UID of an owner without a UID. It refuses a namespaced object: Kubernetes deletes a dependent in
// another namespace than its owner.
func (c *Cluster) owner(ctx context.Context, o tokens.Owner) (tokens.Owner, error) {
	if o.UID != "" {
		return o, nil
	}
	unread := func(err error) error {
		return api.InvalidField("owner", "cannot read %s: %s; give its UID, as %s", strings.TrimSuffix(o.String(), "/"), safetext.Text(err.Error(), safetext.MaxMessage), tokens.OwnerForm)
	}
	served, err := c.Client.Discovery().ServerResourcesForGroupVersion(o.APIVersion)
	if err != nil {
		return o, unread(err)
	}
	at := slices.IndexFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Kind == o.Kind && !strings.Contains(r.Name, "/") })
	switch {
	case at < 0:
		return o, unread(fmt.Errorf("the API server has no kind %s in %s", o.Kind, o.APIVersion))
	case served.APIResources[at].Namespaced:
		return o, api.InvalidField("owner", "%s of %s is namespaced; want a cluster-scoped object", o.Kind, o.APIVersion)
	}
	prefix := "/apis"
	if !strings.Contains(o.APIVersion, "/") {
		prefix = "/api"
	}
	result := c.Client.Discovery().RESTClient().Get().AbsPath(prefix, o.APIVersion, served.APIResources[at].Name, o.Name).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return o, unread(err)
	}
	var object metav1.PartialObjectMetadata
	body, err := result.Raw()
	if err == nil {
		err = json.Unmarshal(body, &object)
	}
	if err != nil {
		return o, unread(err)
	}
	o.UID = string(object.UID)
	return o, nil
}

// CreateToken creates a token. If it fails, and the token exists or may exist, the returned token has its ID.
func (c *Cluster) CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error) {
	t, _, err := c.Operations.CreateToken(ctx, req, operations.Everything)
	return t, err
}

// JoinControlPlane creates a token for a control plane, uploads the certificates that control planes share, and returns
// how to join.
func (c *Cluster) JoinControlPlane(ctx context.Context, spec api.TokenSpec) (joinformat.Join, error) {
	req := api.PrintJoinCommand{TokenSpec: spec}
	if err := operations.ControlPlane(&req); err != nil {
		return joinformat.Join{}, err
	}
	made, err := c.Join(ctx, req.TokenSpec, operations.Everything, func(ctx context.Context, join *joinformat.Join) error {
		up, err := c.upload(ctx)
		if err != nil {
			return mint.Failure("the certificates of control planes could not be uploaded", err)
		}
		join.CertificateKey, join.Warnings = up.Key, append(up.Warnings(), join.Warnings...)
		return nil
	})
	return made.Join, err
}

// ListTokens returns all tokens without their secrets.
func (c *Cluster) ListTokens(ctx context.Context) (api.TokenList, error) {
	if err := c.mayListTokens(ctx); err != nil {
		return api.TokenList{}, err
	}
	return c.TokensPage(ctx, api.ListPage{})
}

// mayListTokens checks that the user may list tokens. Without the permission, the informer of tokens would retry
// forever.
func (c *Cluster) mayListTokens(ctx context.Context) error {
	_, err := c.Client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrap.SecretTypeBootstrapToken)).String(), Limit: 1,
	})
	return storeError(err)
}

// Records returns all tokens.
func (c *Cluster) Records(ctx context.Context) ([]tokens.Record, error) {
	if err := c.mayListTokens(ctx); err != nil {
		return nil, err
	}
	records, err := c.Minter.Tokens.List(ctx)
	return records, storeError(err)
}

// storeError returns the error of a store of tokens or claims as package mint does, or nil.
func storeError(err error) error {
	if err == nil {
		return nil
	}
	return mint.StoreError(err)
}

// RenewToken changes the expiration of a token.
func (c *Cluster) RenewToken(ctx context.Context, id string, req api.RenewToken) (api.Token, error) {
	return c.Operations.RenewToken(ctx, id, req, func(time.Time, time.Time) error { return nil })
}

// ClusterInfo returns the kubeconfig in cluster-info.
func (c *Cluster) ClusterInfo(ctx context.Context) ([]byte, error) {
	info, err := c.Client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return []byte(info.Data[clusterinfo.KubeconfigKey]), nil
}

// withClaims calls do with the claims, which need a permission of their own.
func withClaims[T any](c *Cluster, do func(*operations.Operations) (T, error)) (result T, err error) {
	if err := c.mayListClaims(); err != nil {
		return result, err
	}
	return do(&c.withClaims)
}

// ListClaims returns all claims of node names.
func (c *Cluster) ListClaims(ctx context.Context) (api.ClaimList, error) {
	return withClaims(c, func(o *operations.Operations) (api.ClaimList, error) { return o.ClaimsPage(ctx, api.ListPage{}) })
}

// ReleaseClaim releases the claim of a node name.
func (c *Cluster) ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error) {
	return withClaims(c, func(o *operations.Operations) (api.Claim, error) { return o.ReleaseClaim(ctx, node, req) })
}

// ListJoins returns how far machines have joined. Without the permission to list what it derives the list from, the list would
// not be complete, so it fails.
func (c *Cluster) ListJoins(ctx context.Context, req api.ListJoins) (api.JoinList, error) {
	if err := c.mayListJoins(); err != nil {
		return api.JoinList{}, err
	}
	return c.Operations.ListJoins(ctx, req, nil)
}

// AddMachines adds machines with keys of their own. If it cannot read the name of its user, it leaves AddedBy empty.
func (c *Cluster) AddMachines(ctx context.Context, req api.AddMachines) (api.MachineList, error) {
	by := ""
	if who, err := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err == nil {
		by = who.Status.UserInfo.Username
	}
	return withClaims(c, func(o *operations.Operations) (api.MachineList, error) {
		return o.AddMachines(ctx, req, by, operations.Everything)
	})
}

// ListMachines returns all machines with keys of their own.
func (c *Cluster) ListMachines(ctx context.Context) (api.MachineList, error) {
	return withClaims(c, func(o *operations.Operations) (api.MachineList, error) { return o.MachinesPage(ctx, api.ListPage{}) })
}

// GetMachine returns the machine of a node name.
func (c *Cluster) GetMachine(ctx context.Context, node string) (api.Machine, error) {
	return withClaims(c, func(o *operations.Operations) (api.Machine, error) { return o.GetMachine(ctx, node) })
}

// DeleteMachine deletes the machine of a node name.
func (c *Cluster) DeleteMachine(ctx context.Context, node string, req api.DeleteMachine) (api.Machine, error) {
	return withClaims(c, func(o *operations.Operations) (api.Machine, error) { return o.DeleteMachine(ctx, node, req) })
}

// PrintMachineJoin returns a document for machines that join with their keys at req.Endpoint.
func (c *Cluster) PrintMachineJoin(ctx context.Context, req api.PrintMachineJoin) ([]byte, error) {
	_, document, err := c.MachineJoin(ctx, req)
	return document, err
}

// Revoke revokes a node, one certificate, or everything that was issued on a token.
func (c *Cluster) Revoke(ctx context.Context, req api.Revoke) (api.RevocationList, error) {
	return c.Operations.Revoke(ctx, req, "", func() error {
		if req.TokenID == "" {
			return nil
		}
		return c.mayListClaims()
	})
}

// ListRevocations returns all revocations.
func (c *Cluster) ListRevocations(ctx context.Context) (api.RevocationList, error) {
	return c.RevocationsPage(ctx, api.ListPage{})
}

// builtin reports whether Kubernetes defines the signer. A command with a kubeconfig does not know for which
// other signers kubejoin signs.
func builtin(signerName string) bool { return strings.HasPrefix(signerName, "kubernetes.io/") }

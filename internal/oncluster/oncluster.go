// Package oncluster does on a cluster, with its API server alone, what package server/client does at a kubejoin server:
// create tokens, release node names, revoke and explain. It calls the library and authorizes nothing: the API server does.
package oncluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
)

// A Cluster is a cluster that commands work on without a kubejoin server. Its methods take and return the same as those of
// client.Client.
type Cluster struct {
	Client kubernetes.Interface

	minter    *mint.Minter // its Claims are nil if the user may not read Leases
	info      *configmap.ConfigMap
	claims    tokens.Claims
	desk      *desk.Desk
	upload    func(context.Context) (joinformat.Upload, error)
	rotations *convert.Rotations
	// requests explains CSRs as a kubejoin with default flags would decide them. Its first call starts informers.
	requests kube.Requests
	// mayListClaims is the check of Records for claims. It sends one request, whatever the number of calls.
	mayListClaims func() error
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
	c := &Cluster{
		Client: client, info: info, claims: claims,
		minter: &mint.Minter{Tokens: store, ClusterInfo: info, SignedBy: running.signedBy(), Warnings: func(ctx context.Context, made tokens.Record) []string {
			return tokenwarning.All(ctx, made, running.warning, tokenwarning.Size(info), tokenwarning.ClusterInfoCAs(info), tokenwarning.KubeletClient(client))
		}},
		upload: (&kubeadmcerts.Uploader{Client: client, Dir: pkiDir, CreateRole: true}).Upload,
	}
	c.desk = &desk.Desk{
		Guard: &revocation.Guard{Store: revoked}, Tokens: store, ClusterInfo: info, Node: c.node,
		Requested: func(ctx context.Context) ([]revocation.Certificate, error) { return csr.Issued(ctx, client) },
		ClientCAs: func(ctx context.Context) ([]*x509.Certificate, error) { return configmaps.ClientCAs(ctx, client) },
	}
	c.rotations = Rotations(client, pkiDir)
	c.rotations.Desk.ExpireTokens = convert.ExpireTokens(c.minter)
	c.requests = kube.Requests{
		Client: client, Authority: sync.OnceValues(func() (*signer.Authority, error) { return c.byDefaults(ctx) }),
		Notes: []string{"this is what kubejoin with default flags would do; for a running kubejoin with its own flags and --signer-config, give --url"},
	}
	c.mayListClaims = sync.OnceValue(func() error {
		_, err := client.CoordinationV1().Leases(secretstore.ClaimNamespace).List(ctx, metav1.ListOptions{Limit: 1})
		return storeError(err)
	})
	if !forbidden {
		c.minter.Claims, c.desk.Claims = claims, claims
	}
	return c, nil
}

// node reads a Node from the API server, not from a cache.
func (c *Cluster) node(ctx context.Context, name string) (tokens.NodeRef, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return tokens.NodeRef{}, fmt.Errorf("node %s: %w", name, tokens.ErrNotFound)
	}
	if err != nil {
		return tokens.NodeRef{}, fmt.Errorf("%s cannot be read now; retry: %w", "Node "+name, err)
	}
	return tokens.NodeRef{Name: node.Name, UID: string(node.UID)}, nil
}

// CreateToken creates a token, like CreateToken of client.Client. If it fails, and the token exists or may exist, the
// returned token has its ID.
func (c *Cluster) CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error) {
	request, err := convert.Creation(ctx, req, time.Now(), mint.DefaultSignTimeout, c.node)
	if err != nil {
		return api.Token{}, err
	}
	made, err := c.minter.Create(ctx, request)
	if e := (*mint.Error)(nil); errors.As(err, &e) {
		return api.Token{ID: e.TokenID}, err
	} else if err != nil {
		return api.Token{}, convert.Minted(err)
	}
	var v convert.View
	if made.Existing {
		v, made.Warnings = c.view(ctx, made.Warnings)
	}
	return v.Minted(made, request), nil
}

// JoinControlPlane creates a token for a control plane, uploads the certificates that control planes share, and returns
// how to join.
func (c *Cluster) JoinControlPlane(ctx context.Context, spec api.TokenSpec) (joinformat.Join, error) {
	req := api.PrintJoinCommand{TokenSpec: spec}
	if err := convert.ControlPlane(&req); err != nil {
		return joinformat.Join{}, err
	}
	record, err := convert.Record(ctx, req.TokenSpec, tokens.Generate(), time.Now(), c.node)
	if err != nil {
		return joinformat.Join{}, err
	}
	made, err := c.minter.Join(ctx, record, func(ctx context.Context, join *joinformat.Join) error {
		up, err := c.upload(ctx)
		if err != nil {
			return mint.Failure("the certificates of control planes could not be uploaded", err)
		}
		join.CertificateKey, join.Warnings = up.Key, append(up.Warnings(), join.Warnings...)
		return nil
	})
	return made.Join, convert.Minted(err)
}

// GetToken returns one token without its secret.
func (c *Cluster) GetToken(ctx context.Context, id string) (api.Token, error) {
	record, err := c.minter.Get(ctx, id)
	return c.shown(ctx, record, false, err)
}

// ListTokens returns all tokens without their secrets.
func (c *Cluster) ListTokens(ctx context.Context) (api.TokenList, error) {
	records, err := c.Records(ctx)
	if err != nil {
		return api.TokenList{}, err
	}
	v, warnings := c.view(ctx, nil)
	list := v.Tokens(records)
	list.Warnings = warnings
	return list, nil
}

// Records returns all tokens. It checks first that the API server allows to list them: the informer of tokens would retry
// until the permission exists.
func (c *Cluster) Records(ctx context.Context) ([]tokens.Record, error) {
	if _, err := c.Client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrap.SecretTypeBootstrapToken)).String(), Limit: 1,
	}); err != nil {
		return nil, storeError(err)
	}
	records, err := c.minter.Tokens.List(ctx)
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
	expires, err := convert.Expires(req.TTL, req.Expires, time.Now())
	if err != nil {
		return api.Token{}, err
	}
	record, err := c.minter.Renew(ctx, id, mint.Renewal{Expires: expires, Shorten: req.Shorten, DryRun: req.DryRun})
	return c.shown(ctx, record, req.DryRun, err)
}

// DeleteToken deletes a token and returns what it was.
func (c *Cluster) DeleteToken(ctx context.Context, id string, req api.DeleteToken) (api.Token, error) {
	record, err := c.minter.Delete(ctx, id, mint.Deletion{OnlyExpired: req.OnlyExpired, DryRun: req.DryRun})
	return c.shown(ctx, record, req.DryRun, err)
}

func (c *Cluster) shown(ctx context.Context, record tokens.Record, dryRun bool, err error) (api.Token, error) {
	if err != nil {
		return api.Token{}, err
	}
	v, warnings := c.view(ctx, nil)
	t := v.Token(record)
	t.DryRun, t.Warnings = dryRun, warnings
	return t, nil
}

// view reads what is shown beside tokens, and adds a warning for what cannot be read.
func (c *Cluster) view(ctx context.Context, warnings []string) (convert.View, []string) {
	v := convert.ReadView(ctx, c.info, c.minter.Claims)
	for _, u := range v.Unread {
		warnings = append(warnings, u.Warning+": "+u.Err.Error())
	}
	return v, warnings
}

// ClusterInfo returns the kubeconfig in cluster-info.
func (c *Cluster) ClusterInfo(ctx context.Context) ([]byte, error) {
	info, err := c.Client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return []byte(info.Data[clusterinfo.KubeconfigKey]), nil
}

// ListClaims returns all claims of node names.
func (c *Cluster) ListClaims(ctx context.Context) (api.ClaimList, error) {
	if err := c.mayListClaims(); err != nil {
		return api.ClaimList{}, err
	}
	claims, err := c.claims.List(ctx)
	if err != nil {
		return api.ClaimList{}, storeError(err)
	}
	revoked, _ := c.desk.Guard.CachedNodes(ctx) // with an error, the list is complete but for this column
	return convert.Claims(slices.DeleteFunc(claims, tokens.Claim.Released), revoked), nil
}

// ReleaseClaim releases the claim of a node name.
func (c *Cluster) ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error) {
	if err := c.mayListClaims(); err != nil {
		return api.Claim{}, err
	}
	claim, warnings, err := tokens.Releaser{Tokens: c.minter.Tokens, Claims: c.claims}.Release(ctx, node, req.DryRun)
	switch err = convert.Refused(err); {
	case errors.As(err, new(api.InvalidFields)):
	case !errors.Is(err, tokens.ErrNotFound) && !errors.Is(err, tokens.ErrReplaced):
		err = storeError(err)
	}
	released := convert.Claim(claim)
	released.DryRun, released.Warnings = req.DryRun, warnings
	return released, err
}

// Revoke revokes a node, one certificate, or everything that was issued on a token.
func (c *Cluster) Revoke(ctx context.Context, req api.Revoke) (api.RevocationList, error) {
	if req.TokenID != "" {
		if err := c.mayListClaims(); err != nil {
			return api.RevocationList{}, err
		}
	}
	result, err := c.desk.Revoke(ctx, desk.Order{
		Node: req.Node, Serial: req.Serial, Fingerprint: req.Fingerprint, TokenID: req.TokenID, Reason: req.Reason, DryRun: req.DryRun,
	})
	why := ""
	if result.EndUnknown != nil {
		why = safetext.Text(result.EndUnknown.Error(), safetext.MaxMessage)
	}
	return convert.Revoked(result, req.DryRun, why), convert.Refused(err)
}

// ListRevocations returns all revocations.
func (c *Cluster) ListRevocations(ctx context.Context) (api.RevocationList, error) {
	entries, err := c.desk.List(ctx)
	return convert.Revocations(entries, false), err
}

// UndoRevocation removes a revocation.
func (c *Cluster) UndoRevocation(ctx context.Context, revoked string, req api.UndoRevocation) (api.Revocation, error) {
	key, err := revocation.ParseKey(revoked)
	if err != nil {
		return api.Revocation{}, err
	}
	e, err := c.desk.Undo(ctx, key, req.DryRun)
	return convert.Revocation(e, req.DryRun), err
}

package doctor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/cluster-bootstrap/token/api"
)

// timeout limits the time to read one fact.
const timeout = 10 * time.Second

// Options are the parameters of Read.
type Options struct {
	// Cluster is the client configuration for the API server.
	Cluster *rest.Config
	// Version is the version of this command.
	Version string
	// Advertise is the HOST:PORT of kubejoin in join commands; empty means the value in kubejoin's pods, if there is one.
	Advertise string
	// Pins are CA pins of an existing join command.
	Pins []string
	// URL is the URL of a running kubejoin; empty means none. CAs verify its certificate; empty means the CAs of Cluster.
	URL string
	CAs []*x509.Certificate
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// reading is one call of Read.
type reading struct {
	Options
	client kubernetes.Interface
	own    []corev1.Pod // pods with kubejoin's label
	mu     sync.Mutex
	Facts
}

// A source reads one fact. right is the permission that the read needs.
type source struct {
	fact  Fact
	right string
	read  func(context.Context) error
}

// Read reads all facts about a cluster. It gets and lists objects, and sends dry runs of writes. It fails if the API server
// does not respond or refuses the credential. Facts.Unread lists facts that could not be read.
func Read(ctx context.Context, o Options) (*Facts, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &reading{Options: o, Facts: Facts{Unread: map[Fact]string{}, Version: o.Version, Pins: o.Pins, Host: o.Cluster.Host}}
	var err error
	if r.client, err = kubernetes.NewForConfig(o.Cluster); err != nil {
		return nil, err
	}
	if err := r.trusted(); err != nil {
		return nil, err
	}
	if err := r.version(ctx); err != nil {
		return nil, err
	}
	r.all(ctx, []source{
		{factControlPlane, "list on pods in kube-system", r.controlPlane},
		{factClusterRoles, "list on clusterroles and clusterrolebindings", r.clusterRoles},
		{factRoles, "list on roles and rolebindings in " + strings.Join(manifests().namespaces, ", "), r.roles},
		{factJoinConfig, "get on configmaps kubeadm-config, kubelet-config and kube-proxy in kube-system", r.joinConfig},
		{factObjects, "get on namespaces, serviceaccounts in " + kubejoinNamespace + ", validatingadmissionpolicies and validatingadmissionpolicybindings", r.objects},
		{factLease, "get on leases in " + kubejoinNamespace, r.lease},
		{factDryRun, "nothing", r.dryRun},
		{factTokens, "list on secrets in kube-system", r.tokens},
		{factClusterInfo, "get on configmaps in " + clusterinfo.Namespace, r.clusterInfo},
		{factAnonymous, "nothing", r.anonymous},
		{factAdvertise, "list on pods in " + kubejoinNamespace + ", or --advertise", r.ownPods},
		{factNodes, "list on nodes", r.nodes},
		{factRevocations, "list on configmaps in " + kubejoinNamespace + ", and get on validatingadmissionpolicybindings", r.revocations},
		{factRotations, "get on secret kubejoin-ca-key in " + clusterstore.KeyNamespace, r.rotations},
		{factClaims, "list on leases in " + kubejoinNamespace, r.claims},
		{factRequests, "list on certificatesigningrequests", r.requests},
	})
	r.probe(ctx)
	return &r.Facts, ctx.Err()
}

// all reads facts concurrently.
func (r *reading) all(ctx context.Context, sources []source) {
	var reading sync.WaitGroup
	for _, s := range sources {
		reading.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			switch err := s.read(ctx); {
			case apierrors.IsForbidden(err):
				r.unread(s.fact, "need "+s.right)
			case err != nil:
				r.unread(s.fact, oneLine(err))
			}
		})
	}
	reading.Wait()
}

func (r *reading) unread(fact Fact, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Unread[fact] = why
}

// trusted reads the CAs of the kubeconfig.
func (r *reading) trusted() error {
	bundle := r.Cluster.CAData
	if len(bundle) == 0 && r.Cluster.CAFile != "" {
		var err error
		if bundle, err = os.ReadFile(r.Cluster.CAFile); err != nil {
			return err
		}
	}
	if len(bundle) == 0 {
		return nil // the kubeconfig trusts the system's CAs
	}
	var err error
	r.Facts.CAs, err = clusterinfo.ParseCAs(bundle)
	return err
}

// version reads the version and the clock of the API server. It is the first request.
func (r *reading) version(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	config := rest.CopyConfig(r.Cluster)
	var date time.Time
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				date, _ = http.ParseTime(response.Header.Get("Date"))
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	got, err := client.Discovery().RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	r.Local = r.Now()
	if r.Time = date; date.IsZero() {
		r.Time = r.Local
	}
	if apierrors.IsForbidden(err) {
		r.Unread[factVersion] = "need get on the path /version"
		return nil
	}
	if err != nil {
		return err
	}
	r.KubernetesVersion, err = gitVersion(got)
	return err
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func (r *reading) controlPlane(ctx context.Context) error {
	list, err := r.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: "component in (" + kubeAPIServer + "," + kubeControllerManager + "," + kubeScheduler + ")",
	})
	if err == nil {
		r.ControlPlane = list.Items
	}
	return err
}

func (r *reading) clusterRoles(ctx context.Context) error {
	roles, err := r.client.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	bindings, err := r.client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	r.ClusterRoles, r.ClusterRoleBindings = roles.Items, bindings.Items
	return nil
}

func (r *reading) roles(ctx context.Context) error {
	for _, namespace := range manifests().namespaces {
		roles, err := r.client.RbacV1().Roles(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		bindings, err := r.client.RbacV1().RoleBindings(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		r.Roles, r.RoleBindings = append(r.Roles, roles.Items...), append(r.RoleBindings, bindings.Items...)
	}
	return nil
}

// objects looks for the objects of the manifests.
func (r *reading) objects(ctx context.Context) error {
	policies := r.client.AdmissionregistrationV1()
	for _, object := range slices.Concat(manifests().objects, []string{"ValidatingAdmissionPolicy " + nodePolicy, "ValidatingAdmissionPolicyBinding " + nodePolicy}) {
		kind, name, _ := strings.Cut(object, " ")
		var err error
		switch kind {
		case "Namespace":
			_, err = r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		case "ServiceAccount":
			_, err = r.client.CoreV1().ServiceAccounts(kubejoinNamespace).Get(ctx, name, metav1.GetOptions{})
		case "ValidatingAdmissionPolicy":
			_, err = policies.ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		case "ValidatingAdmissionPolicyBinding":
			_, err = policies.ValidatingAdmissionPolicyBindings().Get(ctx, name, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			r.Missing = append(r.Missing, object)
		case err != nil:
			return err
		}
	}
	return nil
}

func (r *reading) lease(ctx context.Context) error {
	lease, err := r.client.CoordinationV1().Leases(kubejoinNamespace).Get(ctx, "kubejoin", metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err != nil && r.URL != "" { // the kubejoin at URL reports its own health
		return nil
	}
	r.Lease = lease
	return err
}

// dryRun finds webhooks that prevent kubejoin from writing tokens and claims. A dry run stores nothing. If a webhook does not
// support dry runs, the result says nothing about a real write.
func (r *reading) dryRun(ctx context.Context) error {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	token, err := secretstore.Manifest(tokens.NewRecord(tokens.Generate(), time.Hour, r.Now()))
	if err != nil {
		return err
	}
	_, secretErr := r.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, token, dry)
	claim := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "kubejoin-doctor-"}}
	_, leaseErr := r.client.CoordinationV1().Leases(kubejoinNamespace).Create(ctx, claim, dry)
	for _, write := range []struct {
		resource, namespace string
		err                 error
	}{{"secrets", metav1.NamespaceSystem, secretErr}, {"leases", kubejoinNamespace, leaseErr}} {
		switch text := fmt.Sprint(write.err); {
		// IsNotFound: the namespace is missing.
		case write.err == nil, strings.Contains(text, "does not support dry run"), apierrors.IsNotFound(write.err):
		case strings.Contains(text, "failed calling webhook"):
			r.Refused = append(r.Refused, failedwrites.Write{Verb: "create", Resource: write.resource, Namespace: write.namespace, Message: oneLine(write.err)})
		case strings.Contains(text, "denied the request"): // a webhook denied the request, for this user or for all
			return errors.New(oneLine(write.err))
		case apierrors.IsForbidden(write.err): // without the permission to write, Lease still shows failed writes
		default:
			return write.err
		}
	}
	return nil
}

func (r *reading) tokens(ctx context.Context) error {
	list, err := r.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(api.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return err
	}
	for i := range list.Items {
		record, err := secretstore.Decode(&list.Items[i])
		if err != nil {
			continue // skip a malformed token: no component accepts it
		}
		r.Tokens = append(r.Tokens, record)
	}
	upload, err := r.client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", kubeadmcerts.SecretName).String(),
	})
	if err != nil {
		return err
	}
	r.UploadMissing = len(upload.Items) == 0
	return nil
}

func (r *reading) clusterInfo(ctx context.Context) error {
	object, err := r.client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.ClusterInfo = object.Data; r.ClusterInfo == nil {
		r.ClusterInfo = map[string]string{}
	}
	return nil
}

// ownPods reads the pods of kubejoin, whose flags may contain --advertise.
func (r *reading) ownPods(ctx context.Context) error {
	if r.Options.Advertise != "" {
		return nil
	}
	pods, err := r.client.CoreV1().Pods(kubejoinNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubejoin"})
	if err == nil {
		r.own = pods.Items
	}
	return err
}

// advertised finds --advertise in the pods of kubejoin. It ignores mirror pods of workers, because a kubelet can post a
// mirror pod with any address.
func (r *reading) advertised() {
	for _, pod := range r.own {
		if isMirror(pod) && !slices.Contains(r.controlPlanes(), pod.Spec.NodeName) {
			continue
		}
		for _, c := range pod.Spec.Containers {
			if address := flagsOf(slices.Concat(c.Command, c.Args)).last("advertise"); address != "" {
				r.Options.Advertise = address
			}
		}
	}
}

func (r *reading) nodes(ctx context.Context) error {
	list, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err == nil {
		r.Nodes = list.Items
	}
	return err
}

func (r *reading) claims(ctx context.Context) error {
	list, err := r.client.CoordinationV1().Leases(kubejoinNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	r.Claims = map[string]tokens.Claim{}
	for i := range list.Items {
		switch claim, err := secretstore.DecodeClaim(&list.Items[i]); {
		case err == nil:
			r.Claims[claim.Node] = claim
		case !errors.Is(err, secretstore.ErrNoClaim):
			r.Malformed = append(r.Malformed, err)
		}
	}
	return nil
}

func (r *reading) requests(ctx context.Context) error {
	list, err := r.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
	if err == nil {
		r.Requests = list.Items
	}
	return err
}

func (r *reading) rotations(ctx context.Context) error {
	store := clusterstore.New(r.client)
	for _, ca := range rotation.CAs {
		one, _, err := store.Get(ctx, ca)
		if err != nil {
			return err
		}
		r.Rotations = append(r.Rotations, one)
	}
	r.RotationCopy = store.Check(ctx)
	return nil
}

// pool returns the CAs as a pool. It returns nil if cas is empty, which means the system's CAs.
func pool(cas []*x509.Certificate) *x509.CertPool {
	if len(cas) == 0 {
		return nil
	}
	return pemfile.PoolOf(cas)
}

// revocations reads how many nodes and certificates are revoked, and whether the admission policy that enforces
// revocations is bound.
func (r *reading) revocations(ctx context.Context) error {
	list, err := r.client.CoreV1().ConfigMaps(kubejoinNamespace).List(ctx, metav1.ListOptions{LabelSelector: configmaps.Label + "=true"})
	if err != nil {
		return err
	}
	for _, m := range list.Items {
		r.RevocationsFill = max(r.RevocationsFill, configmaps.Fill(&m, r.Now()))
		for key, value := range m.Data {
			if e, err := revocation.Decode(key, []byte(value)); err == nil && !e.Ended(r.Now()) {
				r.Revoked++
			}
		}
	}
	_, err = r.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Get(ctx, "kubejoin-revocation", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	r.RevocationPolicy = err == nil
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// connections is the number of simulated machines. Each has its own connection with up to workers requests in flight.
const (
	connections = 8
	workers     = 4
)

// A client is one connection to the API server.
type client struct{ *kubernetes.Clientset }

// connect opens the connections and the watch on cluster-info. The load uses a service account token. With a client
// certificate, the API server would verify the certificate for each request. Bootstrap tokens do not need that.
func (b *bench) connect(ctx context.Context) error {
	kubeconfig, err := b.cluster.ServiceAccountKubeconfig(ctx, metav1.NamespaceSystem, "bench")
	if err != nil {
		return err
	}
	if _, err := b.cluster.Kubectl(ctx, "create", "clusterrolebinding", "bench", "--clusterrole=cluster-admin", "--serviceaccount=kube-system:bench"); err != nil {
		return err
	}
	b.load = nil // drop the connections to an earlier control plane
	for range connections {
		config, err := b.cluster.Config(kubeconfig)
		if err != nil {
			return err
		}
		config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		config.UserAgent = "bench"
		config.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext // prevents client-go from sharing connections
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return impersonating{next} })
		set, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		b.load = append(b.load, client{set})
	}
	b.info, err = watchClusterInfo(ctx, b.load[0])
	return err
}

// impersonating sends requests as the user in their context, if there is one, so that many users share a connection.
type impersonating struct{ next http.RoundTripper }

type userKey struct{}

// asToken gives requests the identity that kube-apiserver gives to a bootstrap token.
func asToken(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, userKey{}, id)
}

func (t impersonating) RoundTrip(r *http.Request) (*http.Response, error) {
	if id, ok := r.Context().Value(userKey{}).(string); ok {
		r = r.Clone(r.Context())
		r.Header.Set("Impersonate-User", "system:bootstrap:"+id)
		r.Header["Impersonate-Group"] = []string{"system:bootstrappers", tokens.DefaultGroup}
	}
	return t.next.RoundTrip(r)
}

// each calls do for 0 to n-1, on all connections in parallel. It stops at the first error.
func (b *bench) each(ctx context.Context, n int, do func(ctx context.Context, c client, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var running sync.WaitGroup
	for _, c := range b.load {
		for range workers {
			running.Go(func() {
				for i := range next {
					if err := do(ctx, c, i); err != nil {
						cancel(err)
						return
					}
				}
			})
		}
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	running.Wait()
	return context.Cause(ctx)
}

// createToken creates a token as kubeadm does. With a zero expires, the token never expires.
func (c client) createToken(ctx context.Context, t tokens.Token, expires time.Time) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: secretName(t)},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": t.ID(), "token-secret": t.RevealSecret(),
			"usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": tokens.DefaultGroup,
		},
	}
	if !expires.IsZero() {
		secret.StringData["expiration"] = expires.UTC().Format(time.RFC3339)
	}
	_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, secret, metav1.CreateOptions{})
	return err
}

// createLimited creates a token that only authenticates. nodes is its node limit; zero means unlimited.
func (c client) createLimited(ctx context.Context, t tokens.Token, nodes int) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: secretName(t)},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": t.ID(), "token-secret": t.RevealSecret(), "usage-bootstrap-authentication": "true",
			"auth-extra-groups": tokens.DefaultGroup,
		},
	}
	if nodes > 0 {
		secret.Annotations = map[string]string{"kubejoin.io/max-nodes": strconv.Itoa(nodes)}
	}
	_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, secret, metav1.CreateOptions{})
	return err
}

func secretName(t tokens.Token) string { return "bootstrap-token-" + t.ID() }

var tokenSecrets = metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)}

// clear deletes all tokens, signatures, claims and CSRs.
func (b *bench) clear(ctx context.Context) error {
	admin := b.load[0]
	err := errors.Join(
		admin.CoreV1().Secrets(metav1.NamespaceSystem).DeleteCollection(ctx, metav1.DeleteOptions{}, tokenSecrets),
		admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		admin.CoordinationV1().Leases("kubejoin-system").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "kubejoin.io/claim"}),
	)
	if err != nil {
		return err
	}
	for range 10 {
		object, err := admin.CoreV1().ConfigMaps("kube-public").Get(ctx, "cluster-info", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(object.Data) > 1 {
			object.Data = map[string]string{"kubeconfig": object.Data["kubeconfig"]}
			_, err = admin.CoreV1().ConfigMaps("kube-public").Update(ctx, object, metav1.UpdateOptions{})
		}
		if !apierrors.IsConflict(err) { // a running contender may have changed the object
			return err
		}
	}
	return fmt.Errorf("could not clear cluster-info: every attempt conflicted with another write")
}

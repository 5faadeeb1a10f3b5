// Embed-controllers approves and signs the certificates of joining nodes and enforces the limits of bootstrap tokens, in
// the installer's own process. Disable kube-controller-manager's approver and signer, which do not enforce limits: see
// docs/library.md. Its bootstrapsigner signs cluster-info. There is no leader election: two processes at once are safe, but
// do all work twice.
//
//	go run ./examples/embed-controllers -kubeconfig ~/.kube/config -ca pki/ca.crt -ca-key pki/ca.key
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetPrefix("embed-controllers: ")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of the cluster (default: the cluster of this pod)")
	caFile := flag.String("ca", "/etc/kubernetes/pki/ca.crt", "`file` of the cluster CA's certificate")
	keyFile := flag.String("ca-key", "/etc/kubernetes/pki/ca.key", "`file` of the CA's private key")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ca, err := signer.LoadCA(*caFile, *keyFile)
	if err != nil {
		log.Fatal(err)
	}
	client, err := connect(ctx, *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, client, ca, slog.Default()); err != nil {
		log.Fatal(err)
	}
}

// run runs the controllers until ctx ends.
func run(ctx context.Context, client kubernetes.Interface, ca *signer.CA, log *slog.Logger) error {
	store, err := secretstore.Open(ctx, client, log)
	if err != nil {
		return err
	}
	claims, err := secretstore.OpenClaims(ctx, client, store, secretstore.ClaimNamespace, log)
	if err != nil {
		return err
	}
	nodes := kubefacts.OpenNodes(ctx, client)
	signers, err := signer.KubernetesSigners(signer.Fixed(ca), signer.DefaultDuration)
	if err != nil {
		return err
	}
	authority := &signer.Authority{
		Facts:   &kubefacts.Facts{Client: client},
		Nodes:   &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready, Logger: log},
		Signers: signer.FixedSigners(signers),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return csr.Controller{Client: client, Authority: authority, Approve: true, Sign: true, Logger: log}.Run(ctx)
	})
	group.Go(func() error { return cleaner.Tokens{Store: store, Logger: log}.Run(ctx) })
	group.Go(func() error {
		return cleaner.Claims{Store: claims, Tokens: store, Node: nodes.Node, Nodes: nodes.Nodes, Ready: nodes.Ready, NodesChanged: nodes.Watch, Logger: log}.Run(ctx)
	})
	return group.Wait()
}

// connect returns a client, and creates the namespace of claims if it is missing.
func connect(ctx context.Context, kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit: joining machines do not delay each other
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("-kubeconfig: %w", err)
	}
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretstore.ClaimNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return client, nil
}

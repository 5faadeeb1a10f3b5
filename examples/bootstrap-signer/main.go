// Bootstrap-signer keeps kube-public/cluster-info signed with the bootstrap tokens of a cluster,
// and does nothing else, like the bootstrap-signer-controller of kube-controller-manager.
//
//	go run ./examples/bootstrap-signer -kubeconfig ~/.kube/config
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetPrefix("bootstrap-signer: ")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of the cluster (default: the cluster of this pod)")
	server := flag.String("server", "", "https `URL` of the API server in cluster-info (default: keep the one in cluster-info)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *server); err != nil {
		log.Fatal(err)
	}
}

// run signs until ctx ends.
func run(ctx context.Context, kubeconfig, server string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("-kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit: the signer writes only one object, even if many tokens are created at once
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("-kubeconfig: %w", err)
	}
	store, err := secretstore.Open(ctx, client, slog.Default())
	if err != nil {
		return err
	}
	signer := configmap.Signer{
		ConfigMap: configmap.Open(ctx, client),
		Tokens:    store,
		Server:    server,
		Logger:    slog.Default(),
	}
	return signer.Run(ctx)
}

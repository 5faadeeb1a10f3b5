package configmap_test

import (
	"context"
	"log"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The bootstrap signer in a pod, until a signal stops it.
func ExampleSigner_Run() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	store, err := secretstore.Open(ctx, client, slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	loop := configmap.Signer{ConfigMap: configmap.Open(ctx, client), Tokens: store, Logger: slog.Default()}
	if err := loop.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

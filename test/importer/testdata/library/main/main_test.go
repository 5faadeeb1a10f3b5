package main

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
)

// If KUBECONFIG is set, the test uses that cluster, and also runs discovery with the join command.
func TestJoinCommand(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var cluster kubernetes.Interface = fake.NewClientset()
	file := os.Getenv("KUBECONFIG")
	if file != "" {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		if cluster, err = kubernetes.NewForConfig(config); err != nil {
			t.Fatal(err)
		}
	}
	sign(ctx, t, cluster, file == "")
	store, err := secretstore.Open(ctx, cluster, nil)
	if err != nil {
		t.Fatal(err)
	}
	lineOf := func(create func(context.Context, kubernetes.Interface) (mint.Minted, error)) func(context.Context, kubernetes.Interface) ([]byte, error) {
		return func(ctx context.Context, cluster kubernetes.Interface) ([]byte, error) {
			made, err := create(ctx, cluster)
			if err != nil {
				return nil, err
			}
			return made.Join.Line()
		}
	}
	for i, create := range []func(context.Context, kubernetes.Interface) ([]byte, error){joinCommand, lineOf(readme0), lineOf(readme1)} {
		line, err := create(ctx, cluster)
		if err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
		command, err := clusterinfo.ParseJoinCommand(string(line))
		if err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
		if r, err := store.Get(ctx, command.Token.ID(), tokens.Live); err != nil || r.Limits.MaxNodes != 1 || !slices.Equal(r.Limits.NodeNames, []string{"worker-7"}) {
			t.Errorf("block %d: got token %+v, %v, want one for worker-7", i, r, err)
		}
		if file == "" {
			continue
		}
		if _, err := clusterinfo.Discover(ctx, command.Endpoint, command.Token, command.Pins); err != nil {
			t.Errorf("block %d: %v", i, err)
		}
	}
}

// sign keeps cluster-info signed, as kubejoin does. In a fake cluster, it first creates the kubeconfig in cluster-info.
func sign(ctx context.Context, t *testing.T, cluster kubernetes.Interface, create bool) {
	t.Helper()
	store, err := secretstore.Open(ctx, cluster, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := configmap.Signer{ConfigMap: configmap.Open(ctx, cluster), Tokens: store}
	if create {
		ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pem, _, err := ca.PEM()
		if err != nil {
			t.Fatal(err)
		}
		cas, err := clusterinfo.ParseCAs(pem)
		if err != nil {
			t.Fatal(err)
		}
		if s.Default, err = clusterinfo.Kubeconfig("https://api.example.com:6443", cas); err != nil {
			t.Fatal(err)
		}
	}
	go func() { _ = s.Run(ctx) }()
}

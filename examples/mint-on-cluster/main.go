// Mint-on-cluster creates a bootstrap token for one machine on a cluster, waits until cluster-info is
// signed with it, and prints the join command. kubejoin, kube-controller-manager or the example
// bootstrap-signer must keep cluster-info signed. Only kubejoin and the example embed-controllers
// enforce the limits of the token when they sign certificates.
//
//	go run ./examples/mint-on-cluster -kubeconfig ~/.kube/config -node worker-7
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mint-on-cluster: ")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file` of the cluster (default: the cluster of this pod)")
	node := flag.String("node", "*", "`name` of the machine, or a pattern")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	line, err := joinCommand(context.Background(), cluster, *node)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(line))
}

// joinCommand creates a token for one node with this name, valid for two hours, and returns the join command.
func joinCommand(ctx context.Context, cluster kubernetes.Interface, node string) ([]byte, error) {
	store, err := secretstore.Open(ctx, cluster, nil)
	if err != nil {
		return nil, err
	}
	minter := &mint.Minter{Tokens: store, ClusterInfo: configmap.Open(ctx, cluster)}
	token := tokens.NewRecord(tokens.Generate(), 2*time.Hour, time.Now())
	token.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{node}}
	made, err := minter.Join(ctx, token)
	if err != nil {
		return nil, err
	}
	return made.Join.Line()
}

package mint_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes/fake"
)

// A join command for one machine of a cluster. A fake client stands in for the cluster.
func ExampleMinter_Join() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cluster := fake.NewClientset()
	store, err := secretstore.Open(ctx, cluster, nil)
	if err != nil {
		log.Fatal(err)
	}
	info := configmap.Open(ctx, cluster)
	signer := configmap.Signer{ConfigMap: info, Tokens: store, Default: kubeconfig()} // as kubejoin runs it
	go func() { _ = signer.Run(ctx) }()

	minter := &mint.Minter{Tokens: store, ClusterInfo: info}
	token := tokens.NewRecord(tokens.Generate(), 2*time.Hour, time.Now())
	token.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-7"}}
	made, err := minter.Join(ctx, token)
	if err != nil {
		log.Fatal(err)
	}
	line, err := made.Join.Line() // kubeadm join api.example.com:6443 --token …
	if err != nil {
		log.Fatal(err)
	}
	command, err := clusterinfo.ParseJoinCommand(string(line))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(command.Endpoint, command.Token == made.Record.Token)

	// The machine makes this check before it trusts the kubeconfig.
	data, err := info.Data(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(command.Token.ID())], command.Token))
	// Output:
	// api.example.com:6443 true
	// <nil>
}

func kubeconfig() []byte {
	bundle, err := os.ReadFile("../joinformat/testdata/ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		log.Fatal(err)
	}
	config, err := clusterinfo.Kubeconfig("https://api.example.com:6443", cas)
	if err != nil {
		log.Fatal(err)
	}
	return config
}

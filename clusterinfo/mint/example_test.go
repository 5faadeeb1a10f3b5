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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

// A join command for one machine of a cluster. A fake client stands in for the cluster, and sign for the signer of its
// cluster-info.
func ExampleMinter_Join() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cluster := fake.NewClientset()
	store, err := secretstore.Open(ctx, cluster, nil)
	if err != nil {
		log.Fatal(err)
	}
	info := configmap.Open(ctx, cluster)
	go sign(ctx, cluster, store)

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

	// What the machine checks before it trusts the kubeconfig.
	data, err := info.Data(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(clusterinfo.Verify([]byte(data["kubeconfig"]), data[clusterinfo.SignatureKey(command.Token.ID())], command.Token))
	// Output:
	// api.example.com:6443 true
	// <nil>
}

// sign keeps cluster-info signed, as kubejoin or kube-controller-manager does.
func sign(ctx context.Context, cluster kubernetes.Interface, store tokens.Store) {
	var document clusterinfo.Document
	configmaps := cluster.CoreV1().ConfigMaps(clusterinfo.Namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name}, Data: map[string]string{"kubeconfig": string(kubeconfig())}}
	if _, err := configmaps.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		log.Fatal(err)
	}
	for range store.Watch(ctx) {
		records, err := store.List(ctx)
		if err != nil {
			return
		}
		if document, err = document.Update(kubeconfig(), records, time.Now()); err != nil {
			log.Fatal(err)
		}
		object.Data = document.Data()
		if _, err := configmaps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
			return
		}
	}
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

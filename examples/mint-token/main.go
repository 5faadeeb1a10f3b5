// Mint-token creates a bootstrap token for one machine in the file store and prints the join command.
// The server that signs cluster-info must use the same store. Start embed-server after this program,
// because only one process can open the store.
//
//	go run ./examples/mint-token -node worker-7 -store kubejoin-data/tokens.db -ca kubejoin-data/ca.crt -endpoint 127.0.0.1:9444
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mint-token: ")
	file := flag.String("store", "kubejoin-data/tokens.db", "`file` that keeps the tokens")
	ca := flag.String("ca", "kubejoin-data/ca.crt", "`file` of the cluster's CA certificates")
	apiServer := flag.String("api-server", "https://127.0.0.1:6443", "`URL` of the cluster's API server")
	endpoint := flag.String("endpoint", "127.0.0.1:9444", "`HOST:PORT` from which the machine reads cluster-info")
	node := flag.String("node", "*", "`name` of the machine, or a pattern")
	ttl := flag.Duration("ttl", 24*time.Hour, "lifetime of the token, a `duration` such as 30m or 24h")
	flag.Parse()

	store, err := boltstore.Open(*file)
	if err != nil {
		log.Fatal(err)
	}
	info, err := clusterInfo(store, *ca, *apiServer)
	if err != nil {
		log.Fatal(err)
	}
	line, err := joinCommand(context.Background(), store, info, *endpoint, *node, *ttl)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(line))
}

// joinCommand creates a token for one node with this name and returns the join command. If it fails, it leaves no token in
// the store.
func joinCommand(ctx context.Context, store tokens.Store, info mint.ClusterInfo, endpoint, node string, ttl time.Duration) ([]byte, error) {
	minter := &mint.Minter{Tokens: store, ClusterInfo: info, Endpoint: endpoint}
	token := tokens.NewRecord(tokens.Generate(), ttl, time.Now())
	token.Description = "minted by the example mint-token"
	token.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{node}}
	made, err := minter.Join(ctx, token)
	if err != nil {
		return nil, err
	}
	return made.Join.Line()
}

// clusterInfo returns the cluster-info that joining machines trust.
func clusterInfo(store tokens.Store, caFile, apiServer string) (mint.ClusterInfo, error) {
	bundle, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caFile, err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig(apiServer, cas)
	return &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}, err
}

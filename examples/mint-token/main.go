// Mint-token puts a new bootstrap token into the file store and prints the command that joins a
// machine with it. What signs cluster-info has to use the same store, as embed-server does when
// it is started next.
//
//	go run ./examples/mint-token -store tokens.db -ca kubejoin-data/ca.crt -endpoint 127.0.0.1:9444
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("mint-token: ")
	store := flag.String("store", "tokens.db", "`file` that keeps the tokens")
	ca := flag.String("ca", "kubejoin-data/ca.crt", "`file` of the cluster's CA certificates")
	endpoint := flag.String("endpoint", "127.0.0.1:9444", "`HOST:PORT` that the machine asks for cluster-info")
	ttl := flag.Duration("ttl", tokens.DefaultTTL, "how long the token lives")
	flag.Parse()

	line, err := mint(context.Background(), *store, *ca, *endpoint, *ttl)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(line)
}

func mint(ctx context.Context, storeFile, caFile, endpoint string, ttl time.Duration) (line string, err error) {
	if ttl < time.Second {
		return "", fmt.Errorf("-ttl: %s given, want 1s or more", ttl)
	}
	bundle, err := os.ReadFile(caFile)
	if err != nil {
		return "", err
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		return "", fmt.Errorf("%s: %w", caFile, err)
	}
	command := clusterinfo.JoinCommand{Endpoint: endpoint, Token: tokens.Generate(), Pins: clusterinfo.Pins(cas)}
	// First: a command that cannot be made leaves no token behind.
	line, err = command.Reveal()
	if err != nil {
		return "", err
	}

	store, err := boltstore.Open(storeFile)
	if err != nil {
		return "", err
	}
	defer func() { _ = store.Close() }() // what was created is on the disk already
	record := tokens.NewRecord(command.Token, ttl, time.Now())
	record.Description = "minted by the example mint-token"
	_, err = store.Create(ctx, record)
	return line, err
}

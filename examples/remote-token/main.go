// Remote-token requests a bootstrap token for one machine from a kubejoin server and prints the join
// command. It reads the operator's bearer token from standard input, because arguments are visible in
// the process list.
//
//	cut -d, -f1 kubejoin-data/operators.csv | go run ./examples/remote-token -node worker-7
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("remote-token: ")
	url := flag.String("url", "https://127.0.0.1:9443", "`URL` of the server")
	ca := flag.String("ca", "kubejoin-data/ca.crt", "`file` of CA certificates to verify the server with")
	node := flag.String("node", "*", "`name` of the machine, or a pattern")
	flag.Parse()

	bearer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		log.Fatal("standard input: want a line with the bearer token: ", err)
	}
	roots, err := trusted(*ca)
	if err != nil {
		log.Fatal(err)
	}
	kubejoin := &client.Client{
		URL: *url, Bearer: api.Secret(strings.TrimSpace(bearer)),
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
	}
	made, err := mint(context.Background(), kubejoin, *node)
	if problem := (*api.Problem)(nil); errors.As(err, &problem) && problem.TokenID != "" {
		log.Fatalf("%v\nthe server created token %s before the error", err, problem.TokenID)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, warning := range made.Warnings {
		log.Print("warning: ", warning)
	}
	fmt.Println(made.JoinCommand.Reveal())
}

// mint creates a token for one node with this name, valid for two hours.
func mint(ctx context.Context, kubejoin *client.Client, node string) (api.Token, error) {
	return kubejoin.CreateToken(ctx, api.CreateToken{TokenSpec: api.TokenSpec{
		TTL: "2h", MaxNodes: 1, NodeNames: []string{node},
	}})
}

func trusted(file string) (*x509.CertPool, error) {
	bundle, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("%s: want certificates in PEM", file)
	}
	return roots, nil
}

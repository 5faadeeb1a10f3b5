package client_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// Example creates a token that only the machine worker-7 can use.
func Example() {
	c := exampleClient()
	made, err := c.CreateToken(context.Background(), api.CreateToken{TokenSpec: api.TokenSpec{
		TTL: "1h", MaxNodes: 1, NodeNames: []string{"worker-7"},
	}})
	if err != nil {
		log.Fatal(err)
	}
	// Run made.JoinCommand.Reveal() on worker-7. JoinCommand itself prints as <redacted>.
	fmt.Println(made.Status, made.NodeNames, made.JoinCommand)
	// Output: active [worker-7] <redacted>
}

// exampleClient returns a client of a server for tests.
func exampleClient() *client.Client {
	dir, err := os.MkdirTemp("", "kubejoin-example-")
	if err != nil {
		log.Fatal(err)
	}
	store, err := boltstore.Open(filepath.Join(dir, "kubejoin.db"))
	if err != nil {
		log.Fatal(err)
	}
	_ = os.RemoveAll(dir) // the open file lives on until the process ends
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle())
	if err != nil {
		log.Fatal(err)
	}
	handler, err := server.Server{
		Tokens: store, ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers: server.Callers{
			Authenticate: func(*http.Request) (auth.User, error) { return auth.User{Name: "ada", Groups: []string{"admins"}}, nil },
			Authorize:    auth.AllowGroup("admins"),
		},
	}.Handler()
	if err != nil {
		log.Fatal(err)
	}
	web := httptest.NewTLSServer(handler)
	return &client.Client{URL: web.URL, HTTP: web.Client()}
}

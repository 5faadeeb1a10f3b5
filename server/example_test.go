package server_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// ExampleServer serves the API on a mux of the importing program, without Kubernetes.
func ExampleServer() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := boltstore.Open(filepath.Join(dir, "tokens.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	ca, err := signer.GenerateCA("kubernetes", time.Now(), 10*365*24*time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig("https://api.example.com:6443", ca.Bundle())
	if err != nil {
		log.Fatal(err)
	}
	operators, err := auth.ParseTokenFile([]byte(`correct-horse-battery,ada,,"installers"`))
	if err != nil {
		log.Fatal(err)
	}

	api, err := server.Server{
		Tokens:      store,
		ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers:     server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("installers")},
	}.Handler()
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	mux.Handle("/api/v1/namespaces/kube-public/", api) // where kubeadm looks for cluster-info

	// Serve mux over TLS only. The loop shows the responses that a client gets.
	for _, bearer := range []string{"correct-horse-battery", "a guess of a stranger"} {
		r := httptest.NewRequest("POST", "/v1/token/print-join-command?ttl=2h", nil)
		r.Header.Set("Authorization", "Bearer "+bearer)
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, r)
		line := answer.Body.String()
		if answer.Code == http.StatusOK {
			line, _, _ = strings.Cut(line, " --token")
		} else {
			line = answer.Header().Get("Content-Type")
		}
		fmt.Println(answer.Code, line)
	}
	// Output:
	// 200 kubeadm join api.example.com:6443
	// 401 application/problem+json
}

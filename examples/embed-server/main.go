// Embed-server mounts the HTTPS API of kubejoin on its own mux, beside its own page. It keeps tokens
// in the file store and signs cluster-info on each request.
//
//	go run ./examples/embed-server -ca kubejoin-data/ca.pem -operators kubejoin-data/operators.csv
//	curl -K kubejoin-data/curlrc -X POST https://127.0.0.1:9444/v1/token/print-join-command
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

func main() {
	log.SetPrefix("embed-server: ")
	listen := flag.String("listen", "127.0.0.1:9444", "`HOST:PORT` to serve on, also in join commands")
	apiServer := flag.String("api-server", "https://127.0.0.1:6443", "`URL` of the cluster's API server")
	store := flag.String("store", "kubejoin-data/tokens.db", "`file` that keeps the tokens")
	ca := flag.String("ca", "kubejoin-data/ca.pem", "`file` of the cluster CA's certificate and key")
	operators := flag.String("operators", "kubejoin-data/operators.csv", `CSV file of operators, lines of token,user,uid,"groups"; group kubejoin:admins may get join commands`)
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *apiServer, *store, *ca, *operators); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, listen, apiServer, storeFile, caFile, operatorsFile string) error {
	store, err := boltstore.Open(storeFile)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // ignore the error: each change is already on the disk
	ca, err := signer.LoadCA(caFile, caFile)
	if err != nil {
		return err
	}
	kubeconfig, err := clusterinfo.Kubeconfig(apiServer, ca.Bundle())
	if err != nil {
		return err
	}
	content, err := os.ReadFile(operatorsFile)
	if err != nil {
		return err
	}
	operators, err := auth.ParseTokenFile(content)
	if err != nil {
		return fmt.Errorf("%s: %w", operatorsFile, err)
	}
	certificate, err := servingCertificate(ca, listen)
	if err != nil {
		return err
	}

	web, err := server.Server{
		Tokens:      store,
		ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers:     server.Callers{Authenticate: operators.Authenticate, Authorize: auth.AllowGroup("kubejoin:admins")},
		Minting:     server.Minting{Advertise: listen},
		Logger:      slog.Default(),
	}.HTTPServer(&tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", web.Handler)
	mux.Handle("/api/v1/namespaces/kube-public/", web.Handler) // kubeadm reads cluster-info here
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "an installer's own page") })
	web.Handler = mux

	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() { ended <- web.Shutdown(context.Background()) })
	if err := web.ServeTLS(server.LimitHandshakes(listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended // when the requests in flight have ended
}

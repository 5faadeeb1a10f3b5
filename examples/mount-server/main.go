// Mount-server mounts the HTTPS API of kubejoin in a server with other paths: under a prefix, behind
// the server's own middleware, with its own authentication and authorization, and tokens in memory.
// README.md has the commands to try it.
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
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

func main() {
	log.SetPrefix("mount-server: ")
	listen := flag.String("listen", "127.0.0.1:9445", "`HOST:PORT` to serve on, also in join commands")
	apiServer := flag.String("api-server", "https://127.0.0.1:6443", "`URL` of the cluster's API server")
	ca := flag.String("ca", "kubejoin-data/ca.crt", "`file` of the cluster's CA certificates")
	cert := flag.String("cert", "kubejoin-data/mount-server.crt", "`file` of the serving certificate, signed by the cluster CA")
	key := flag.String("key", "kubejoin-data/mount-server.key", "`file` of the private key of -cert")
	keys := flag.String("keys", "kubejoin-data/keys.txt", "`file` of users, lines of KEY NAME ROLE")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *apiServer, *ca, *cert, *key, *keys); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, listen, apiServer, caFile, certFile, keyFile, keysFile string) error {
	certificate, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return err
	}
	people, err := readPeople(keysFile)
	if err != nil {
		return err
	}
	bundle, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		return fmt.Errorf("%s: %w", caFile, err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig(apiServer, cas)
	if err != nil {
		return err
	}
	store := memdb.Open() // tokens are lost when the process ends; boltstore keeps them in a file
	web, err := server.Server{
		Tokens:      store,
		ClusterInfo: &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig},
		Callers:     server.Callers{Authenticate: people.authenticate, Authorize: authorize},
		Minting:     server.Minting{Advertise: listen, Warnings: advise},
		Logger:      slog.Default(),
	}.HTTPServer(&tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		return err
	}
	web.Handler = timed(routes(web.Handler))

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

// routes returns the routes of the server and of kubejoin. The prefix avoids conflicts: both have a /healthz. Discovery has
// no prefix, because kubeadm requests a fixed path.
func routes(kubejoin http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "racks, machines, and how they join") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the racks are fine") })
	mux.Handle("/join/", http.StripPrefix("/join", kubejoin))
	mux.Handle("/api/v1/namespaces/kube-public/", kubejoin)
	return mux
}

// advise returns a warning for a token with limits: in this example, the signer does not enforce them.
func advise(_ context.Context, made tokens.Record) []string {
	if made.Limits.IsZero() {
		return nil
	}
	return []string{"the signer of this cluster does not enforce limits"}
}

// timed is a middleware that logs requests. Its ResponseWriter has Unwrap, which kubejoin needs to set deadlines.
func timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &status{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(seen, r)
		slog.Info("request served", "method", r.Method, "pattern", r.Pattern, "status", seen.code, "took", time.Since(began))
	})
}

type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }

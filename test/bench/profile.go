package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// controllersCommand is the argument with which this program runs kubejoin's controllers under a profiler. kubejoin
// itself has no profiling endpoint.
const controllersCommand = "controllers"

func (b *bench) profiledControllers(kubeconfig string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		return nil, err
	}
	return exec.Command(self, controllersCommand, "-kubeconfig", kubeconfig,
		"-ca", b.cluster.CAFile(), "-key", b.cluster.CAKeyFile(), "-profile", b.profiles), nil
}

// runControllers runs the controllers of 'kubejoin serve' on a cluster, without its API, until ctx ends.
func runControllers(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet(controllersCommand, flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "cluster")
	caFile := flags.String("ca", "", "CA")
	keyFile := flags.String("key", "", "key of the CA")
	dir := flags.String("profile", ".", "folder of the profiles")
	if err := flags.Parse(args); err != nil {
		return err
	}
	stop, err := profile(*dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ca, err := signer.LoadCA(*caFile, *keyFile)
	if err != nil {
		return err
	}
	log, registry := slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry()
	store, err := secretstore.Open(ctx, client, log)
	if err != nil {
		return err
	}
	requests := csr.NewInformer(client)
	claims, err := secretstore.OpenClaims(ctx, client, store, "kubejoin-system", log)
	if err != nil {
		return err
	}
	nodes, err := kubefacts.OpenNodes(ctx, client)
	if err != nil {
		return err
	}
	signers, err := signer.KubernetesSigners(signer.Fixed(ca), 0)
	if err != nil {
		return err
	}
	authority := &signer.Authority{
		Unthrottled: true,
		Facts:       &kubefacts.Facts{Client: client}, Signers: signer.FixedSigners(signers),
		Nodes: &admission.Nodes{Tokens: store, Claims: claims, Node: nodes.Node, Ready: nodes.Ready, Logger: log, Registerer: registry},
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		func(ctx context.Context) error { requests.RunWithContext(ctx); return nil },
		configmap.Signer{ConfigMap: configmap.Open(ctx, client), Tokens: store, Logger: log, Registerer: registry}.Run,
		cleaner.Tokens{Store: store, Logger: log, Registerer: registry}.Run,
		csr.Controller{Client: client, Informer: requests, Authority: authority, Approve: true, Sign: true, Logger: log, Registerer: registry}.Run,
		csr.Cleaner{Client: client, Informer: requests, Logger: log, Registerer: registry}.Run,
	} {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// profile starts a profile. The returned function stops it.
func profile(dir string) (func() error, error) {
	name := time.Now().Format("150405")
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("cpu-%s.pprof", name)))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		allocs, err := os.Create(filepath.Join(dir, fmt.Sprintf("allocs-%s.pprof", name)))
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(f.Close(), pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
	}, nil
}

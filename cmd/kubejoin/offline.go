package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// offlineHelp is what the help of a command with offlineOptions says of them.
const offlineHelp = `

With --offline no API server is asked, for there may be none yet. Printed, or written
to --out-dir, are the Secret of the token with its limits, to be applied when there is
an API server (token-secret.yaml), a cluster-info that the token has signed, with the
Role that lets anybody read it (cluster-info.yaml), and the join command. A cluster
that has a cluster-info, as 'kubeadm init' makes it, needs the Secret alone: what
keeps its cluster-info signed signs with this token, too. The token's life begins when
it is made, not when it is applied.`

// offlineOptions are flags of a command that makes tokens.
type offlineOptions struct {
	offline   bool
	apiServer string
	outDir    string

	caFile string // the command's own --ca-file
	// join is how to join with a token, in the format that is asked for.
	join func(made api.Token, kubeconfig []byte) ([]byte, error)
}

func (o *offlineOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.offline, "offline", false, "ask no API server, and print what is to be applied later; --ca-file is the CA of the cluster then")
	f.StringVar(&o.apiServer, "api-server", "", "with --offline: https://HOST:PORT of the API server that is to be")
	f.StringVar(&o.outDir, "out-dir", "", "with --offline: write token-secret.yaml and cluster-info.yaml to this folder")
}

// check refuses what does not go together.
func (o *offlineOptions) check(given func(flag string) bool, format string) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !o.offline {
		for _, flag := range []string{"api-server", "out-dir"} {
			if given(flag) {
				fail("--%s: is about --offline, which is not given", flag)
			}
		}
		return errors.Join(errs...)
	}
	if o.caFile == "" {
		fail("--ca-file: needed with --offline, such as /etc/kubernetes/pki/ca.crt")
	}
	if o.apiServer == "" {
		fail("--api-server: needed with --offline, as https://HOST:PORT")
	}
	for _, flag := range []string{"kubeconfig", "url", "curlrc", "bearer-file", "client-certificate", "replace-node", "dry-run", "wait"} {
		if given(flag) {
			fail("--%s: is about a cluster that is there, and --offline about one that is not: give one of them", flag)
		}
	}
	if !slices.Contains([]string{"text", "json", "yaml"}, format) {
		fail("--output: %q given, want text, json or yaml with --offline", format)
	}
	if given("print-join-command") && o.outDir == "" {
		fail("--out-dir: needed with --offline and --print-join-command: a token that is in no Secret is good for nothing")
	}
	return errors.Join(errs...)
}

// prepared is a token that no API server knows yet, and what is to be applied of it: the
// Secret, cluster-info and what makes it public, in this order.
type prepared struct {
	api.Token
	Manifests []runtime.Object `json:"manifests"`
}

// run makes what was asked for with no API server. The output is text, json or yaml; without a
// folder to write to text is yaml, with the join command as a comment.
func (o *offlineOptions) run(cmd *cobra.Command, asked api.CreateToken, format string) error {
	p, err := o.prepare(cmd.Context(), asked)
	if err != nil {
		return err
	}
	if o.outDir != "" {
		if err := p.write(o.outDir); err != nil {
			return fmt.Errorf("--out-dir: %w", err)
		}
	}
	warn(cmd, p.Warnings...)
	p.Warnings = nil
	text := []byte(p.JoinCommand.Reveal() + "\n")
	switch {
	case format == "json":
		text, err = json.MarshalIndent(p, "", "    ")
		text = append(text, '\n')
	case format == "yaml" || o.outDir == "":
		var all []byte
		all, err = documents(p.Manifests)
		text = append([]byte("# "+p.JoinCommand.Reveal()+"\n---\n"), all...)
	}
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(text); err != nil {
		return err
	}
	life := "never expires"
	if !p.Expires.IsZero() {
		life = fmt.Sprintf("expires at %s, whenever it is applied", p.Expires.Format(time.RFC3339))
	}
	cmd.PrintErrln("kubejoin: token", p.ID, life)
	return nil
}

// prepare lets a server in this process make the token, which means the same here as it does
// on a cluster.
func (o *offlineOptions) prepare(ctx context.Context, asked api.CreateToken) (prepared, error) {
	var p prepared
	kubeconfig, err := kubeconfigOf(o.caFile, o.apiServer)
	if err != nil {
		return p, err
	}
	store := &single{}
	info := &clusterinfo.Computed{Tokens: store, Kubeconfig: kubeconfig}
	c := client.InProcess(server.Server{Tokens: store, ClusterInfo: info}.InProcess())
	if p.Token, err = c.CreateToken(ctx, asked); err != nil {
		return p, explain(err)
	}
	if p.JoinCommand == "" {
		return p, &usageError{err: errors.New("--usages: want signing among them, since the join command needs the token's signature")}
	}
	join, err := o.join(p.Token, kubeconfig)
	if err != nil {
		return p, err
	}
	p.JoinCommand = api.Secret(strings.TrimSuffix(string(join), "\n"))
	secret, err := secretstore.Manifest(*store.record)
	if err != nil {
		return p, err
	}
	data, err := info.Data(ctx)
	if err != nil {
		return p, err
	}
	p.Manifests = append([]runtime.Object{secret}, configmap.Manifests(data)...)
	return p, nil
}

// write writes the manifests to a folder. What is there is of another token, which may have
// been handed out: it stays.
func (p prepared) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	parts := map[string][]runtime.Object{"token-secret.yaml": p.Manifests[:1], "cluster-info.yaml": p.Manifests[1:]}
	for name := range parts {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already; want a folder without it", filepath.Join(dir, name))
		}
	}
	for name, objects := range parts {
		content, err := documents(objects)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(filepath.Join(dir, name), content); err != nil {
			return err
		}
	}
	return nil
}

// documents is YAML with one document for each object.
func documents(objects []runtime.Object) ([]byte, error) {
	var all [][]byte
	for _, object := range objects {
		one, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return bytes.Join(all, []byte("---\n")), nil
}

// kubeconfigOf is the discovery kubeconfig of an API server and the CAs in a file.
func kubeconfigOf(caFile, apiServer string) ([]byte, error) {
	content, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %s: %w", caFile, err)
	}
	kubeconfig, err := clusterinfo.Kubeconfig(apiServer, cas)
	if err != nil {
		return nil, fmt.Errorf("--ca-file and --api-server: %w", err)
	}
	return kubeconfig, nil
}

// single is a store of the one token that is made offline.
type single struct{ record *tokens.Record }

func (s *single) Get(_ context.Context, id string) (tokens.Record, error) {
	if s.record == nil || s.record.Token.ID() != id {
		return tokens.Record{}, tokens.ErrNotFound
	}
	return *s.record, nil
}

func (s *single) Find(ctx context.Context, id string) (tokens.Record, error) { return s.Get(ctx, id) }

func (s *single) List(context.Context) ([]tokens.Record, error) {
	if s.record == nil {
		return nil, nil
	}
	return []tokens.Record{*s.record}, nil
}

func (s *single) Create(_ context.Context, r tokens.Record) (tokens.Record, error) {
	if s.record != nil {
		return tokens.Record{}, tokens.ErrExists
	}
	if err := r.Check(); err != nil {
		return tokens.Record{}, err
	}
	r.Created, r.UID, r.Version = time.Now().UTC().Truncate(time.Second), "offline", "1"
	s.record = &r
	return r, nil
}

func (s *single) Update(context.Context, string, func(*tokens.Record) error) (tokens.Record, error) {
	return tokens.Record{}, errors.ErrUnsupported // nobody changes it
}

func (s *single) Delete(context.Context, tokens.Record) error {
	s.record = nil
	return nil
}

func (s *single) Watch(ctx context.Context) <-chan struct{} {
	var nobody tokens.Hints
	return nobody.Watch(ctx)
}

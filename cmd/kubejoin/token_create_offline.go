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

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// offlineHelp describes offlineOptions in the help of a command.
const offlineHelp = `

--offline creates a token for a cluster that does not exist yet. It contacts no API
server. It prints, or writes to --output-dir, manifests to apply later and the join command:
  token-secret.yaml  Secret of the token, with its limits
  cluster-info.yaml  cluster-info signed with the token, and the Role that makes it public
If the cluster already has a cluster-info, for example from 'kubeadm init', apply only
token-secret.yaml. The lifetime of the token begins now, not when you apply the Secret.`

// offlineOptions are the flags for creating a token without an API server.
type offlineOptions struct {
	offline   bool
	apiServer string
	outDir    string

	caFile string // the command's own --ca-file
	// join returns the join command of a token in the requested format.
	join func(made api.Token, kubeconfig []byte) ([]byte, error)
}

func (o *offlineOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.offline, "offline", false, "contact no API server and print manifests to apply later; --ca-file is the CA of the cluster")
	f.StringVar(&o.apiServer, "api-server", "", "with --offline: https://HOST:PORT of the future API server")
	f.StringVar(&o.outDir, "output-dir", "", "with --offline: folder to write token-secret.yaml and cluster-info.yaml to")
}

// check refuses flags that exclude each other, and reports missing flags.
func (o *offlineOptions) check(given func(flag string) bool, format string) error {
	var m mistakes
	if !o.offline {
		m.excludes(given, "needs --offline", "api-server", "output-dir")
		return m.err()
	}
	m.when(o.caFile == "", "--ca-file: needed with --offline, for example /etc/kubernetes/pki/ca.crt")
	m.when(o.apiServer == "", "--api-server: needed with --offline, as https://HOST:PORT")
	m.url("--api-server", o.apiServer)
	m.excludes(given, "excludes --offline, which contacts no cluster",
		"kubeconfig", "context", "url", "curlrc", "bearer-file", "client-certificate", "replace-node", "dry-run", "wait")
	m.when(!slices.Contains([]string{"text", "json", "yaml"}, format), "--output: %q given, want text, json or yaml with --offline", format)
	m.when(given("print-join-command") && o.outDir == "",
		"--output-dir: needed with --offline and --print-join-command: the token works only after its Secret is applied")
	return m.err()
}

// prepared is a token that no API server has yet, and the manifests to apply, in this order: the Secret, cluster-info, and
// the RBAC rules that let everybody read cluster-info.
type prepared struct {
	api.Token
	Manifests []runtime.Object `json:"manifests"`
}

// run creates the token without an API server and prints it as text, json or yaml. Without --output-dir, text is YAML
// with the join command as a comment.
func (o *offlineOptions) run(cmd *cobra.Command, asked api.CreateToken, format string) error {
	p, err := o.prepare(cmd.Context(), asked)
	if err != nil {
		return err
	}
	if o.outDir != "" {
		if err := p.write(o.outDir); err != nil {
			return fmt.Errorf("--output-dir: %w", err)
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
		life = fmt.Sprintf("expires at %s, no matter when you apply it", p.Expires.Format(time.RFC3339))
	}
	cmd.PrintErrln("kubejoin: token", p.ID, life)
	return nil
}

// prepare creates the token with the same checks and defaults as a kubejoin server.
func (o *offlineOptions) prepare(ctx context.Context, asked api.CreateToken) (prepared, error) {
	var p prepared
	kubeconfig, err := kubeconfigOf(o.caFile, o.apiServer)
	if err != nil {
		return p, err
	}
	token, err := tokens.Parse(asked.Token.Reveal())
	if err != nil {
		return p, err
	}
	record, err := operations.Record(ctx, asked.TokenSpec, token, time.Now(), operations.Everything, operations.Readers{
		Owner: operations.GivenOwner, NodeProperties: func(context.Context, string) error { return nil },
	})
	if err != nil {
		return p, explain(err)
	}
	made, data, err := mint.Offline(record, kubeconfig)
	if err != nil {
		return p, err
	}
	if made.Join.Token.IsZero() {
		return p, usagef("--usages: want signing in the list, since discovery needs a signature by the token")
	}
	line, err := made.Join.Line()
	if err != nil {
		return p, err
	}
	p.Token = operations.View{}.Token(made.Record)
	p.Token.Token, p.JoinCommand, p.Warnings = asked.Token, api.Secret(strings.TrimSuffix(string(line), "\n")), append(made.Warnings, ofLoopback(made.Join.Endpoint)...)
	join, err := o.join(p.Token, kubeconfig)
	if err != nil {
		return p, err
	}
	p.JoinCommand = api.Secret(strings.TrimSuffix(string(join), "\n"))
	secret, err := secretstore.Manifest(made.Record)
	if err != nil {
		return p, err
	}
	p.Manifests = append([]runtime.Object{secret}, configmap.Manifests(data)...)
	return p, nil
}

// write writes the manifests to a folder. It does not overwrite a file: it may belong to a token that was already
// handed out.
func (p prepared) write(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	parts := map[string][]runtime.Object{"token-secret.yaml": p.Manifests[:1], "cluster-info.yaml": p.Manifests[1:]}
	for name := range parts {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s already exists; want a folder without this file", filepath.Join(dir, name))
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

// documents returns YAML with one document per object.
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

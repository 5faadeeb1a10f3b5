package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// offlineHelp is what the command that has offlineOptions says of them.
const offlineHelp = `With --offline no API server is asked, for there may be none yet. Printed, or written
to --out-dir, are the Secret of the token with its limits, to be applied when there is
an API server (token-secret.yaml), a cluster-info that the token has signed, with the
Role that lets anybody read it (cluster-info.yaml), and the join command. A cluster
that has a cluster-info, as 'kubeadm init' makes it, needs the Secret alone: whatever
keeps its cluster-info signed signs with the token, too. The token's life begins when
it is made, not when it is applied.`

// offlineOptions are flags of a command that makes tokens.
type offlineOptions struct {
	offline           bool
	caFile, apiServer string
	outDir            string
}

func (o *offlineOptions) register(f *pflag.FlagSet) {
	f.BoolVar(&o.offline, "offline", false, "ask no API server, and print what is to be applied later")
	f.StringVar(&o.caFile, "ca-file", "", "with --offline: CA of the cluster, such as /etc/kubernetes/pki/ca.crt")
	f.StringVar(&o.apiServer, "api-server", "", "with --offline: https://HOST:PORT of the API server that is to be")
	f.StringVar(&o.outDir, "out-dir", "", "with --offline: write token-secret.yaml and cluster-info.yaml to this folder")
}

// check refuses what does not go together; given is whether a flag is on the command line.
func (o *offlineOptions) check(given func(flag string) bool) error {
	var errs []error
	for flag, value := range map[string]string{"ca-file": o.caFile, "api-server": o.apiServer} {
		if o.offline && value == "" {
			errs = append(errs, fmt.Errorf("--%s: needed with --offline", flag))
		}
	}
	for _, flag := range []string{"ca-file", "api-server", "out-dir"} {
		if !o.offline && given(flag) {
			errs = append(errs, fmt.Errorf("--%s: is about --offline, which is not given", flag))
		}
	}
	return errors.Join(errs...)
}

// prepared is a token that no API server knows yet, and what is to be applied of it.
type prepared struct {
	Token       string     `json:"token"`
	Expires     *time.Time `json:"expires,omitempty"`
	JoinCommand string     `json:"joinCommand"`
	// Manifests are the Secret, cluster-info and what makes it public, in this order.
	Manifests []runtime.Object `json:"manifests"`
}

// offline makes what a record is to be in a cluster, with no API server. The output is text,
// json or yaml; without a folder to write to text is yaml, with the join command as a comment.
func offline(o offlineOptions, record tokens.Record, output string, stdout, stderr io.Writer) error {
	p, err := prepare(o, record)
	if err != nil {
		return err
	}
	if o.outDir != "" {
		if err := p.write(o.outDir); err != nil {
			return fmt.Errorf("--out-dir: %w", err)
		}
	}
	var text []byte
	switch {
	case output == "json":
		if text, err = json.MarshalIndent(p, "", "  "); err == nil {
			text = append(text, '\n')
		}
	case output == "yaml", o.outDir == "":
		text, err = documents(p.Manifests)
		text = append([]byte("# "+p.JoinCommand+"\n---\n"), text...)
	default:
		text = []byte(p.JoinCommand + "\n")
	}
	if err != nil {
		return err
	}
	if _, err := stdout.Write(text); err != nil {
		return err
	}
	life := "never expires"
	if p.Expires != nil {
		life = fmt.Sprintf("expires at %s, whenever it is applied", p.Expires.Format(time.RFC3339))
	}
	_, err = fmt.Fprintf(stderr, "token %s %s\n", record.Token.ID(), life)
	return err
}

func prepare(o offlineOptions, record tokens.Record) (prepared, error) {
	var p prepared
	if record.Limits.Replaces != (tokens.NodeRef{}) {
		return p, errors.New("--replace-node: which Node it is is known to the API server alone; want it without --offline")
	}
	if !record.Signing {
		return p, errors.New("--usages: want signing among them, since the join command needs the token's signature")
	}
	secret, err := secretstore.Manifest(record)
	if err != nil {
		return p, err
	}
	kubeconfig, err := kubeconfigOf(o.caFile, o.apiServer)
	if err != nil {
		return p, err
	}
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return p, err
	}
	signature, err := clusterinfo.Sign(kubeconfig, record.Token)
	if err != nil {
		return p, err
	}
	endpoint, err := endpointOf(o.apiServer)
	if err != nil {
		return p, fmt.Errorf("--api-server: %w", err)
	}
	if p.JoinCommand, err = (clusterinfo.JoinCommand{Endpoint: endpoint, Token: record.Token, Pins: clusterinfo.Pins(cas)}).Reveal(); err != nil {
		return p, err
	}
	p.Token = record.Token.Reveal()
	if !record.Expires.IsZero() {
		p.Expires = &record.Expires
	}
	p.Manifests = append([]runtime.Object{secret}, configmap.Manifests(map[string]string{
		clusterinfo.KubeconfigKey: string(kubeconfig), clusterinfo.SignatureKey(record.Token.ID()): signature,
	})...)
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
		if err := writeFile(filepath.Join(dir, name), content); err != nil {
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

// endpointOf is the HOST:PORT of an https URL.
func endpointOf(apiServer string) (string, error) {
	u, err := url.Parse(apiServer)
	if err != nil {
		return "", errors.New("want https://HOST:PORT")
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	endpoint := net.JoinHostPort(u.Hostname(), port)
	return endpoint, clusterinfo.CheckEndpoint(endpoint)
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/yamldoc"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// exitNotJoined is the exit code if the explained node has not joined.
const exitNotJoined exitCode = 3

func explainCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
		request explainedRequest
		code    string
	}
	cmd := &cobra.Command{
		Use:   "explain NODE | CODE | --csr NAME | -f FILE",
		Short: "Explain why a machine has not joined, or what a code means",
		Long: `Explain in one sentence why a machine has or has not joined with this node name, and
print the next command. The command only reads: CSRs, the Node, the claim on its name,
tokens, and signatures in cluster-info. -o json prints all of them. Objects that you may
not read are listed, and the explanation does not guess about them.

--csr, or -f with a CertificateSigningRequest in YAML or JSON, explains one certificate
request instead: the decision of each rule and its evidence, and the lifetime of the
certificate. This needs a cluster. With --url, the running kubejoin explains it with its
own flags and --signer-config. With a kubeconfig, the command uses the default flags. To
approve a request by hand, run 'kubectl certificate approve'.

CODE is a word that kubejoin prints, for example the reason TokenSpent, or the URI of a
problem. The command says what it means and what to do next, without a cluster or a server.
All codes: ` + docsURL + `codes.md
A word in lower case is always the name of a node. For codes
in lower case, for example of 'kubejoin doctor', give --code.

The exit code is 0 if the node has joined, or the request is issued or would be approved.
It is 3 if not, if the node is revoked, or if a required object may not be read. It is 1 if
the command cannot reach the cluster or the server, and 2 for an unknown code.` + remoteHelp,
		Example: `  kubejoin explain worker-7

  # wait until a machine has joined
  until kubejoin explain worker-7; do sleep 5; done

  # only the state, one word for scripts
  kubejoin explain worker-7 -o jsonpath={.state}

  # how each rule decides about a certificate request
  kubejoin explain --csr csr-7xk2p --url https://join.example.com:9443 --curlrc curlrc

  # what a reason means, and a finding of 'kubejoin doctor'
  kubejoin explain TokenSpent
  kubejoin explain --code kcm-signs

  # a certificate request in a file
  kubectl get csr csr-7xk2p -o yaml | kubejoin explain -f -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if i := slices.IndexFunc(args, isCode); o.code == "" && i >= 0 {
				o.code = args[i]
				args = slices.Delete(args, i, i+1)
			}
			var err error
			switch {
			case o.code != "" && (len(args) > 0 || o.request.given()):
				err = usagef("CODE: excludes NODE, --csr and --filename; want exactly one of them")
			case o.code != "":
				return o.explainCode(cmd.OutOrStdout(), o.code)
			case o.request.given():
				err = o.request.check(args)
			default:
				err = checkNode(args)
			}
			if err != nil {
				return err
			}
			if o.request.given() {
				return o.explainRequest(cmd, &o.remoteOptions, o.request)
			}
			err = o.run(cmd, func(ctx context.Context, r *remote) error {
				return o.explain(ctx, cmd.OutOrStdout(), r, args[0])
			})
			if err != nil && !isUnknown(args[0]) {
				cmd.PrintErrf("kubejoin: hint: %s is also a code: kubejoin explain --code %[1]s\n", args[0])
			}
			return err
		},
	}
	nodes := o.offer(1, listNodes)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 && isCode(typed) {
			return codeNames(isCode), cobra.ShellCompDirectiveNoFileComp
		}
		return nodes(cmd, args, typed)
	}
	cmd.Flags().StringVar(&o.request.name, "csr", "", "name of a CertificateSigningRequest to explain")
	cmd.Flags().StringVarP(&o.request.file, "filename", "f", "", "file with a CertificateSigningRequest to explain; - is standard input")
	cmd.Flags().StringVar(&o.code, "code", "", "code to explain, also one in lower case: a problem, a check, a finding or an exit code")
	// It fails only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("code", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return codeNames(completable.MatchString), cobra.ShellCompDirectiveNoFileComp
	})
	o.registerFormats(cmd, "text", "json", "yaml")
	o.remoteOptions.register(cmd)
	return cmd
}

func checkNode(args []string) error {
	if len(args) != 1 {
		return usagef("NODE: %d given, want one node name", len(args))
	}
	if err := tokens.CheckNodeName(args[0]); err != nil {
		return usagef("NODE: %w", err)
	}
	return nil
}

// explain prints the explanation of a node.
func (o *output) explain(ctx context.Context, w io.Writer, r *remote, node string) error {
	e, err := r.Explain(ctx, node)
	if err == nil {
		err = o.text(w, e, e.Text())
	}
	if err == nil && !e.HasJoined() {
		err = exitNotJoined
	}
	return err
}

// An explainedRequest selects the CSR to explain.
type explainedRequest struct{ name, file string }

func (e explainedRequest) given() bool { return e.name != "" || e.file != "" }

func (e explainedRequest) check(args []string) error {
	var m mistakes
	m.when(len(args) > 0, "NODE: excludes --csr and --filename; want exactly one of them")
	m.when(e.name != "" && e.file != "", "--csr: excludes --filename, and both are given")
	m.when(e.name != "" && !dnsname.IsSubdomain(e.name), "--csr: %.60q given, want a valid object name", tokens.Redact(e.name))
	return m.first()
}

// asked returns the request for the server. It reads the CSR from the file in --filename.
func (e explainedRequest) asked(cmd *cobra.Command) (api.ExplainRequest, error) {
	if e.name != "" {
		return api.ExplainRequest{CSR: e.name}, nil
	}
	content, err := readInput(cmd, e.file, server.MaxBody)
	if err != nil {
		return api.ExplainRequest{}, fmt.Errorf("--filename: %w", err)
	}
	object, err := yaml.YAMLToJSONStrict(content)
	if err = cmp.Or(err, yamldoc.Only(content)); err != nil {
		return api.ExplainRequest{}, fmt.Errorf("--filename: %s is not valid YAML or JSON: %w", e.file, err)
	}
	return api.ExplainRequest{Object: json.RawMessage(object)}, nil
}

// explainRequest prints what kubejoin would do with a CSR.
func (o *output) explainRequest(cmd *cobra.Command, remotes *remoteOptions, request explainedRequest) error {
	asked, err := request.asked(cmd)
	if err != nil {
		return err
	}
	return remotes.run(cmd, func(ctx context.Context, r *remote) error {
		e, err := r.ExplainRequest(ctx, asked)
		if err == nil {
			err = o.text(cmd.OutOrStdout(), e, e.Text())
		}
		if err == nil && !e.Granted() {
			err = exitNotJoined
		}
		return err
	})
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

// isCode reports whether an argument is a code because it cannot be the name of a node.
func isCode(argument string) bool {
	return camelCase.MatchString(argument) || strings.HasPrefix(argument, api.ProblemType)
}

// explainCode prints the entries of a code.
func (o *output) explainCode(w io.Writer, code string) error {
	found, err := codepage.Find(code)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		near := docsURL + "codes.md lists all codes"
		if names := codepage.Nearest(code); len(names) > 0 {
			near = "the nearest: " + strings.Join(names, ", ")
		}
		if camelCase.MatchString(code) {
			near += "; names of nodes are in lower case"
		}
		return usagef("CODE: %.60q is not a code of kubejoin; %s", tokens.Redact(code), near)
	}
	text := ""
	for _, e := range found {
		what := string(e.Kind)
		if e.Class != "" {
			what += ", " + e.Class
		}
		text += fmt.Sprintf("%s (%s): %s\n", e.Code, what, e.Meaning)
		if e.Next != "" {
			text += "  " + e.Next + "\n"
		}
	}
	return o.text(w, struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Items      []codepage.Entry `json:"items"`
	}{api.GroupVersion, "CodeList", found}, text)
}

// isUnknown reports whether a word in lower case is not a code.
func isUnknown(word string) bool {
	found, err := codepage.Find(word)
	return err != nil || len(found) == 0 || found[0].Code != word
}

// codeNames lists the codes for which filter returns true.
func codeNames(filter func(string) bool) (names []string) {
	all, _ := codepage.All()
	for _, e := range all {
		if filter(e.Code) && !slices.Contains(names, e.Code) {
			names = append(names, e.Code)
		}
	}
	return names
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func machineCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "machine",
		Short: "Let machines join with keys of their own",
		Long: `Let machines join with keys of their own. A person adds a machine with its node name and its
public key. When the machine boots, it proves the key to a kubejoin server. Then it gets a
token for one node with this name, which expires after 15 minutes. So user data and disk images
need no secret.

  1. kubejoin machine print-join-command prints a script or user data, the same for all machines
  2. kubejoin machine add NAME --key KEY adds a machine; its console shows KEY
  3. kubejoin machine list shows which machines have a token, and kubejoin explain NAME shows
     whether a machine has joined`,
	}, machineAddCommand(), machineListCommand(), machineGetCommand(), machineDeleteCommand(), machinePrintJoinCommand())
}

// machineAddOptions are the flags of machine add.
type machineAddOptions struct {
	remoteOptions
	output
	spec          api.MachineSpec
	keyFile, file string
	ttl, duration time.Duration
	dryRun        bool
}

func machineAddCommand() *cobra.Command {
	var o machineAddOptions
	cmd := &cobra.Command{
		Use:   "add {NAME --key KEY | -f FILE}",
		Short: "Add machines with their public keys",
		Long: `Add machines with their public keys. NAME is the node name. Once the machine is added, no
token of another machine can take this name.

KEY is a public key in PEM or as a line of OpenSSH, the SHA-256 of a key as sha256:HEX, or the
four words that the machine's console and 'kubejoin machine list --pending' show. With words,
the first proven key that has these words becomes the key of the machine.

-f adds many machines from a CSV, YAML or JSON file. The first row of CSV names the columns.
They are the same as the fields of YAML and JSON; node and key are required. In CSV, spaces
separate the entries of a list, and an empty cell means the default:

  node,key,ttl,nodeLabels
  worker-7,lusab-babad-gutih-tugad,7d,rack=a zone=b

The command checks the whole file before it adds the first machine. You can repeat the command:
it does not change machines that were added before. The exit code is 1 if a machine could not be
added.

Without --ttl and --expires, the machine never expires. A server can require a permission for
this.` + remoteHelp,
		Example: `  kubejoin machine add worker-7 --key lusab-babad-gutih-tugad

  # with its public key; the machine must join within a week
  kubejoin machine add worker-7 --key-file worker-7.pub --ttl 7d

  # the machines of a rack
  kubejoin machine add -f rack.csv --dry-run
  kubejoin machine add -f rack.csv`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			machines, err := o.machines(cmd, args)
			if err != nil {
				return explain(err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.add(ctx, cmd, r, machines) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&o.spec.Key, "key", "", "public key of the machine, its sha256:HEX, or its four words")
	f.StringVar(&o.keyFile, "key-file", "", "file with the public key, instead of --key; - is standard input")
	f.BoolVar(&o.spec.Replace, "replace", false, "add the machine even if a Node or a token has the name; the machine can join once no Ready Node has this name")
	durationVar(f, &o.ttl, "ttl", 0, "how long the machine can prove its key, for example 12h or 7d (0: it never expires)")
	f.StringVar(&o.spec.Expires, "expires", "", "time until which the machine can prove its key, instead of --ttl, for example 2030-01-31T12:00:00Z")
	certificateFlags(f, &o.duration, &o.spec.Role, &o.spec.Rejoin)
	propertyFlags(f, &o.spec.NodeLabels, &o.spec.NodeTaints, &o.spec.NodeReadyAfter, "")
	heading(f, "Machine flags")
	f.StringVarP(&o.file, "file", "f", "", "CSV, YAML or JSON file with machines; - is standard input")
	f.BoolVar(&o.dryRun, "dry-run", false, "check the machines, but add none")
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

// maxKeyFile is the largest size of a file with a public key, in bytes.
const maxKeyFile = 64 << 10

// machines returns the machines that the command line describes.
func (o *machineAddOptions) machines(cmd *cobra.Command, args []string) (machineFile, error) {
	var m mistakes
	if o.file != "" {
		m.when(len(args) > 0, "NAME: excludes --file, which has the names")
		m.excludes(o.given, "excludes --file, which has its own", "key", "key-file", "replace", "ttl", "expires", "certificate-duration", "role", "rejoin", "node-label", "node-taint", "node-ready-after")
		if len(m) > 0 {
			return machineFile{}, m.err()
		}
		return readMachines(cmd, o.file)
	}
	m.when(len(args) != 1, "NAME: %d given, want one node name, or --file", len(args))
	if len(args) == 1 {
		o.spec.Node = args[0]
		m.in("NAME", tokens.CheckNodeName(o.spec.Node))
	}
	m.when((o.spec.Key == "") == (o.keyFile == ""), "--key: want --key or --key-file, and not both")
	if len(m) == 0 && o.keyFile != "" {
		key, err := readInput(cmd, o.keyFile, maxKeyFile)
		m.in("--key-file", err)
		o.spec.Key = string(key)
	}
	if o.given("ttl") {
		o.spec.TTL = o.ttl.String()
	}
	if o.given("certificate-duration") {
		o.spec.CertificateDuration = o.duration.String()
	}
	if len(m) > 0 {
		return machineFile{}, m.err()
	}
	_, err := operations.CheckMachine(o.spec)
	return machineFile{specs: []api.MachineSpec{o.spec}}, err
}

// add sends machines in parts, and prints the result of each machine.
func (o *machineAddOptions) add(ctx context.Context, cmd *cobra.Command, r *remote, machines machineFile) error {
	all := api.MachineList{APIVersion: api.GroupVersion, Kind: api.KindMachineList, Items: []api.Machine{}}
	failed, last, text := 0, time.Now(), o.format == "text" || o.format == "name"
	var stopped error
	for _, part := range api.SplitMachines(machines.specs) {
		added, err := r.AddMachines(ctx, api.AddMachines{Items: part, DryRun: o.dryRun})
		if reason := reasonOf(err); machines.name != "" && (reason == "machine-exists" || reason == "name-in-use") { // a part with one machine fails as a whole
			added.Items, err = []api.Machine{{Node: part[0].Node, Result: api.MachineFailed, Problem: err.Error()}}, nil
		}
		if err == nil && text {
			err = o.added(cmd.OutOrStdout(), added, added.Items)
		}
		if err != nil {
			stopped = machines.located(err, len(all.Items))
			break
		}
		all.Items = append(all.Items, added.Items...)
		for _, m := range added.Items {
			failed += map[string]int{api.MachineFailed: 1}[m.Result]
		}
		if time.Since(last) >= longWait {
			last = time.Now()
			progress(cmd, "%d of %d machines sent", len(all.Items), len(machines.specs))
		}
	}
	if stopped != nil && len(all.Items) > 0 {
		stopped = fmt.Errorf("%w; %d of %d machines were sent before: repeat the command", stopped, len(all.Items), len(machines.specs))
	}
	if failed > 0 {
		stopped = errors.Join(stopped, fmt.Errorf("%d of %d failed", failed, len(machines.specs)))
	}
	var object any = all
	switch {
	case text, len(all.Items) == 0:
		return stopped
	case machines.name == "":
		object = all.Items[0]
	}
	return cmp.Or(o.added(cmd.OutOrStdout(), object, all.Items), stopped)
}

// added prints the results of machine add.
func (o *output) added(w io.Writer, object any, items []api.Machine) error {
	return list(o, w, object, items, machineNode, nil, func(m api.Machine) []string {
		result := m.Result
		switch result {
		case api.MachineAdded:
			result = did(m.DryRun, result)
		case api.MachineFailed:
			result += ": " + m.Problem
		}
		return []string{"machine " + m.Node + " " + result}
	})
}

func machineNode(m api.Machine) string { return m.Node }

// machines prints machines.
func (o *output) machines(w io.Writer, object any, items []api.Machine) error {
	now := time.Now()
	columns := []string{"NODE", "FINGERPRINT", "ROLE", "AGE", "EXPIRES", "STATE"}
	if o.format == "wide" {
		columns = append(columns, "KEY", "ADDED-BY", "TOKEN")
	}
	return list(o, w, object, items, machineNode, columns, func(m api.Machine) []string {
		row := []string{m.Node, m.Fingerprint, cmp.Or(m.Role, "worker"), age(m.Added, now), stamp(m.Expires, "<never>"), m.State}
		if o.format == "wide" {
			row = append(row, orNone(m.Key), orNone(m.AddedBy), orNone(m.Token))
		}
		return row
	})
}

func machineListCommand() *cobra.Command {
	var o struct {
		remoteOutput
		pending bool
	}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List machines, or handshakes with unknown keys",
		Long: `List machines with keys of their own. The state is waiting (no token yet), got-token (the
machine proved its key and got a token), expired, revoked, or cloned (another machine proves the
key of a Node that is Ready). -o wide adds the key, the user who added the machine, and its last
token.

--pending lists handshakes of the last hour with keys that kubejoin did not know for this node
name. A machine that was added meanwhile stays in this list until it gets a token. Anyone who
reaches the server can prove a key of their own under any name. So compare the words with the
console of the machine before you add the machine. Each replica of a kubejoin server keeps its
own list, in memory.` + remoteHelp,
		Example: `  kubejoin machine list
  kubejoin machine list --pending --url https://join.example.com:9443`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if o.pending && r.server == nil {
					return usagef("--pending: needs a kubejoin server, want --url https://HOST:PORT: each replica keeps these handshakes in its memory")
				}
				if o.pending {
					pending, err := r.server.ListPendingMachines(ctx)
					if err != nil {
						return err
					}
					return o.handshakes(cmd.OutOrStdout(), pending)
				}
				machines, err := r.ListMachines(ctx)
				if err != nil {
					return err
				}
				return o.machines(cmd.OutOrStdout(), machines, machines.Items)
			})
		},
	}
	cmd.Flags().BoolVar(&o.pending, "pending", false, "list handshakes with unknown keys")
	o.output.register(cmd, "text", "wide")
	o.remoteOptions.register(cmd)
	return cmd
}

// handshakes prints handshakes with unknown keys.
func (o *output) handshakes(w io.Writer, pending api.PendingMachineList) error {
	now := time.Now()
	columns := []string{"NODE", "FINGERPRINT", "FROM", "AGE", "LAST"}
	if o.format == "wide" {
		columns = append(columns, "KEY")
	}
	return list(o, w, pending, pending.Items, func(m api.PendingMachine) string { return m.Node }, columns, func(m api.PendingMachine) []string {
		row := []string{m.Node, m.Fingerprint, orNone(m.From), age(m.First, now), age(m.Last, now)}
		if o.format == "wide" {
			row = append(row, m.Key)
		}
		return row
	})
}

func machineGetCommand() *cobra.Command {
	var o remoteOutput
	cmd := &cobra.Command{
		Use:     "get NAME",
		Short:   "Show one machine",
		Long:    `Show one machine with a key of its own, like 'kubejoin machine list'.` + remoteHelp,
		Example: `  kubejoin machine get worker-7 -o yaml`,
		Args:    oneArg("NAME", "one node name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			if m.in("NAME", tokens.CheckNodeName(args[0])); len(m) > 0 {
				return m.err()
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				machine, err := r.GetMachine(ctx, args[0])
				if err != nil {
					return err
				}
				return o.machines(cmd.OutOrStdout(), machine, []api.Machine{machine})
			})
		},
		ValidArgsFunction: o.offer(1, listMachineNames),
	}
	o.output.register(cmd, "text", "wide")
	o.remoteOptions.register(cmd)
	return cmd
}

func machineDeleteCommand() *cobra.Command {
	var o struct {
		remoteOptions
		dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "delete NAME…",
		Short: "Delete machines, so that their keys no longer let them join",
		Long: `Delete machines and their last tokens. These machines can no longer join with their keys.
Tokens can take the node names once no Node has them. Certificates stay valid: to lock out a
machine that has joined, run 'kubejoin revoke NAME'. This also revokes its key.

The command prints a line for each name. The exit code is 1 if it could not delete one of them.` + remoteHelp,
		Example: `  kubejoin machine delete worker-7`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			m.when(len(args) == 0, "NAME: none given, want one node name or several")
			for _, name := range args {
				m.in("NAME", tokens.CheckNodeName(name))
			}
			if len(m) > 0 {
				return m.err()
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				return each(cmd, args, func(name string) (string, error) {
					deleted, err := r.DeleteMachine(ctx, name, api.DeleteMachine{DryRun: o.dryRun})
					if err != nil {
						return "", err
					}
					warn(cmd, deleted.Warnings...)
					return "machine " + deleted.Node + " " + did(o.dryRun, "deleted"), nil
				})
			})
		},
		ValidArgsFunction: o.offer(many, listMachineNames),
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be deleted, but delete nothing")
	o.register(cmd)
	return cmd
}

// listMachineNames lists the node names of machines with keys of their own.
func listMachineNames(ctx context.Context, r *remote) (names []string) {
	machines, _ := r.ListMachines(ctx)
	for _, m := range machines.Items {
		names = append(names, m.Node)
	}
	return names
}

func machinePrintJoinCommand() *cobra.Command {
	var o struct {
		remoteOptions
		asked api.PrintMachineJoin
	}
	cmd := &cobra.Command{
		Use:   "print-join-command",
		Short: "Print a script or user data for machines that join with their keys",
		Long: `Print a script or user data for machines that join with their keys. It has no secret and can
be the same for all machines. If a machine has no key, it creates one. It prints the words of
the key on its console, and joins once you have added it with 'kubejoin machine add'.` + remoteHelp,
		Example: `  # user data for machines whose host name is their node name
  kubejoin machine print-join-command --format cloud-config

  # with a kubeconfig
  kubejoin machine print-join-command --endpoint join.example.com:9443`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if r.cluster != nil && o.asked.Endpoint == "" {
					return usagef("--endpoint: none given, want the HOST:PORT of a kubejoin server, which a kubeconfig does not name")
				}
				document, err := r.PrintMachineJoin(ctx, o.asked)
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(document)
				return err
			})
		},
	}
	f := cmd.Flags()
	nodeVar(f, &o.asked.Node, "node", "node name (default: the host name of each machine)")
	f.StringVar(&o.asked.Endpoint, "endpoint", "", "HOST:PORT of the kubejoin server at which machines prove their keys (default: that of --url)")
	choiceVar(f, &o.asked.Format, "format", api.FormatScript, "format: %s", api.FormatScript, api.FormatCloudConfig, api.FormatIgnition)
	o.offerFlag(cmd, "node", listMachineNames)
	o.register(cmd)
	return cmd
}

// maxMachineFile is the largest size of a file with machines, in bytes.
const maxMachineFile = 16 << 20

// maxFileErrors is how many errors in a file a command prints.
const maxFileErrors = 20

// A machineFile has the machines of a file. Without a name, it has the machine of the command line.
type machineFile struct {
	name  string
	specs []api.MachineSpec
	lines []int // where each machine begins
}

// readMachines reads and checks all machines of a file.
func readMachines(cmd *cobra.Command, file string) (f machineFile, err error) {
	content, err := readInput(cmd, file, maxMachineFile)
	if err != nil {
		return f, fmt.Errorf("--file: %w", err)
	}
	if f.name = file; file == "-" {
		f.name = "standard input"
	}
	start := strings.TrimSpace(string(content[:min(len(content), 100)]))
	var items []any
	switch ext := filepath.Ext(file); {
	case bytes.Contains(content, []byte("PRIVATE KEY-----")):
		err = errors.New("the file has a private key, want only public keys")
	case ext == ".csv" || ext != ".yaml" && ext != ".yml" && ext != ".json" && !strings.ContainsAny(start[:min(len(start), 1)], "[-#"):
		items, err = f.csv(content)
	default:
		items, err = f.yaml(content)
	}
	if err == nil && len(items) == 0 {
		err = errors.New("the file has no machines")
	}
	if err != nil {
		return f, fmt.Errorf("%s: %w", f.name, err)
	}
	text, err := json.Marshal(items)
	if err != nil {
		return f, fmt.Errorf("%s: want only text as the names of fields", f.name)
	}
	if err = web.ReadItems(text, &f.specs); err == nil {
		err = f.check()
	}
	return f, f.located(err, 0)
}

// csv returns the rows of CSV as objects, without empty cells.
func (f *machineFile) csv(content []byte) (items []any, err error) {
	rows := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf")))) // spreadsheets write this mark
	header, err := rows.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err == nil && !(slices.Contains(header, "node") && slices.Contains(header, "key")) {
		err = errors.New("line 1: want the names of the columns, separated by commas, with node and key")
	}
	for err == nil {
		var row []string
		if row, err = rows.Read(); errors.Is(err, io.EOF) {
			return items, nil
		} else if err != nil {
			break
		}
		item := map[string]any{}
		for i, cell := range row {
			switch name := header[i]; {
			case name != "" && slices.Contains(header[:i], name):
				return nil, fmt.Errorf("line 1: column %s given twice", name)
			case cell == "" && (name == "" || isMachineField(name)): // spreadsheets write columns without a name
			case name == "nodeLabels" || name == "nodeTaints":
				item[name] = strings.Fields(cell)
			case name == "replace" && (strings.EqualFold(cell, "true") || strings.EqualFold(cell, "false")): // spreadsheets write TRUE
				item[name] = strings.EqualFold(cell, "true")
			default:
				item[name] = cell
			}
		}
		line, _ := rows.FieldPos(0)
		items, f.lines = append(items, item), append(f.lines, line)
	}
	return nil, err
}

// isMachineField reports whether a machine has a field of this name.
func isMachineField(name string) bool {
	text, err := json.Marshal(map[string]any{name: nil})
	fields := json.NewDecoder(bytes.NewReader(text))
	fields.DisallowUnknownFields()
	return err == nil && fields.Decode(new(api.MachineSpec)) == nil
}

// yaml returns the items of a list in YAML or JSON.
func (f *machineFile) yaml(content []byte) (items []any, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var root, second yaml.Node
	err = decoder.Decode(&root)
	switch {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	case root.Content[0].Kind != yaml.SequenceNode:
		return nil, errors.New("want a list of machines, each with node and key")
	case !errors.Is(decoder.Decode(&second), io.EOF):
		return nil, errors.New("want one YAML document, not several")
	}
	for _, item := range root.Content[0].Content {
		f.lines = append(f.lines, item.Line)
	}
	err = root.Decode(&items)
	return items, err
}

// check returns the errors in machines that need no cluster to find, and names and keys that the file has twice.
func (f *machineFile) check() error {
	var problems api.InvalidFields
	first := map[string]int{} // by name, and by the words of the key
	for i, spec := range f.specs {
		key, err := operations.CheckMachine(spec)
		invalid := fieldProblems(err)
		for _, once := range [][3]string{{"node", "node name", spec.Node}, {"key", "fingerprint", cmp.Or(tokens.Words(key), key)}} {
			field, what, value := once[0], once[1], once[2]
			if at, found := first[field+value]; found && value != "" {
				invalid = append(invalid, api.InvalidField(field, "line %d has the same %s", f.lines[at], what)...)
			}
			first[field+value] = i
		}
		for _, p := range invalid {
			problems = append(problems, api.FieldProblem{Field: api.ItemField(i, p.Field), Detail: p.Detail})
		}
		if len(problems) >= maxFileErrors {
			break
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}

// located adds the lines of the file to an error about items. from is the number of items in earlier requests.
func (f *machineFile) located(err error, from int) error {
	var errs []error
	for _, p := range fieldProblems(err) {
		if item, field, ok := p.Item(); ok && from+item < len(f.lines) {
			errs = append(errs, fmt.Errorf("%s: line %d, machine %d: %s", f.name, f.lines[from+item], from+item+1, field))
		}
	}
	return cmp.Or(errors.Join(errs...), err)
}

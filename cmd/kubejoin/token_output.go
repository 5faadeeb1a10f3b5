package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// An output is how objects are printed: --output.
type output struct {
	format   string
	known    []string // formats beside jsonpath
	template *jsonpath.JSONPath
}

const jsonpathFormat = "jsonpath="

func (o *output) register(cmd *cobra.Command, known ...string) {
	o.known = append(known, "json", "yaml", "name")
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", strings.Join(o.known, ", ")+" or jsonpath=TEMPLATE")
	// Fails for a flag that there is not.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(append(slices.Clone(o.known), jsonpathFormat), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// check refuses what cannot be printed, before anything is done.
func (o *output) check() error {
	if text, found := strings.CutPrefix(o.format, jsonpathFormat); found {
		o.template = jsonpath.New("output").AllowMissingKeys(true)
		if err := o.template.Parse(text); err != nil || text == "" {
			return &usageError{err: fmt.Errorf("--output: %q is no template such as jsonpath={.items[*].id}", o.format)}
		}
		return nil
	}
	if !slices.Contains(o.known, o.format) {
		return &usageError{err: fmt.Errorf("--output: %q given, want %s or jsonpath=TEMPLATE", o.format, strings.Join(o.known, ", "))}
	}
	return nil
}

// object prints what is one object for machines, and reports whether that was asked for.
func (o *output) object(w io.Writer, object any) (done bool, err error) {
	switch {
	case o.template != nil:
		content, err := json.Marshal(object)
		if err != nil {
			return true, err
		}
		var fields any // by the names that json and yaml show
		if err := json.Unmarshal(content, &fields); err != nil {
			return true, err
		}
		return true, o.template.Execute(w, fields)
	case o.format == "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "    ")
		e.SetEscapeHTML(false)
		return true, e.Encode(object)
	case o.format == "yaml":
		content, err := yaml.Marshal(object)
		if err == nil {
			_, err = w.Write(content)
		}
		return true, err
	}
	return false, nil
}

// tokens prints several tokens as list, which is of a list's kind or one token alone.
func (o *output) tokens(w io.Writer, list any, items []api.Token) error {
	if done, err := o.object(w, list); done {
		return err
	}
	switch o.format {
	case "name":
		for _, t := range items {
			if _, err := fmt.Fprintln(w, t.ID); err != nil {
				return err
			}
		}
		return nil
	case "csv":
		return tokenCSV(w, items)
	}
	return tokenTable(w, items, o.format == "wide", time.Now())
}

// tokenCSV prints lines of a file for kube-apiserver's --token-auth-file, which make the same user
// of a token as its authenticator of bootstrap tokens does.
func tokenCSV(w io.Writer, items []api.Token) error {
	lines := csv.NewWriter(w)
	for _, t := range items {
		if t.Token == "" || !slices.Contains(t.Usages, api.UsageAuthentication) {
			continue
		}
		groups := append([]string{"system:bootstrappers"}, t.Groups...)
		if err := lines.Write([]string{t.Token.Reveal(), "system:bootstrap:" + t.ID, "", strings.Join(groups, ",")}); err != nil {
			return err
		}
	}
	lines.Flush()
	return lines.Error()
}

// tokenTable prints kubeadm's columns and, if it is to be wide, more.
func tokenTable(w io.Writer, items []api.Token, wide bool, now time.Time) error {
	if len(items) == 0 {
		return nil // not even a heading, as kubeadm
	}
	columns := []string{"TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"}
	if wide {
		columns = append(columns, "STATUS", "NODES", "JOINED", "LIMITS", "AGE", "PROBLEM")
	}
	rows := [][]string{columns}
	for _, t := range items {
		name, ttl, expires := t.ID, "<forever>", "<never>"
		if t.Token != "" {
			name = t.Token.Reveal()
		}
		if !t.Expires.IsZero() {
			ttl, expires = duration.ShortHumanDuration(t.Expires.Sub(now)), t.Expires.UTC().Format(time.RFC3339)
		}
		row := []string{name, ttl, expires, orNone(t.Usages...), orNone(t.Description), orNone(t.Groups...)}
		if wide {
			row = append(row, t.Status, places(t), orNone(t.Nodes...), orNone(limits(t)...), age(t.Created, now), orNone(t.Problem))
		}
		rows = append(rows, row)
	}
	return table(w, rows)
}

// table lines columns up, three spaces apart as kubeadm. What others have stored is text and no more.
func table(w io.Writer, rows [][]string) error {
	lines := tabwriter.NewWriter(w, 10, 4, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = foreign.Printable(cell)
		}
		if _, err := fmt.Fprintln(lines, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return lines.Flush()
}

func orNone(list ...string) string {
	if s := strings.Join(list, ","); s != "" {
		return s
	}
	return "<none>"
}

// places is how many nodes have joined of how many may.
func places(t api.Token) string {
	most := "<any>"
	switch {
	case t.ReplacesNode != nil:
		most = "1"
	case t.MaxNodes > 0:
		most = strconv.Itoa(t.MaxNodes)
	case len(t.Nodes) == 0: // they are not counted
		return most
	}
	return strconv.Itoa(len(t.Nodes)) + "/" + most
}

// limits are what a token is good for, but for the number of nodes.
func limits(t api.Token) []string {
	var list []string
	if len(t.NodeNames) > 0 {
		list = append(list, "names="+strings.Join(t.NodeNames, "|"))
	}
	if t.ReplacesNode != nil {
		list = append(list, "replaces="+t.ReplacesNode.Name)
	}
	if t.CertificateDuration != "" {
		list = append(list, "certificates="+t.CertificateDuration)
	}
	if t.Role != "" {
		list = append(list, "role="+t.Role)
	}
	return list
}

func age(created, now time.Time) string {
	if created.IsZero() {
		return "<unknown>"
	}
	return duration.ShortHumanDuration(now.Sub(created))
}

package server

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
)

// A joinFormat is a form in which it is said how to join.
type joinFormat struct {
	name        string
	contentType string
	write       func(joinformat.Join) ([]byte, error) // nil is JSON, which says when the token ends
}

// The types are those by which cloud-init and Ignition know theirs; YAML's is RFC 9512.
var joinFormats = []joinFormat{
	{api.FormatText, "text/plain; charset=utf-8", joinformat.Join.Line},
	{api.FormatJSON, "application/json", nil},
	{api.FormatYAML, "application/yaml", joinformat.Join.Configuration},
	{api.FormatKubeconfig, "application/yaml", joinformat.Join.Kubeconfig},
	{api.FormatCloudConfig, "text/cloud-config; charset=utf-8", joinformat.Join.CloudConfig},
	{api.FormatIgnition, "application/vnd.coreos.ignition+json; version=3.0.0", joinformat.Join.Ignition},
	{api.FormatScript, "text/x-shellscript; charset=utf-8", joinformat.Join.Script},
}

// JoinFormats are the names of all formats.
func JoinFormats() []string {
	names := make([]string, len(joinFormats))
	for i, f := range joinFormats {
		names[i] = f.name
	}
	return names
}

// WriteJoin writes how to join in the format of that name, as POST /v1/token/print-join-command
// answers it; expires is the end of the token, and zero if it has none.
func WriteJoin(format string, j joinformat.Join, expires time.Time) ([]byte, error) {
	f, err := findJoinFormat(format)
	if err != nil {
		return nil, err
	}
	return f.join(j, expires)
}

func (f joinFormat) join(j joinformat.Join, expires time.Time) ([]byte, error) {
	if f.write != nil {
		return f.write(j)
	}
	line, err := j.Line()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(api.JoinCommand{
		APIVersion: api.Version, Kind: api.KindJoinCommand,
		ID: j.Token.ID(), Token: api.Secret(j.Token.Reveal()), Expires: expires,
		Endpoint: j.Endpoint, CACertHashes: clusterinfo.Pins(j.CAs), APIServer: j.Server, CABundle: j.Bundle(),
		JoinCommand: api.Secret(strings.TrimSpace(string(line))),
	})
	return append(body, '\n'), err
}

// findJoinFormat gives the format of that name; an empty one is text.
func findJoinFormat(name string) (joinFormat, error) {
	if name == "" {
		name = api.FormatText
	}
	for _, f := range joinFormats {
		if f.name == name {
			return f, nil
		}
	}
	return joinFormat{}, fmt.Errorf("%q given, want %s", foreign.Text(name, maxField), enumerate(JoinFormats(), "or"))
}

// enumerate is words as a person reads them.
func enumerate(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}

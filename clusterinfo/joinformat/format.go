package joinformat

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/tokens"
)

// A Format is a form in which a [Join] can be written. Formats never change their names.
type Format struct {
	Name string
	// ContentType is the media type that cloud-init and Ignition recognize. RFC 9512 registers the media type
	// of YAML.
	ContentType string
	Write       func(Join) ([]byte, error)
	taint       bool // whether the format can contain Join.JoiningTaint
	machine     bool // whether the format can be for a Join.Machine
}

var formats = []Format{
	{"text", "text/plain; charset=utf-8", Join.Line, false, false},
	{"json", "application/json", Join.JSON, false, false},
	{"yaml", "application/yaml", Join.Configuration, true, false},
	{"kubeconfig", "application/yaml", Join.Kubeconfig, false, false},
	{"cloud-config", "text/cloud-config; charset=utf-8", Join.CloudConfig, true, true},
	{"ignition", "application/vnd.coreos.ignition+json; version=3.0.0", Join.Ignition, true, true},
	{"script", "text/x-shellscript; charset=utf-8", Join.Script, true, true},
}

// Formats returns the names of all formats.
func Formats() []string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = f.Name
	}
	return names
}

// maxName is the maximum length of an unknown name in an error, in bytes.
const maxName = 40

// FindFormat returns the format of that name. An empty name is text.
func FindFormat(name string) (Format, error) {
	if name == "" {
		return formats[0], nil
	}
	for _, f := range formats {
		if f.Name == name {
			return f, nil
		}
	}
	return Format{}, fmt.Errorf("%q given, want %s", safetext.Text(name, maxName), safetext.List(Formats(), "or"))
}

// Write returns j in the format of that name.
func (j Join) Write(format string) ([]byte, error) {
	f, err := FindFormat(format)
	if err == nil && j.JoiningTaint {
		err = f.CheckTaint()
	}
	if err == nil && j.Machine {
		err = f.CheckMachine()
	}
	if err != nil {
		return nil, err
	}
	return f.Write(j)
}

// CheckTaint returns an error if the format cannot contain [Join.JoiningTaint].
func (f Format) CheckTaint() error {
	return f.check(func(f Format) bool { return f.taint }, "has no place for the taint "+tokens.JoiningTaint)
}

// CheckMachine returns an error if the format cannot be for a [Join.Machine].
func (f Format) CheckMachine() error {
	return f.check(func(f Format) bool { return f.machine }, "needs a token, and cannot be for a machine with a key of its own")
}

// check returns an error with the problem if fit is false for the format.
func (f Format) check(fit func(Format) bool, problem string) error {
	if fit(f) {
		return nil
	}
	var names []string
	for _, f := range formats {
		if fit(f) {
			names = append(names, f.Name)
		}
	}
	return fmt.Errorf("format %s %s, want one of %s", f.Name, problem, strings.Join(names, ", "))
}

// joinDocument is the JoinCommand of package server/api.
type joinDocument struct {
	APIVersion     string    `json:"apiVersion"`
	Kind           string    `json:"kind"`
	ID             string    `json:"id"`
	Token          string    `json:"token"`
	Expires        time.Time `json:"expires,omitzero"`
	Endpoint       string    `json:"endpoint"`
	CACertHashes   []string  `json:"caCertHashes"`
	APIServer      string    `json:"apiServer"`
	CABundle       string    `json:"caBundle"`
	JoinCommand    string    `json:"joinCommand"`
	CertificateKey string    `json:"certificateKey,omitempty"`
	Warnings       []string  `json:"warnings,omitempty"`
}

// JSON returns a JoinCommand of package server/api, with a newline. It contains each field of j separately.
func (j Join) JSON() ([]byte, error) {
	line, err := j.Line()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(joinDocument{
		APIVersion: "output.kubejoin.io/v1alpha1", Kind: "JoinCommand",
		ID: j.Token.ID(), Token: j.Token.Reveal(), Expires: j.Expires,
		Endpoint: j.Endpoint, CACertHashes: clusterinfo.Pins(j.CAs), APIServer: j.Server, CABundle: j.Bundle(),
		JoinCommand: strings.TrimSpace(string(line)), CertificateKey: j.CertificateKey.Reveal(), Warnings: j.Warnings,
	})
	return append(body, '\n'), err
}

// Command ignition parses an Ignition 3 config from standard input with Ignition's own parser, and prints the resulting
// files and units as JSON. It fails if Ignition reports an error or a warning. It is a separate module, so that importers
// of kubejoin do not require Ignition.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"
	v3_0 "github.com/coreos/ignition/v2/config/v3_0"
	newest "github.com/coreos/ignition/v2/config/v3_5"
	"github.com/vincent-petithory/dataurl"
)

type machine struct {
	Files []file
	Units []service
}

type file struct {
	Path    string
	Mode    int
	Content []byte
}

type service struct {
	Name    string
	Enabled bool
	// Options has the values in the unit by Section.Name, in file order.
	Options map[string][]string
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "ignition:", err)
		os.Exit(1)
	}
}

func run(r io.Reader, w io.Writer) error {
	document, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	// The parser of version 3.0 parses the config as written. The newest parser translates it to the current version.
	config, found, err := v3_0.Parse(document)
	if err != nil || len(found.Entries) > 0 {
		return fmt.Errorf("as 3.0: %w\n%s", errOf(err), found.String())
	}
	if _, found, err := newest.ParseCompatibleVersion(document); err != nil || len(found.Entries) > 0 {
		return fmt.Errorf("as the newest: %w\n%s", errOf(err), found.String())
	}
	var m machine
	for _, f := range config.Storage.Files {
		if f.Mode == nil || f.Contents.Source == nil {
			return fmt.Errorf("%s: no mode or no contents", f.Path)
		}
		content, err := dataurl.DecodeString(*f.Contents.Source)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		data := content.Data
		if f.Contents.Compression != nil && *f.Contents.Compression == "gzip" {
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
			if data, err = io.ReadAll(r); err != nil {
				return fmt.Errorf("%s: %w", f.Path, err)
			}
		}
		m.Files = append(m.Files, file{f.Path, *f.Mode, data})
	}
	for _, u := range config.Systemd.Units {
		if u.Contents == nil || u.Enabled == nil {
			return fmt.Errorf("%s: no contents, or not said whether it is enabled", u.Name)
		}
		options, err := unit.Deserialize(strings.NewReader(*u.Contents))
		if err != nil {
			return fmt.Errorf("%s: %w", u.Name, err)
		}
		s := service{u.Name, *u.Enabled, map[string][]string{}}
		for _, o := range options {
			name := o.Section + "." + o.Name
			s.Options[name] = append(s.Options[name], o.Value)
		}
		m.Units = append(m.Units, s)
	}
	return json.NewEncoder(w).Encode(m)
}

func errOf(err error) error {
	if err == nil {
		return errors.New("it has warnings")
	}
	return err
}

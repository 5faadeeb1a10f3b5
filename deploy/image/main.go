// Command image makes the files of a release from binaries of kubejoin: for each binary an SBOM in SPDX format, and for
// each Linux binary an OCI image. It needs no container engine and no registry. `make image` and `make release` run it.
package main

import (
	"bytes"
	"debug/buildinfo"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
)

// source describes the commit of a release. The same source makes the same files, byte by byte.
type source struct {
	version  string
	revision string
	time     time.Time // time of the commit
}

func main() {
	var s source
	flag.StringVar(&s.version, "version", "", "version of the release")
	flag.StringVar(&s.revision, "revision", "", "full hash of the commit")
	epoch := flag.Int64("epoch", 0, "time of the commit in seconds since 1970")
	flag.Parse()
	s.time = time.Unix(*epoch, 0).UTC()
	if s.version == "" || s.revision == "" || *epoch <= 0 || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "image: want -version, -revision, -epoch and files")
		os.Exit(2)
	}
	for _, file := range flag.Args() {
		if err := convert(file, s); err != nil {
			fmt.Fprintf(os.Stderr, "image: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

// convert writes FILE.spdx.json, and for a Linux binary FILE.image.tar. In a chart archive, whose name ends in .tgz, it
// only sets all times to the time of the commit, because helm writes the current time.
func convert(file string, s source) error {
	if strings.HasSuffix(file, ".tgz") {
		return setTimes(file, s.time)
	}
	binary, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return err
	}
	var platform v1.Platform
	for _, setting := range info.Settings {
		switch setting.Key {
		case "GOOS":
			platform.OS = setting.Value
		case "GOARCH":
			platform.Architecture = setting.Value
		}
	}
	var image v1.Image
	if platform.OS == "linux" {
		if image, err = newImage(binary, platform, s); err != nil {
			return err
		}
		archive, err := imageArchive(image, platform, s)
		if err != nil {
			return err
		}
		if err := write(file+".image.tar", archive); err != nil {
			return err
		}
	}
	sbom, err := newSBOM(filepath.Base(file), binary, info, image, s)
	if err != nil {
		return err
	}
	return write(file+".spdx.json", sbom)
}

func write(file string, content []byte) error {
	fmt.Println(file)
	return os.WriteFile(file, content, 0o644)
}

package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	repository = "ghcr.io/kubejoin/kubejoin"
	entryPoint = "/usr/local/bin/kubejoin"
)

// newImage returns an image of one layer: the binary and CA certificates.
func newImage(binary []byte, platform v1.Platform, s source) (v1.Image, error) {
	files, err := newArchive([]file{
		{"etc/", 0o755, nil},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"etc/ssl/certs/ca-certificates.crt", 0o444, caCertificates()},
		{"usr/", 0o755, nil},
		{"usr/local/", 0o755, nil},
		{"usr/local/bin/", 0o755, nil},
		{entryPoint[1:], 0o555, binary},
	}, s.time)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: s.time}
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = platform.OS, platform.Architecture, created
	config.Config = v1.Config{
		Entrypoint: []string{entryPoint},
		Env:        []string{"PATH=/usr/local/bin"},
		User:       "65532:65532",
		Labels: map[string]string{
			"org.opencontainers.image.created":  s.time.Format(time.RFC3339),
			"org.opencontainers.image.licenses": license,
			"org.opencontainers.image.revision": s.revision,
			"org.opencontainers.image.source":   "https://" + module,
			"org.opencontainers.image.title":    "kubejoin",
			"org.opencontainers.image.version":  s.version,
		},
	}
	return mutate.ConfigFile(image, config)
}

// caCertificates returns Mozilla's root certificates. It leaves out roots that Mozilla trusts only with a constraint,
// because PEM cannot express the constraint.
func caCertificates() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // writes to a Buffer never fail
		}
	}
	return all.Bytes()
}

// imageArchive returns the image as an OCI image layout. The archive also has the manifest.json of `docker save`, which
// Docker before version 29 needs.
func imageArchive(image v1.Image, platform v1.Platform, s source) ([]byte, error) {
	tag, err := name.NewTag(repository + ":" + s.version)
	if err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	docker := tarball.Descriptor{Config: blob(manifest.Config), RepoTags: []string{tag.Name()}}
	for _, layer := range manifest.Layers {
		docker.Layers = append(docker.Layers, blob(layer))
	}
	dockerManifest, err := json.Marshal(tarball.Manifest{docker})
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kubejoin-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	err = index.AppendImage(image, layout.WithPlatform(platform), layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          tag.Name(),
		"org.opencontainers.image.ref.name": s.version,
	}))
	if err != nil {
		return nil, err
	}
	files := []file{{"manifest.json", 0o444, dockerManifest}}
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		files = append(files, file{name, 0o444, content})
		return err
	})
	if err != nil {
		return nil, err
	}
	return newArchive(files, s.time)
}

// blob returns the path of a blob in an OCI image layout.
func blob(d v1.Descriptor) string {
	return path.Join("blobs", d.Digest.Algorithm, d.Digest.Hex)
}

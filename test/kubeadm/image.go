package kubeadm

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
)

// WriteImage writes an image with one static program as an archive in the format of 'docker save', which containerd
// imports. The program is in /usr/local/bin and is the entry point.
func WriteImage(w io.Writer, image, program string) error {
	archive := tar.NewWriter(w)
	layer, err := writeLayer(archive, program)
	if err != nil {
		return fmt.Errorf("image %s: %w", image, err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Env": []string{"PATH=/usr/local/bin"}, "Entrypoint": []string{binary(program)}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layer}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{"config.json", config}, {"manifest.json", manifest}} {
		if err := archive.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content))}); err != nil {
			return err
		}
		if _, err := archive.Write(file.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// binary returns the path of a program in its image.
func binary(program string) string { return path.Join("/usr/local/bin", path.Base(program)) }

// writeLayer writes the layer, itself an archive, and returns its digest.
func writeLayer(archive *tar.Writer, program string) (digest string, err error) {
	file, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	// The layer consists of one header, the file in blocks of 512 bytes, and two empty blocks.
	const block = 512
	size := block + (info.Size()+block-1)/block*block + 2*block
	if err := archive.WriteHeader(&tar.Header{Name: "layer.tar", Mode: 0o644, Size: size}); err != nil {
		return "", err
	}
	sum := sha256.New()
	layer := tar.NewWriter(io.MultiWriter(archive, sum))
	if err := layer.WriteHeader(&tar.Header{Name: binary(program)[1:], Mode: 0o755, Size: info.Size()}); err != nil {
		return "", err
	}
	if _, err := io.Copy(layer, file); err != nil {
		return "", err
	}
	if err := layer.Close(); err != nil {
		return "", err
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil)), nil
}

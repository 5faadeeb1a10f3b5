package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The release that the tests check, and its commit.
const (
	version = "v1.2.3"
	epoch   = 1767225600 // 2026-01-01
)

var (
	commit string
	dist   string // the release, built in a git clone with a tag
	other  string // the same release, built from the same files in another folder without git
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "kubejoin-release-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = buildTwice(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// buildTwice runs `make release` in two copies of the repository.
func buildTwice(dir string) error {
	clone, plain := filepath.Join(dir, "clone"), filepath.Join(dir, "elsewhere", "plain")
	dist, other = filepath.Join(clone, "dist"), filepath.Join(plain, "dist")
	for _, folder := range []string{clone, plain} {
		if err := copySources(folder); err != nil {
			return err
		}
	}
	script := fmt.Sprintf(`
		git init -q && git add -A
		git -c user.name=test -c user.email=test@example.com commit -q -m test
		git tag %s`, version)
	if _, err := shell(clone, script, fmt.Sprintf("GIT_AUTHOR_DATE=%d +0000", epoch), fmt.Sprintf("GIT_COMMITTER_DATE=%d +0000", epoch)); err != nil {
		return err
	}
	hash, err := shell(clone, "git rev-parse HEAD")
	if err != nil {
		return err
	}
	commit = strings.TrimSpace(hash)
	if _, err := shell(clone, "make release"); err != nil {
		return err
	}
	_, err = shell(plain, fmt.Sprintf("umask 077; make release VERSION=%s COMMIT=%s SOURCE_DATE_EPOCH=%d", version, commit, epoch), "TZ=Asia/Tokyo")
	return err
}

// copySources copies the files of the repository that git does not ignore.
func copySources(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	_, err := shell("../..", "git ls-files --cached --others --exclude-standard --deduplicate | while IFS= read -r f; do test ! -e \"$f\" || printf '%s\\n' \"$f\"; done | tar -c -T - | tar -x -C "+folder)
	return err
}

func shell(dir, script string, env ...string) (string, error) {
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", script, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), nil
}

var platforms = []string{"linux-amd64", "linux-arm64"}

func TestReleaseHasEveryFile(t *testing.T) {
	want := []string{"SHA256SUMS", "kubejoin-1.2.3.tgz", "kubejoin-v1.2.3-manifests.yaml"}
	for _, platform := range append(platforms, "darwin-arm64") {
		want = append(want, "kubejoin-v1.2.3-"+platform, "kubejoin-v1.2.3-"+platform+".spdx.json")
	}
	for _, platform := range platforms {
		want = append(want, "kubejoin-v1.2.3-"+platform+".image.tar")
	}
	slices.Sort(want)
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}

	var sums strings.Builder
	for _, file := range want[1:] {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(read(t, file)), file)
	}
	if got := string(read(t, "SHA256SUMS")); got != sums.String() {
		t.Errorf("SHA256SUMS:\n%swant:\n%s", got, sums.String())
	}
}

// Two builds of the same source must be equal. A difference comes from a time, a path, an umask, or a file that only one
// folder has.
func TestTwoBuildsAreEqual(t *testing.T) {
	first, second := string(read(t, "SHA256SUMS")), ""
	entries, err := os.ReadDir(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(other, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if entry.Name() != "SHA256SUMS" {
			second += fmt.Sprintf("%x  %s\n", sha256.Sum256(content), entry.Name())
		}
	}
	if first != second {
		t.Errorf("first build:\n%ssecond build:\n%s", first, second)
	}
}

func TestBuildWithoutGitNeedsVersion(t *testing.T) {
	_, err := shell(filepath.Dir(other), "make image")
	if want := "pass VERSION, COMMIT and SOURCE_DATE_EPOCH"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}

func TestImageHasLabelsAndUnprivilegedUser(t *testing.T) {
	for _, platform := range platforms {
		config, err := image(t, platform).ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.OS + "-" + config.Architecture; got != platform {
			t.Errorf("platform %s, want %s", got, platform)
		}
		if want := time.Unix(epoch, 0); !config.Created.Equal(want) {
			t.Errorf("%s: created %s, want %s", platform, config.Created, want)
		}
		want := v1.Config{
			Entrypoint: []string{"/usr/local/bin/kubejoin"},
			Env:        []string{"PATH=/usr/local/bin"},
			User:       "65532:65532",
			Labels: map[string]string{
				"org.opencontainers.image.created":  "2026-01-01T00:00:00Z",
				"org.opencontainers.image.licenses": "Apache-2.0",
				"org.opencontainers.image.revision": commit,
				"org.opencontainers.image.source":   "https://github.com/kubejoin/kubejoin",
				"org.opencontainers.image.title":    "kubejoin",
				"org.opencontainers.image.version":  "v1.2.3",
			},
		}
		if got, want := fmt.Sprintf("%+v", config.Config), fmt.Sprintf("%+v", want); got != want {
			t.Errorf("%s: config\n%s\nwant\n%s", platform, got, want)
		}
	}
}

func TestImageHasOnlyBinaryAndCertificates(t *testing.T) {
	const most = 48e6 // bytes, unpacked
	want := []string{
		"drwxr-xr-x etc/", "drwxr-xr-x etc/ssl/", "drwxr-xr-x etc/ssl/certs/", "-r--r--r-- etc/ssl/certs/ca-certificates.crt",
		"drwxr-xr-x usr/", "drwxr-xr-x usr/local/", "drwxr-xr-x usr/local/bin/", "-r-xr-xr-x usr/local/bin/kubejoin",
	}
	for _, platform := range platforms {
		var got []string
		size := 0
		for _, f := range contents(t, image(t, platform)) {
			got = append(got, f.FileInfo().Mode().String()+" "+f.Name)
			size += len(f.content)
			if f.Uid != 0 || f.Gid != 0 || !f.ModTime.Equal(time.Unix(epoch, 0)) {
				t.Errorf("%s: %s is of user %d, group %d and %s, want root and the time of the commit", platform, f.Name, f.Uid, f.Gid, f.ModTime)
			}
			switch f.Name {
			case "usr/local/bin/kubejoin":
				if !bytes.Equal(f.content, read(t, "kubejoin-v1.2.3-"+platform)) {
					t.Errorf("%s: the binary in the image is not the one beside it", platform)
				}
			case "etc/ssl/certs/ca-certificates.crt":
				if n := strings.Count(string(f.content), "BEGIN CERTIFICATE"); n < 100 || !x509.NewCertPool().AppendCertsFromPEM(f.content) {
					t.Errorf("%s: %d CA certificates, want at least 100", platform, n)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant:\n%s", platform, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if size > most {
			t.Errorf("%s: the image has %d bytes, want at most %.0f", platform, size, most)
		}
		t.Logf("%s: %d bytes, as an archive %d", platform, size, len(read(t, "kubejoin-v1.2.3-"+platform+".image.tar")))
	}
}

// containerd takes the name of an image from the annotation io.containerd.image.name, and Docker from manifest.json.
func TestArchiveNamesImageForContainerdAndDocker(t *testing.T) {
	const full = "ghcr.io/kubejoin/kubejoin:v1.2.3"
	for _, platform := range platforms {
		index, err := layout.ImageIndexFromPath(unpack(t, platform))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: invalid image layout: %v", platform, err)
		}
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(manifest.Manifests) != 1 {
			t.Fatalf("%s: %d images, want 1", platform, len(manifest.Manifests))
		}
		descriptor := manifest.Manifests[0]
		if got := descriptor.Annotations["io.containerd.image.name"]; got != full {
			t.Errorf("%s: image name %q, want %q", platform, got, full)
		}
		if got := strings.ReplaceAll(descriptor.Platform.String(), "/", "-"); got != platform {
			t.Errorf("platform %s, want %s", got, platform)
		}
		tag, err := name.NewTag(full)
		if err != nil {
			t.Fatal(err)
		}
		docker, err := tarball.ImageFromPath(filepath.Join(dist, "kubejoin-v1.2.3-"+platform+".image.tar"), &tag)
		if err != nil {
			t.Fatalf("%s: manifest.json: %v", platform, err)
		}
		if err := validate.Image(docker); err != nil {
			t.Errorf("%s: manifest.json: %v", platform, err)
		}
		got, err := docker.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		if want, err := image(t, platform).ConfigName(); err != nil || got != want {
			t.Errorf("%s: manifest.json names config %s, want %s (%v)", platform, got, want, err)
		}
	}
}

// Binaries must be static, because the image has no loader for dynamic binaries.
func TestBinariesAreStaticAndOfTheirPlatform(t *testing.T) {
	for platform, machine := range map[string]elf.Machine{"linux-amd64": elf.EM_X86_64, "linux-arm64": elf.EM_AARCH64} {
		binary, err := elf.Open(filepath.Join(dist, "kubejoin-v1.2.3-"+platform))
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		if binary.Machine != machine {
			t.Errorf("%s: binary of %s", platform, binary.Machine)
		}
		for _, segment := range binary.Progs {
			if segment.Type == elf.PT_INTERP {
				t.Errorf("%s: the binary is not static", platform)
			}
		}
	}
}

// If it runs as root, the test gives the binary only the files and the user of the image.
func TestImageRunsAndPrintsVersion(t *testing.T) {
	platform := "linux-" + runtime.GOARCH
	if !slices.Contains(platforms, platform) {
		t.Skipf("there is no image for %s", platform)
	}
	root, err := os.MkdirTemp("", "kubejoin-root-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range contents(t, image(t, platform)) {
		path := filepath.Join(root, f.Name)
		if f.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, f.FileInfo().Mode())
		} else {
			err = os.WriteFile(path, f.content, f.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := &exec.Cmd{Path: filepath.Join(root, entryPoint), Args: []string{entryPoint, "version"}, Env: []string{"PATH=/usr/local/bin"}}
	if os.Geteuid() == 0 {
		cmd.Path, cmd.Dir = entryPoint, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	}
	got, err := cmd.CombinedOutput()
	if want := "kubejoin v1.2.3 (go"; err != nil || !strings.HasPrefix(string(got), want) {
		t.Errorf("printed %q, want %q… (%v)", got, want, err)
	}
}

func TestChartAndManifestsCarryVersion(t *testing.T) {
	for _, f := range unzip(t, read(t, "kubejoin-1.2.3.tgz")) {
		if !f.ModTime.Equal(time.Unix(epoch, 0)) {
			t.Errorf("%s is of %s, want the time of the commit", f.Name, f.ModTime)
		}
		if f.Name == "kubejoin/Chart.yaml" {
			for _, want := range []string{`(?m)^version: 1\.2\.3$`, `(?m)^appVersion: v1\.2\.3$`} {
				if !regexp.MustCompile(want).Match(f.content) {
					t.Errorf("Chart.yaml has no %s:\n%s", want, f.content)
				}
			}
		}
	}
	manifests := strings.ReplaceAll(string(read(t, "kubejoin-v1.2.3-manifests.yaml")), `"`, "")
	for _, want := range []string{"image: ghcr.io/kubejoin/kubejoin:v1.2.3\n", "kind: Namespace\n"} {
		if !strings.Contains(manifests, want) {
			t.Errorf("the manifests have no %q", want)
		}
	}
}

type entry struct {
	*tar.Header
	content []byte
}

func entries(t *testing.T, r io.Reader) []entry {
	t.Helper()
	archive, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	// archive/tar accepts an archive without end marker, but the program tar does not.
	if !bytes.HasSuffix(archive, make([]byte, 1024)) || len(archive)%512 != 0 {
		t.Errorf("the archive of %d bytes has no end", len(archive))
	}
	var all []entry
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry{header, content})
	}
}

func unzip(t *testing.T, archive []byte) []entry {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	return entries(t, r)
}

// unpack unpacks the archive of an image into a folder.
func unpack(t *testing.T, platform string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range entries(t, bytes.NewReader(read(t, "kubejoin-v1.2.3-"+platform+".image.tar"))) {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func image(t *testing.T, platform string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(unpack(t, platform))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// contents returns the files of all layers.
func contents(t *testing.T, image v1.Image) []entry {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var all []entry
	for _, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entries(t, r)...)
	}
	return all
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dist, file))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

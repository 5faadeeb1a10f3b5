package pki

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/trustedpath"
	"github.com/kubejoin/kubejoin/internal/kube/imagetag"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// Limits of a look: files and bytes that it reads, bytes of a kubeconfig, and files that it names.
const (
	maxLook   = 20_000
	maxBytes  = 512 << 20
	maxConfig = 64 << 10
	maxNamed  = 32
)

// A looking is one look at a host.
type looking struct {
	Host
	authority
	rotation.Rotation

	manifests []corev1.Pod
	configs   []string           // kubeconfigs below h.Dir
	named     []string           // files that kubeconfigs name
	root      string             // path of the host's root folder; empty unless this process runs in a container
	seen      map[[2]uint64]bool // device and inode
	bytes     int64              // number read so far
}

// look completes the table of a CA with what this host has. It uses no fixed list of files. It reads each file below h.Dir and
// h.Also. It also reads the files that static pods mount, and the files that control plane flags or the kubelet's configuration
// name. others gets each file that contains a CA of the rotation, or a certificate or key from it, and is not in the table.
func (h Host) look(a authority, r rotation.Rotation) (authority, error) {
	l, err := h.newLook(a)
	if err != nil {
		return a, err
	}
	l.Rotation = r
	kubeconfigs := l.kubeconfigs
	l.kubeconfigs = nil
	for _, name := range slices.Concat(kubeconfigs, []string{kubeletConf}) {
		content, err := readFile(h.file(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return a, err
		}
		config, err := credentials.ParseKubeconfig(content)
		if name != kubeletConf && (err != nil || len(config.User.ClientCertificateData) > 0) { // wanted reports the error
			// Other kubeconfigs name files or a plugin, and get no new certificate.
			l.kubeconfigs = append(l.kubeconfigs, name)
		}
		if err == nil {
			l.named = append(l.named, absolute(h.Dir, config.Cluster.CertificateAuthority))
		}
	}
	config, err := h.kubeletConfig()
	if err != nil {
		return a, err
	}
	l.walk(h.Dir)
	for _, m := range l.manifests {
		for _, v := range m.Spec.Volumes {
			if v.HostPath != nil {
				l.walk(v.HostPath.Path)
			}
		}
		for _, c := range containersOf(m) {
			for _, path := range flagPaths(c) {
				l.walk(onHost(m, c, path))
			}
		}
	}
	for _, path := range h.Also {
		if _, err := resolve(l.root, path); err != nil || !filepath.IsAbs(path) {
			return a, fmt.Errorf("--also: %q given, want an absolute path that exists", path)
		}
	}
	for _, path := range slices.Concat([]string{config.Authentication.X509.ClientCAFile, config.TLSCertFile, config.TLSPrivateKeyFile}, h.Also) {
		if path != "" {
			l.walk(path)
		}
	}
	for len(l.named) > 0 {
		path := l.named[0]
		l.named = l.named[1:]
		// Skip folders: anybody may write a kubeconfig that names one.
		if info, err := os.Stat(l.root + path); err != nil || !info.IsDir() {
			l.walk(path)
		}
	}
	slices.Sort(l.trusting)
	l.readPods()
	return l.authority, nil
}

// newLook returns a look that has read the static pods of the host.
func (h Host) newLook(a authority) (*looking, error) {
	root, err := hostRoot()
	if err != nil {
		return nil, err
	}
	l := &looking{Host: h, authority: a, root: root, seen: map[[2]uint64]bool{}}
	return l, l.readManifests()
}

// hostRoot returns the path at which this process finds the root of the host's files. This process may be in a container.
func hostRoot() (string, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return "", err
	}
	first, err := os.Readlink("/proc/1/ns/mnt")
	if first == own || errors.Is(err, fs.ErrPermission) { // without SYS_PTRACE, restartable fails, because no process is visible
		return "", nil
	}
	return "/proc/1/root", err
}

// readManifests reads the static pods.
func (l *looking) readManifests() error {
	dir := l.file("manifests")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.IsDir() { // the kubelet skips them too
			continue
		}
		file := filepath.Join(dir, e.Name())
		object, err := manifest(file)
		if err != nil {
			l.other(rotation.File{Name: l.short(file), Unseen: "want the manifest of a static pod"})
			continue
		}
		l.manifests = append(l.manifests, object)
	}
	return nil
}

// short returns the path relative to h.Dir of a file below it, as the table names files. It returns any other path unchanged.
func (l *looking) short(file string) string {
	if name, err := filepath.Rel(l.Dir, file); err == nil && filepath.IsLocal(name) {
		return filepath.ToSlash(name)
	}
	return file
}

func (l *looking) other(f rotation.File) {
	f.Other = true
	l.others = append(l.others, f)
}

// walk reads a file, or all files below a folder. It ignores what does not exist.
func (l *looking) walk(path string) {
	entries := 0
	l.unseen(path, l.walkNow(path, &entries))
}

// unseen records in others that a path could not be read, and why.
func (l *looking) unseen(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.other(rotation.File{Name: l.short(path), Unseen: err.Error()})
	}
}

func (l *looking) walkNow(path string, entries *int) error {
	real, err := resolve(l.root, path)
	direct := real == filepath.Clean(path)
	if _, below := cutFolder(real, l.Dir); below && !direct {
		return nil // the walk of l.Dir reads this file
	}
	if err != nil || slices.ContainsFunc([]string{"/proc", "/sys", "/dev"}, func(virtual string) bool { _, below := cutFolder(real, virtual); return below }) {
		return err
	}
	return filepath.WalkDir(l.root+real, func(file string, d fs.DirEntry, err error) error {
		within, _ := cutFolder(file, l.root+real)
		path := filepath.Join(path, within)
		name := l.short(path)
		if *entries++; *entries > maxLook || l.bytes > maxBytes {
			return fmt.Errorf("more than %d files or %d MiB", maxLook, maxBytes>>20)
		}
		switch {
		case err != nil:
			l.unseen(path, err)
			return nil
		case d.IsDir() && name == Backups:
			return fs.SkipDir
		case d.Type()&fs.ModeSymlink != 0:
			if l.unseen(path, l.walkNow(path, entries)); *entries > maxLook {
				return fs.SkipAll // the limit is already recorded in others
			}
			return nil
		case !d.IsDir() && !d.Type().IsRegular():
			return nil
		}
		info, err := d.Info()
		if err != nil {
			l.unseen(path, err)
			return nil
		}
		if id, ok := info.Sys().(*syscall.Stat_t); ok { // a link may lead to the same file again
			key := [2]uint64{uint64(id.Dev), id.Ino} //nolint:unconvert // 32 bits on some systems
			if l.seen[key] && d.IsDir() {
				return fs.SkipDir
			} else if l.seen[key] {
				return nil
			}
			l.seen[key] = true
		}
		if !d.IsDir() && info.Size() <= maxFile && !slices.Contains(l.authority.files(), name) {
			l.unseen(path, l.read(file, name, direct))
		}
		return nil
	})
}

// resolve follows the links in a path below a root. The root may be the root of the host's files, seen from a container.
func resolve(root, path string) (string, error) {
	const maxLinks = 40 // the same limit as in Linux
	done, links := "/", 0
	for left := strings.Split(path, "/"); len(left) > 0; {
		next := filepath.Join(done, left[0])
		left = left[1:]
		info, err := os.Lstat(root + next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s has more than %d links", path, maxLinks)
		}
		target, err := os.Readlink(root + next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return done, nil
}

// read looks at one file. Apply changes the CAs in a kubeconfig only if no other user can change the file or its path,
// and no symbolic link leads to it.
func (l *looking) read(file, name string, direct bool) error {
	content, err := readFile(file)
	if err != nil {
		return err
	}
	l.bytes += int64(len(content))
	f, named, config, err := l.holds(content)
	if err != nil {
		return err
	}
	for _, path := range named {
		if path != "" {
			l.named = append(l.named, absolute(filepath.Dir(strings.TrimPrefix(file, l.root)), path))
		}
	}
	if f.Name = name; config && filepath.IsLocal(name) {
		l.configs = append(l.configs, name)
		if f.Trusts != nil && direct && trustedpath.Check(l.file(name)) == nil {
			l.trusting, f.Trusts = append(l.trusting, name), nil
		}
	}
	if f.Trusts != nil || f.From != "" {
		l.other(f)
	}
	return nil
}

// holds returns which CAs and certificates of the rotation a file contains, which files it names, and whether it is a
// kubeconfig. If a file contains a leaf certificate, the CAs after it are its chain, and the file does not trust them.
func (l *looking) holds(content []byte) (f rotation.File, named []string, kubeconfig bool, err error) {
	var presents, trusts []*x509.Certificate
	if bytes.Contains(content, []byte("certificate-authority")) || bytes.Contains(content, []byte("client-certificate")) {
		config := &clientcmdapi.Config{}
		if len(content) <= maxConfig { // parsing YAML may take 200 times its size in memory
			config, err = clientcmd.Load(content)
		}
		embeds := bytes.Contains(content, []byte("certificate-authority-data:")) || bytes.Contains(content, []byte("client-certificate-data:"))
		switch {
		case embeds && (err != nil || len(config.Clusters)+len(config.AuthInfos) == 0):
			return f, nil, false, fmt.Errorf("want a kubeconfig of at most %d KiB", maxConfig>>10)
		case err == nil && len(config.Clusters)+len(config.AuthInfos) > 0:
			kubeconfig = true
			for _, u := range config.AuthInfos {
				presents = append(presents, pemfile.Presented(u.ClientCertificateData)...)
				named = append(named, u.ClientCertificate, u.ClientKey)
			}
			for _, c := range config.Clusters {
				trusts = append(trusts, pemfile.Presented(c.CertificateAuthorityData)...)
				named = append(named, c.CertificateAuthority)
			}
		}
	}
	if !kubeconfig {
		presents = certificatesIn(content)
	}
	issued := false
	for _, c := range presents {
		switch {
		case slices.ContainsFunc(slices.Concat(l.Old, l.New, l.Cross), c.Equal):
			if !kubeconfig {
				trusts = append(trusts, c)
			}
		case slices.ContainsFunc(l.New, func(ca *x509.Certificate) bool { return issuedBy(c, ca) }):
			issued, f.From = issued || !c.IsCA, cmp.Or(f.From, rotation.FromNew)
		case slices.ContainsFunc(l.Old, func(ca *x509.Certificate) bool { return issuedBy(c, ca) }):
			issued, f.From = issued || !c.IsCA, rotation.FromOld
		case !kubeconfig:
			trusts = append(trusts, c) // it may be a replaced CA
		}
	}
	if key, err := pemfile.Key(content); err == nil {
		is := func(ca *x509.Certificate) bool { return rotation.Matches(key, ca) }
		switch {
		case slices.ContainsFunc(l.Old, is):
			f.From = rotation.FromOld
		case slices.ContainsFunc(l.New, is):
			f.From = rotation.FromNew
		}
	}
	if in := l.In(trusts); in != (rotation.Trusted{}) && (kubeconfig || !issued) {
		f.Trusts = &in
	}
	return f, named, kubeconfig, nil
}

var (
	indented = regexp.MustCompile(`(?m)^[ \t]+`)
	// encoded is the beginning of a PEM block in base64, as caBundle has it.
	encoded = regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/]+={0,2}`)
)

// certificatesIn returns the certificates in a file: in DER or in PEM. The PEM may be indented as in YAML, or encoded
// in base64.
func certificatesIn(content []byte) []*x509.Certificate {
	const sequence = 0x30 // in DER
	if len(content) > 0 && content[0] == sequence {
		certs, _ := x509.ParseCertificates(content)
		return certs
	}
	if !bytes.Contains(content, []byte("-----BEGIN")) && !bytes.Contains(content, []byte("LS0tLS1CRUdJTi")) {
		return nil
	}
	all := pemfile.Presented(indented.ReplaceAll(content, nil))
	for _, text := range encoded.FindAll(content, -1) {
		if decoded, err := base64.StdEncoding.DecodeString(string(text)); err == nil {
			all = append(all, pemfile.Presented(decoded)...)
		}
	}
	return all
}

func issuedBy(c, ca *x509.Certificate) bool {
	return bytes.Equal(c.RawIssuer, ca.RawSubject) && c.CheckSignatureFrom(ca) == nil
}

// readPods sets, for each static pod of this host, the files that the pod reads only at start. It drops pods that read no file.
func (l *looking) readPods() {
	table := l.pods
	l.pods = nil
	for _, p := range table {
		at := slices.IndexFunc(l.manifests, func(m corev1.Pod) bool { return m.Name == p.name })
		if at < 0 {
			continue
		}
		if p.once, p.manifest = l.once(p, l.manifests[at]), l.manifests[at]; len(p.once) > 0 {
			l.pods = append(l.pods, p)
		}
	}
	for _, m := range l.manifests {
		for i, c := range containersOf(m) {
			if i == 0 && slices.Contains(kubeadmPods, m.Name) {
				continue
			}
			p := pod{name: m.Name, manifest: m, container: c.Name}
			if i > 0 {
				p.name += "/" + c.Name
			}
			for _, name := range l.authority.files() {
				if l.mounts(m, c, l.file(name)) {
					p.once = append(p.once, name)
				}
			}
			if len(p.once) > 0 {
				l.pods = append(l.pods, p)
			}
		}
	}
}

// containersOf returns the containers of a pod that run as long as the pod: the containers and the sidecars.
func containersOf(m corev1.Pod) []corev1.Container {
	all := slices.Clone(m.Spec.Containers)
	for _, c := range m.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// kubeadmPods are the static pods of kubeadm. The table says which files they read only at start.
var kubeadmPods = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"}

// once returns the files that a static pod of kubeadm reads only at start. From Kubernetes 1.36 on, client-go re-reads the
// CA file that a kubeconfig names. It never re-reads CAs or certificates inside the kubeconfig.
func (l *looking) once(p pod, m corev1.Pod) (names []string) {
	c := m.Spec.Containers[0]
	early := imagetag.Before(c.Image, "1.36")
	bundle := p.bundle && (!p.kubelets || slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
		flag, path, _ := strings.Cut(arg, "=")
		return onHost(m, c, path) == l.file(l.bundle) && flag != "--client-ca-file" && (early || flag != "--kubelet-certificate-authority")
	}))
	configs := slices.Clone(l.configs)
	if p.kubeconfig != "" {
		configs = append(configs, p.kubeconfig)
	}
	for _, name := range configs {
		content, err := readFile(l.file(name))
		if err != nil || name != p.kubeconfig && !l.names(m, c, l.file(name)) {
			continue
		}
		if slices.Contains(l.authority.files(), name) {
			names = append(names, name)
		}
		if config, err := clientcmd.Load(content); err == nil {
			for _, cluster := range config.Clusters {
				bundle = bundle || early && cluster.CertificateAuthority != "" && absolute(filepath.Dir(l.file(name)), cluster.CertificateAuthority) == l.file(l.bundle)
			}
		}
	}
	if bundle {
		names = append(names, l.bundle)
	}
	return names
}

// names reports whether the flags of a container name a file of the host, directly or by the path at which the
// container mounts it.
func (l *looking) names(m corev1.Pod, c corev1.Container, file string) bool {
	return slices.ContainsFunc(flagPaths(c), func(path string) bool {
		if onHost(m, c, path) == file {
			return true
		}
		content, err := readFile(l.root + onHost(m, c, path))
		return err == nil && filepath.Ext(path) != ".crt" && slices.ContainsFunc(regexp.MustCompile(`/[\w./-]+`).FindAllString(string(content), -1), func(word string) bool {
			return onHost(m, c, word) == file
		})
	})
}

func absolute(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

// flagPaths returns the absolute paths in the command line of a container.
func flagPaths(c corev1.Container) (paths []string) {
	for _, arg := range slices.Concat(c.Command, c.Args) {
		if _, value, found := strings.Cut(arg, "="); found {
			arg = value
		}
		if filepath.IsAbs(arg) {
			paths = append(paths, filepath.Clean(arg))
		}
	}
	return paths
}

// onHost converts a path in a container to the path on the host.
func onHost(m corev1.Pod, c corev1.Container, path string) string {
	longest, result := -1, path
	for _, mount := range c.VolumeMounts {
		rest, below := cutFolder(path, mount.MountPath)
		for _, v := range m.Spec.Volumes {
			if below && v.Name == mount.Name && v.HostPath != nil && len(mount.MountPath) > longest {
				longest, result = len(mount.MountPath), filepath.Join(v.HostPath.Path, mount.SubPath, rest)
			}
		}
	}
	return result
}

// cutFolder returns the path relative to a folder, and whether it is that folder or below it.
func cutFolder(path, folder string) (rest string, below bool) {
	rest, err := filepath.Rel(folder, path)
	return rest, err == nil && filepath.IsLocal(rest)
}

// mounts reports whether a container mounts a file of the host, at any path.
func (l *looking) mounts(m corev1.Pod, c corev1.Container, file string) bool {
	real := func(path string) string {
		if followed, err := resolve(l.root, path); err == nil {
			return followed
		}
		return path
	}
	return slices.ContainsFunc(c.VolumeMounts, func(mount corev1.VolumeMount) bool {
		return slices.ContainsFunc(m.Spec.Volumes, func(v corev1.Volume) bool {
			if v.Name != mount.Name || v.HostPath == nil {
				return false
			}
			_, below := cutFolder(real(file), real(filepath.Join(v.HostPath.Path, mount.SubPath)))
			return below
		})
	})
}

// manifest reads the manifest of a static pod.
func manifest(file string) (object corev1.Pod, err error) {
	content, err := readFile(file)
	if err != nil {
		return object, err
	}
	if err := yaml.Unmarshal(content, &object); err != nil || len(object.Spec.Containers) == 0 || object.Name == "" {
		return object, fmt.Errorf("%s: want the manifest of a pod", file)
	}
	return object, nil
}

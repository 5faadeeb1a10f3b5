package pki

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/pmezard/go-difflib/difflib"
)

// compare fills the result of a dry run.
func (h Host) compare(ctx context.Context, b *backup, a authority, r rotation.Rotation, done *Result) error {
	want, err := a.wanted(b.originals, b.signed, r)
	if err != nil {
		return err
	}
	present, err := readAll(h.Dir, a.files())
	if err != nil {
		return err
	}
	if done.Restarted, err = a.unread(present, want); err != nil {
		return err
	}
	for _, name := range h.allStale(ctx, b, a, r) {
		if !slices.Contains(done.Restarted, name) {
			done.Restarted = append(done.Restarted, name)
		}
	}
	var all strings.Builder
	for _, name := range a.changed(present, want) {
		done.Changed = append(done.Changed, name)
		from, to := render(present[name]), render(want[name])
		if name == a.key { // a dry run works without the key of the new CA
			from, to = "<private key>\n", "<private key of the "+map[bool]string{false: "old", true: "new"}[r.SignsNew()]+" CA>\n"
		}
		text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
			FromFile: h.file(name), ToFile: h.file(name) + " (stage " + string(r.Stage) + ")",
			A: difflib.SplitLines(from), B: difflib.SplitLines(to), Context: 1,
		})
		if err != nil {
			return err
		}
		all.WriteString(text)
	}
	if a.kubelet && (slices.Contains(done.Changed, kubeletConf) || slices.Contains(done.Changed, a.bundle)) && h.kubeletNeedsCA(ctx, r) && !slices.Contains(done.Restarted, "kubelet") {
		done.Restarted = append(done.Restarted, "kubelet")
	}
	done.Diff = all.String()
	return nil
}

// render returns a file as text without secrets: it shows each certificate as a line, and drops keys.
func render(content []byte) string {
	if config, err := credentials.ParseKubeconfig(content); err == nil {
		return renderKubeconfig(config)
	}
	if !bytes.Contains(content, []byte("-----BEGIN")) {
		return fmt.Sprintf("<%d bytes>\n", len(content))
	}
	return renderPEM(content)
}

func renderPEM(content []byte) string {
	var text strings.Builder
	blocks, err := pemfile.Blocks(content)
	if err != nil {
		return "<malformed PEM>\n"
	}
	for _, block := range blocks {
		c, err := x509.ParseCertificate(block.Bytes)
		if block.Type != pemfile.Certificate || err != nil {
			text.WriteString("<private key>\n")
			continue
		}
		fmt.Fprintf(&text, "certificate %q of %q, until %s, pin %s\n", safetext.Text(c.Subject.String(), safetext.MaxName), safetext.Text(c.Issuer.String(), safetext.MaxName), c.NotAfter.UTC().Format(time.RFC3339), clusterinfo.Pin(c))
	}
	return text.String()
}

// renderKubeconfig returns only the fields that contain no secret.
func renderKubeconfig(config credentials.Kubeconfig) string {
	var text strings.Builder
	cluster, user := config.Cluster, config.User
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s: %s\n", name, safetext.Text(value, safetext.MaxName))
		}
	}
	list := func(name string, content []byte) {
		if len(content) > 0 {
			fmt.Fprintf(&text, "%s:\n", name)
			text.WriteString(renderPEM(content))
		}
	}
	line("server", cluster.Server)
	line("certificate-authority", cluster.CertificateAuthority)
	list("certificate-authority-data", cluster.CertificateAuthorityData)
	line("client-certificate", user.ClientCertificate)
	list("client-certificate-data", user.ClientCertificateData)
	line("client-key", user.ClientKey)
	list("client-key-data", user.ClientKeyData)
	return text.String()
}

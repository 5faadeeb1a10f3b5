package test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// Anonymous requests see health and are told, of cluster-info, that they may not read it: kubeadm
// takes 403 for an answer there, and not 401.
const anonymousForbidden = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
  - path: ` + discoveryPath + "\n"

// A machine that trusts the cluster CA by its own means joins by the discovery file at kubejoin,
// while kube-apiserver answers the public nothing: the file has no credential in it.
func TestJoinByDiscoveryURL(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	authentication := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(authentication, []byte(anonymousForbidden), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, cluster.Options{TrustedHosts: true, APIServerFlags: []string{"--authentication-config=" + authentication}})
	s.kubectl(t, "-n", "kube-public", "delete", "rolebinding", "kubeadm:bootstrap-signer-clusterinfo")
	wait(t, "the public to be refused", func() error {
		if status, _ := s.anonymous(t, s.Server()+discoveryPath); status != 403 {
			return fmt.Errorf("status %d, want 403", status)
		}
		return nil
	})
	if status, _ := s.anonymous(t, s.Server()+"/api"); status != 401 {
		t.Fatalf("the API server answers the public with %d, want 401: this test is about nothing", status)
	}
	file := "https://" + s.address + "/v1/cluster-info"
	status, kubeconfig := s.anonymous(t, file)
	if status != 200 {
		t.Fatalf("%s: %d", file, status)
	}
	server, cas, err := clusterinfo.ParseKubeconfig([]byte(kubeconfig)) // which refuses one with a credential
	if err != nil || server != s.Server() || len(cas) != 1 {
		t.Fatalf("%s: %s with %d CAs, %v", file, server, len(cas), err)
	}
	// kubeadm, as every client in Go, takes gzip: it is to get that here.
	wait(t, "the discovery file to be compressed", func() error {
		r, err := http.NewRequestWithContext(t.Context(), "GET", file, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept-Encoding", "gzip")
		response, err := s.program.http.Do(r)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil || response.Header.Get("Content-Encoding") != "gzip" {
			return fmt.Errorf("it is not: %v", response.Header)
		}
		return nil
	})
	_, token := s.join(t, "?maxNodes=1&ttl=1h")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	node, err := s.Join(ctx, "worker-1", []string{"--discovery-file", file, "--tls-bootstrap-token", token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	checkKubeletCertificate(t, s, chain[0], node.Name, 365*24*time.Hour)
	if !strings.Contains(node.Output(), "Could not access the cluster-info ConfigMap for refreshing") {
		t.Errorf("kubeadm has read cluster-info from the API server:\n%s", node.Output())
	}
	s.checkSecrets(t)
}

// A machine that does not trust the CA of kubejoin is told nothing that it would believe.
func TestDiscoveryURLNeedsTrust(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	s := newSite(t, cluster.Options{})
	_, token := s.join(t, "")
	node, err := s.StartNode("worker-1", []string{"--discovery-file", "https://" + s.address + "/v1/cluster-info", "--tls-bootstrap-token", token.Reveal()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := node.WaitJoined(ctx); err == nil || !strings.Contains(node.Output(), "certificate signed by unknown authority") {
		t.Errorf("%v\n%s", err, node.Output())
	}
}

package kubeadm

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
	"sigs.k8s.io/yaml"
)

// TestControlPlanesJoinAtTheSameMoment joins two control planes at the same moment, by a script and by a cloud-config,
// each from one curl. Before that, a third machine dies while it has the turn.
func TestControlPlanesJoinAtTheSameMoment(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	first := addMachine(t, c, "control-1")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Init(t.Context(), ""))
	const image = "ghcr.io/kubejoin/kubejoin:test"
	program := buildStatic(t)
	must(first.ImportProgram(t.Context(), image, program))
	must(c.Install(t.Context(), image))
	must(c.permitControlPlanes(t.Context()))

	const script, more = "/run/kubejoin/join.sh", "/run/more.yaml"
	prepare := func(name, format string) *Machine {
		t.Helper()
		m := addMachine(t, c, name)
		document, err := c.requestJoin(t.Context(), first.Address, "controlPlane=true&format="+format)
		must(err)
		if format == "cloud-config" {
			document = scriptOf(t, document)
		}
		must(m.writeFile(t.Context(), script, document[strings.Index(document, "#!/bin/sh"):]))
		must(m.writeFile(t.Context(), more, "nodeRegistration:\n  name: "+name+"\n  ignorePreflightErrors: [all]\n"))
		return m
	}
	join := func(ctx context.Context, m *Machine) error {
		const log = "/var/log/kubeadm.log"
		_, err := m.Run(ctx, "sh", "-c", "KUBEJOIN_ADD_CONFIG="+more+" sh "+script+" >"+log+" 2>&1 </dev/null || { tail -n 40 "+log+" >&2; exit 1; }")
		return err
	}
	holder := func() string {
		name, _ := c.Kubectl(t.Context(), "--namespace=kubejoin-system", "get", "lease", "kubejoin-control-plane-turn", "--output=jsonpath={.spec.holderIdentity}")
		name, _, _ = strings.Cut(name, "/")
		return name
	}

	dead := prepare("control-4", "script")
	stopped := make(chan struct{})
	go func() { _ = join(t.Context(), dead); close(stopped) }()
	harness.Wait(t, "the turn of control-4", func() error {
		if got := holder(); got != "control-4" {
			return fmt.Errorf("it is the turn of %q", got)
		}
		return nil
	})
	dead.Stop()
	<-stopped

	both := []*Machine{prepare("control-2", "script"), prepare("control-3", "cloud-config")}
	for _, m := range both {
		must(m.importImages(t.Context(), c.images))
	}
	joined := make(chan error, len(both))
	for _, m := range both {
		go func() {
			if err := join(t.Context(), m); err != nil {
				joined <- fmt.Errorf("%s: %w", m.Name, err)
				return
			}
			joined <- nil
		}()
	}
	harness.Wait(t, "one control plane that waits for the other", func() error {
		now, other := holder(), "control-3"
		switch now {
		case "control-2":
		case "control-3":
			other = "control-2"
		default:
			return fmt.Errorf("it is the turn of %q", now)
		}
		explained, err := first.Run(t.Context(), program, "explain", other)
		if want := "for its turn to join as a control plane; " + now + " has been joining for "; !strings.Contains(explained, want) {
			return fmt.Errorf("%w: %s, want %q", err, explained, want)
		}
		return nil
	})
	for range both {
		must(<-joined)
	}
	for _, m := range append(both, first) {
		harness.Wait(t, "the API server of "+m.Name, func() error {
			ready, err := m.Run(t.Context(), "kubectl", "--server=https://"+net.JoinHostPort(m.Address, "6443"), "get", "--raw=/readyz")
			if err != nil || ready != "ok" {
				return fmt.Errorf("ready: %q, %w", ready, err)
			}
			return nil
		})
		if members, learners, err := etcdMembers(t, m); err != nil || members != 3 || learners != 0 {
			t.Errorf("etcd of %s has %d members, %d of them learners, %v, want 3 and none", m.Name, members, learners, err)
		}
	}
	if got := holder(); got != "" {
		t.Errorf("%s has not given back its turn", got)
	}
}

// scriptOf returns the script in a cloud-config.
func scriptOf(t *testing.T, document string) string {
	t.Helper()
	var config struct {
		Files []struct{ Content []byte } `json:"write_files"` // in base64
	}
	document = document[max(0, strings.Index(document, "#cloud-config")):]
	if err := yaml.Unmarshal([]byte(document), &config); err != nil || len(config.Files) != 1 {
		t.Fatalf("%d files, %v", len(config.Files), err)
	}
	r, err := gzip.NewReader(bytes.NewReader(config.Files[0].Content))
	if err != nil {
		t.Fatal(err)
	}
	script, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}

package ca

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/caobserver"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// withCAs are objects that contain the CA: a ConfigMap for Pods, a webhook, an aggregated API server and a conversion webhook.
const withCAs = `
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-root-ca.crt, namespace: kube-system}
data: {ca.crt: %[1]q}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- {name: hook.example.com, sideEffects: None, admissionReviewVersions: [v1], failurePolicy: Ignore, clientConfig: {url: "https://192.0.2.1/", caBundle: %[2]s}}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.metrics.example.com}
spec: {group: metrics.example.com, version: v1, groupPriorityMinimum: 1, versionPriority: 1, caBundle: %[2]s, service: {name: metrics, namespace: default}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: things, kind: Thing}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://192.0.2.1/", caBundle: %[2]s}}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// TestObservesRotationWithTheRightsOfTheManifests lets kube-apiserver trust a new CA and forget it again. It catches an
// observer that lacks a right, or that misreads kube-apiserver's certificates, CA names and ConfigMaps.
func TestObservesRotationWithTheRightsOfTheManifests(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	file := harness.ReadFile(t, s.CAFile())
	old := must.Value(clusterinfo.ParseCAs(file))(t)
	fresh := must.Value(signer.GenerateCA("kubernetes 2", time.Now(), 24*time.Hour))(t)
	r := must.Value(rotation.New(rotation.Cluster, old, []*x509.Certificate{fresh.Certificate()}, nil, time.Now()))(t)
	r.Stage = rotation.Trust

	const address = "192.0.2.10"
	port := int32(6443)
	must.Value(s.Client().DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discovery.AddressTypeIPv4,
		Ports: []discovery.EndpointPort{{Port: &port}}, Endpoints: []discovery.Endpoint{{Addresses: []string{address}}},
	}, metav1.CreateOptions{}))(t)
	objects := filepath.Join(s.WorkDir, "objects.yaml")
	harness.ReplaceFile(t, objects, fmt.Appendf(nil, withCAs, file, base64.StdEncoding.EncodeToString(file)))
	s.RunKubectl(t, "apply", "-f", objects)

	o := &caobserver.Observer{
		Client: must.Value(kubernetes.NewForConfig(must.Value(s.Config(s.OwnKubeconfig))(t)))(t),
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.Address)
		},
	}
	observe := func() map[string]rotation.Observation {
		all := map[string]rotation.Observation{}
		for _, one := range must.Value(o.Observe(t.Context(), r))(t) {
			if one.Unseen != "" && !one.Optional {
				t.Errorf("not seen: %+v", one)
			}
			all[string(one.Kind)+" "+one.Name] = one
		}
		return all
	}
	const server, published = "api-server " + address + ":6443", "merged configmap extension-apiserver-authentication"
	seen := observe()
	for _, name := range []string{
		server, published, "cluster-info kube-public/cluster-info", "root-ca kube-system/kube-root-ca.crt", "ca-bundle validatingwebhookconfiguration hook",
		"ca-bundle apiservice v1.metrics.example.com", "ca-bundle customresourcedefinition things.example.com",
	} {
		if got := seen[name].Trusts; got == nil || *got != (rotation.Trusted{Old: true}) {
			t.Errorf("%s: %+v", name, seen[name])
		}
	}
	if got := seen[server].From; got != rotation.FromOld {
		t.Errorf("kube-apiserver serves with a certificate from %q", got)
	}

	// The Role permits kubejoin to look for etcd members. This cluster has no Pod of an etcd member.
	ofEtcd := r
	ofEtcd.CA = rotation.Etcd
	var members []rotation.Observation
	for _, one := range must.Value(o.Observe(t.Context(), ofEtcd))(t) {
		if one.Kind == rotation.KindEtcd {
			members = append(members, one)
		}
	}
	if len(members) != 1 || !strings.HasPrefix(members[0].Unseen, "no member was seen: ") {
		t.Errorf("got %+v, want one observation that no member was seen", members)
	}

	trust := func(what string, content []byte, names ...string) {
		t.Helper()
		both := !slices.Equal(content, file)
		harness.ReplaceFile(t, s.CAFile(), content)
		harness.Wait(t, what, func() error {
			seen = observe()
			for _, name := range names {
				if got := seen[name].Trusts; got == nil || *got != (rotation.Trusted{Old: true, New: both}) {
					return fmt.Errorf("%s: %+v", name, seen[name])
				}
			}
			return nil
		})
	}
	freshPEM, _, err := fresh.PEM()
	must.OK(t, err)
	trust("trust in both CAs", slices.Concat(file, freshPEM), server, published)
	r.Stage = rotation.Prepare
	trust("trust in the old CA alone", file, server)
	if got := seen[published]; got.Trusts == nil || !got.Trusts.New {
		t.Fatalf("kube-apiserver removed the new CA by itself: %+v", got)
	}
	command, _, _ := strings.Cut(seen[published].Next, " #")
	s.RunKubectl(t, strings.Fields(command)[1:]...)
	harness.Wait(t, "the ConfigMap without the new CA", func() error {
		if got, found := observe()[published]; !found || got.Trusts.New {
			return errors.New("not yet")
		}
		return nil
	})
}

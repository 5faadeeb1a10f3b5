package access

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// TestClaimsPolicyLetsOnlyKubejoinWriteClaims applies deploy/claims-policy.yaml. It catches writes of claims by others. It also catches
// a policy that stops kubejoin, its administrators, the deletion of the namespace, or writes of other Leases.
func TestClaimsPolicyLetsOnlyKubejoinWriteClaims(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{APIServerFlags: []string{"--feature-gates=CoordinatedLeaderElection=true", "--runtime-config=coordination.k8s.io/v1beta1=true"}})
	ctx := t.Context()
	must.Value(s.StartKCM(ctx, "--controllers=namespace-controller,garbage-collector-controller"))(t)
	const namespace, refusal = secretstore.ClaimNamespace, "only kubejoin and members of kubeadm:cluster-admins may write Leases"
	own, leases := s.Client().CoordinationV1().Leases(namespace), coordinationv1.SchemeGroupVersion.WithResource("leases")
	exists := func(lease string) error {
		_, err := own.Get(ctx, lease, metav1.GetOptions{})
		return err
	}
	waitGone := func(what string, get func() error) {
		t.Helper()
		harness.Wait(t, "the deletion of "+what, func() error {
			if err := get(); !apierrors.IsNotFound(err) {
				return fmt.Errorf("got %v, want that it is gone", err)
			}
			return nil
		})
	}
	create := func(namespace, name string, owners ...metav1.OwnerReference) {
		t.Helper()
		must.Value(s.Client().CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{}))(t)
	}
	as := func(user, group string) dynamic.Interface {
		config := s.AdminConfig()
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{group}}
		return must.Value(dynamic.NewForConfig(config))(t)
	}
	// write tries all verbs that change a Lease, and checks each result.
	write := func(by dynamic.Interface, resource schema.GroupVersionResource, namespace, name string, check func(verb string, err error)) {
		t.Helper()
		in := by.Resource(resource).Namespace(namespace)
		object := func(name string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{"apiVersion": resource.GroupVersion().String(), "kind": "Lease", "metadata": map[string]any{"name": name}}}
		}
		update := object(name)
		update.SetResourceVersion(must.Value(s.Client().CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{}))(t).ResourceVersion)
		_, err := in.Update(ctx, update, metav1.UpdateOptions{})
		check("update", err)
		_, err = in.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"labels":{"kubejoin.io/claim":"true"}}}`), metav1.PatchOptions{})
		check("patch", err)
		for _, applied := range []string{name, name + "-applied"} {
			_, err = in.Apply(ctx, applied, object(applied), metav1.ApplyOptions{FieldManager: "test"})
			check("apply "+applied, err)
		}
		_, err = in.Create(ctx, object(name+"-created"), metav1.CreateOptions{})
		check("create", err)
		check("delete", in.Delete(ctx, name, metav1.DeleteOptions{}))
		check("deletecollection", in.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	allowed := func(verb string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v, want it allowed", verb, err)
		}
	}

	// Without the policy, the writer may write.
	s.RunKubectl(t, "create", "clusterrole", "writer", "--verb=*", "--resource=leases.coordination.k8s.io,leasecandidates.coordination.k8s.io")
	s.RunKubectl(t, "create", "clusterrolebinding", "writer", "--clusterrole=writer", "--group=writers")
	writer := as("mallory", "writers")
	create(namespace, "before")
	harness.Wait(t, "the rights of the writer", func() error {
		_, err := writer.Resource(leases).Namespace(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	write(writer, leases, namespace, "before", allowed)

	owner := must.Value(s.Client().CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{}))(t)
	create(namespace, "owned", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
	create(namespace, "worker-0")
	create("default", "worker-0")
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/claims-policy.yaml"))
	waitForbidden(t, "the writer", refusal, func() error {
		return writer.Resource(leases).Namespace(namespace).Delete(ctx, "worker-0", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	})
	write(writer, leases, "default", "worker-0", allowed)
	_, lists, err := s.Client().Discovery().ServerGroupsAndResources()
	must.OK(t, err)
	versions := 0
	for _, list := range lists {
		version := must.Value(schema.ParseGroupVersion(list.GroupVersion))(t)
		for _, r := range list.APIResources {
			if r.Kind != "Lease" && !strings.HasPrefix(r.Name, "leases/") {
				continue
			}
			versions++
			if verbs := slices.Sorted(slices.Values(r.Verbs)); r.Name != "leases" || !slices.Equal(verbs, []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}) {
				t.Errorf("%s has the resource %s with the verbs %v: try those that this test does not", version, r.Name, verbs)
			}
			for who, by := range map[string]dynamic.Interface{"the writer": writer, "system:masters": as("root", "system:masters")} {
				write(by, version.WithResource(r.Name), namespace, "worker-0", func(verb string, err error) {
					t.Helper()
					if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refusal) {
						t.Errorf("%s in %s by %s: got %v, want a refusal by the policy", verb, version, who, err)
					}
				})
			}
		}
	}
	if versions == 0 {
		t.Error("the API server serves no Leases")
	}
	// kube-apiserver writes the Leases of candidates in this order. Once it has written the second one, it has tried the first one.
	for _, in := range []string{namespace, "default"} {
		candidate := &coordinationv1beta1.LeaseCandidate{ObjectMeta: metav1.ObjectMeta{Name: "candidate"}, Spec: coordinationv1beta1.LeaseCandidateSpec{
			LeaseName: "candidate", BinaryVersion: "1.0.0", EmulationVersion: "1.0.0", Strategy: coordinationv1.OldestEmulationVersion, RenewTime: new(metav1.NowMicro()),
		}}
		must.Value(s.As(t, "mallory", "writers").CoordinationV1beta1().LeaseCandidates(in).Create(ctx, candidate, metav1.CreateOptions{}))(t)
	}
	harness.Wait(t, "the Lease of a candidate in default", func() error {
		_, err := s.Client().CoordinationV1().Leases("default").Get(ctx, "candidate", metav1.GetOptions{})
		return err
	})
	if err := exists("candidate"); !apierrors.IsNotFound(err) {
		t.Errorf("a Lease of a candidate: got %v, want it not found", err)
	}

	must.OK(t, s.Client().CoreV1().ConfigMaps(namespace).Delete(ctx, owner.Name, metav1.DeleteOptions{}))
	waitGone("the owned Lease by the garbage collector", func() error { return exists("owned") })
	write(as("ada", "kubeadm:cluster-admins"), leases, namespace, "worker-0", allowed)

	// kubejoin becomes leader and writes a claim. A command releases the claim.
	s.Start(t)
	for _, node := range []string{"worker-1", "worker-2"} {
		machine := harness.AsToken(t, s.Cluster, s.CreateToken(t, tokens.Limits{MaxNodes: 1}).ID())
		must.OK(t, harness.CreateRequest(ctx, machine, node, certificates.KubeAPIServerClientKubeletSignerName, node))
		s.WaitIssued(t, node)
		must.OK(t, exists(node))
	}
	if _, stderr, code := s.RunKubejoin(t, "claim", "release", "worker-1"); code != 0 || !apierrors.IsNotFound(exists("worker-1")) {
		t.Errorf("kubejoin claim release: exit code %d, Lease: %v; want 0 and no Lease\n%s", code, exists("worker-1"), stderr)
	}
	began := time.Now()
	harness.Wait(t, "a renewal of kubejoin's Lease", func() error {
		lease, err := own.Get(ctx, "kubejoin", metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime.Time.Before(began) {
			err = fmt.Errorf("last renewed at %v", lease.Spec.RenewTime)
		}
		return err
	})
	if warnings := s.RunKubectl(t, "get", "validatingadmissionpolicy", "kubejoin-claims", "-o", "jsonpath={.status.typeChecking.expressionWarnings}"); warnings != "" {
		t.Errorf("type checking warns: %s", warnings)
	}
	must.OK(t, s.Client().CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}))
	waitGone("the namespace", func() error {
		_, err := s.Client().CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	})
}

package kubeadmcerts_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// onCluster returns an Uploader on the shared cluster without an upload.
func onCluster(t *testing.T) *kubeadmcerts.Uploader {
	t.Helper()
	c := cluster.Shared(t)
	clear := func() {
		err := c.Client().CoreV1().Secrets("kube-system").Delete(context.Background(), kubeadmcerts.SecretName, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	clear()
	t.Cleanup(clear)
	return &kubeadmcerts.Uploader{Client: c.Client(), Dir: filepath.Join(c.Dir, "pki")}
}

func upload(t *testing.T, u *kubeadmcerts.Uploader) joinformat.Upload {
	t.Helper()
	return must.Value(u.Upload(t.Context()))(t)
}

func secret(t *testing.T, u *kubeadmcerts.Uploader) *corev1.Secret {
	t.Helper()
	return must.Value(u.Client.CoreV1().Secrets("kube-system").Get(t.Context(), kubeadmcerts.SecretName, metav1.GetOptions{}))(t)
}

// The Secret, its owner token and the Role must equal the objects of kubeadm's phase upload-certs, which writes
// them first.
func TestUploadIsThatOfKubeadm(t *testing.T) {
	u := onCluster(t)
	c := cluster.Shared(t)
	type object struct {
		secret, owner *corev1.Secret
		rules, binds  string
	}
	read := func() object {
		t.Helper()
		s := secret(t, u)
		if len(s.OwnerReferences) != 1 {
			t.Fatalf("got owners %v, want one", s.OwnerReferences)
		}
		owner := must.Value(u.Client.CoreV1().Secrets("kube-system").Get(t.Context(), s.OwnerReferences[0].Name, metav1.GetOptions{}))(t)
		role := must.Value(u.Client.RbacV1().Roles("kube-system").Get(t.Context(), "kubeadm:kubeadm-certs", metav1.GetOptions{}))(t)
		binding := must.Value(u.Client.RbacV1().RoleBindings("kube-system").Get(t.Context(), "kubeadm:kubeadm-certs", metav1.GetOptions{}))(t)
		return object{s, owner, fmt.Sprint(role.Rules), fmt.Sprint(binding.RoleRef, binding.Subjects)}
	}
	key := joinformat.GenerateCertificateKey()
	must.OK(t, c.KubeadmUploadCerts(t.Context(), key.Reveal()))
	theirs := read()
	files := must.Value(kubeadmcerts.Decrypt(theirs.secret.Data, key))(t)

	u.CreateRole = true
	up := upload(t, u)
	if !up.Replaced || up.Shared {
		t.Errorf("got %+v, want a replaced upload", up)
	}
	ours := read()
	again, err := kubeadmcerts.Decrypt(ours.secret.Data, up.Key)
	if err != nil || !maps.EqualFunc(files, again, func(a, b []byte) bool { return string(a) == string(b) }) || len(again) != 8 {
		t.Errorf("got files %v, %v, want those of kubeadm: %v", slices.Sorted(maps.Keys(again)), err, slices.Sorted(maps.Keys(files)))
	}
	if _, err := kubeadmcerts.Decrypt(ours.secret.Data, key); err == nil {
		t.Error("the replaced key still decrypts")
	}
	a, b := ours.secret.OwnerReferences[0], theirs.secret.OwnerReferences[0]
	if a.UID != ours.owner.UID || a.APIVersion != b.APIVersion || a.Kind != b.Kind || !*a.Controller || !*a.BlockOwnerDeletion {
		t.Errorf("got owner %+v, want as %+v", a, b)
	}
	if ours.secret.Type != theirs.secret.Type || len(ours.secret.Labels) > 0 || len(ours.secret.Annotations) != 1 {
		t.Errorf("got type %s and metadata %+v, want as kubeadm's %+v with the salt", ours.secret.Type, ours.secret.ObjectMeta, theirs.secret.ObjectMeta)
	}
	if !slices.Equal(slices.Sorted(maps.Keys(ours.owner.Data)), slices.Sorted(maps.Keys(theirs.owner.Data))) || ours.owner.Type != theirs.owner.Type ||
		string(ours.owner.Data["description"]) != string(theirs.owner.Data["description"]) {
		t.Errorf("got owner token with %v, want as kubeadm's with %v", slices.Sorted(maps.Keys(ours.owner.Data)), slices.Sorted(maps.Keys(theirs.owner.Data)))
	}
	record, err := secretstore.Decode(ours.owner)
	if err != nil || record.Problem != nil || record.Signing || record.Authentication || len(record.Groups) > 0 || !record.Expires.Equal(up.Expires) || record.Token.ID() != up.TokenID {
		t.Errorf("got owner token %+v, %v, want one without usages that expires at %s", record, err, up.Expires)
	}
	if life := up.Expires.Sub(record.Created); life < joinformat.UploadTTL-time.Minute || life > joinformat.UploadTTL+time.Minute {
		t.Errorf("the upload lasts %s, want %s", life, joinformat.UploadTTL)
	}
	if ours.rules != theirs.rules || ours.binds != theirs.binds {
		t.Errorf("got %s and %s, want as kubeadm's %s and %s", ours.rules, ours.binds, theirs.rules, theirs.binds)
	}
	info, err := u.Get(t.Context())
	if err != nil || info.TokenID != up.TokenID || !info.Expires.Equal(up.Expires) || len(info.Files) != 8 {
		t.Errorf("got %+v, %v", info, err)
	}
}

// A call must not invalidate the key of an earlier call while the Secret still has the files of that call.
func TestUploadKeepsKeyOfEarlierCall(t *testing.T) {
	u := onCluster(t)
	first := upload(t, u)
	if first.Replaced || first.Shared {
		t.Errorf("got %+v, want a first upload", first)
	}
	second := upload(t, u)
	if second.Key != first.Key || !second.Shared || second.Replaced || second.TokenID == first.TokenID {
		t.Errorf("got %+v after %+v, want the same key with a new owner token", second, first)
	}
	if _, err := u.Client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+first.TokenID, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want the first owner token deleted", err)
	}

	// Another replica, or this one after a restart, computes the same key.
	other := &kubeadmcerts.Uploader{Client: u.Client, Dir: u.Dir}
	if third := upload(t, other); third.Key != first.Key || !third.Shared || third.Replaced {
		t.Errorf("got %+v, want the key of the first call", third)
	}
	// kubeadm replaces the upload, so the next call must not return the old key.
	must.OK(t, cluster.Shared(t).KubeadmUploadCerts(t.Context(), joinformat.GenerateCertificateKey().Reveal()))
	fourth := upload(t, u)
	if fourth.Key == first.Key || !fourth.Replaced || fourth.Shared {
		t.Errorf("got %+v, want a new key that replaces that of kubeadm", fourth)
	}
	if _, err := kubeadmcerts.Decrypt(secret(t, u).Data, fourth.Key); err != nil {
		t.Error(err)
	}

	// A deleted upload is made again, with a new key.
	if info, err := u.Delete(t.Context()); err != nil || info.TokenID != fourth.TokenID {
		t.Fatalf("got %+v, %v, want the upload with token %s", info, err, fourth.TokenID)
	}
	if _, err := u.Client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+fourth.TokenID, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want the owner token deleted with the upload", err)
	}
	if _, err := u.Get(t.Context()); !errors.Is(err, kubeadmcerts.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if _, err := u.Delete(t.Context()); !errors.Is(err, kubeadmcerts.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if fifth := upload(t, u); fifth.Key == fourth.Key || fifth.Replaced || fifth.Shared {
		t.Errorf("got %+v, want a new key that replaces none", fifth)
	}
}

// appendTo appends the content of a file to the same file.
func appendTo(t *testing.T, file string) {
	t.Helper()
	content := must.Value(os.ReadFile(file))(t)
	must.OK(t, os.WriteFile(file, append(content, content...), 0o600))
}

// After a rotation of the CA, the old files must not be shared.
func TestUploadOfChangedFilesHasNewKey(t *testing.T) {
	u := onCluster(t)
	dir := filepath.Join(t.TempDir(), "pki")
	must.OK(t, os.CopyFS(dir, os.DirFS(u.Dir)))
	u.Dir = dir
	first := upload(t, u)
	appendTo(t, filepath.Join(dir, "front-proxy-ca.crt"))
	second := upload(t, u)
	if second.Key == first.Key || !second.Replaced {
		t.Errorf("got %+v, want a new key", second)
	}
}

// Somebody removed a file from the Secret. Without this file, a control plane that joins would generate its own.
func TestUploadCompletesSecret(t *testing.T) {
	dir, client := filesAndClient(t)
	u := &kubeadmcerts.Uploader{Client: client, Dir: dir}
	upload(t, u)
	live := secret(t, u)
	delete(live.Data, "sa.key")
	must.Value(client.CoreV1().Secrets("kube-system").Update(t.Context(), live, metav1.UpdateOptions{}))(t)
	if up := upload(t, u); up.Shared || len(secret(t, u).Data["sa.key"]) == 0 {
		t.Errorf("got %+v, want a new upload with sa.key", up)
	}
}

// Replicas write at once: the compare-and-swap must leave the Secret with one key, which all replicas returned, and
// with the owner token of the last replica.
func TestConcurrentReplicasShareOneKey(t *testing.T) {
	u := onCluster(t)
	var wg sync.WaitGroup
	results := make([]joinformat.Upload, 6)
	for i := range results {
		wg.Go(func() {
			replica := &kubeadmcerts.Uploader{Client: u.Client, Dir: u.Dir}
			var err error
			if results[i], err = replica.Upload(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	live, first := secret(t, u), 0
	for _, up := range results {
		if up.Key != results[0].Key || up.Replaced {
			t.Errorf("got %+v, want the key of all calls, and none replaced", up)
		}
		if !up.Shared {
			first++
		}
		_, err := u.Client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+up.TokenID, metav1.GetOptions{})
		if owns := live.OwnerReferences[0].Name == "bootstrap-token-"+up.TokenID; owns && err != nil || !owns && !apierrors.IsNotFound(err) {
			t.Errorf("owner token %s: owns the upload: %v, %v; want only the owner left", up.TokenID, owns, err)
		}
	}
	if _, err := kubeadmcerts.Decrypt(live.Data, results[0].Key); err != nil || first != 1 {
		t.Errorf("%v; %d calls made a key, want one", err, first)
	}
}

// A user who can change the Secret can make any token its owner. An upload must not delete a token that machines use.
func TestUploadDeletesNoTokenThatIsUsed(t *testing.T) {
	dir, client := filesAndClient(t)
	u := &kubeadmcerts.Uploader{Client: client, Dir: dir}
	upload(t, u)
	manifest := must.Value(secretstore.Manifest(tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
	victim := must.Value(client.CoreV1().Secrets("kube-system").Create(t.Context(), manifest, metav1.CreateOptions{}))(t)
	change := func() {
		t.Helper()
		live := secret(t, u)
		live.OwnerReferences[0].Name, live.OwnerReferences[0].UID = victim.Name, victim.UID
		must.Value(client.CoreV1().Secrets("kube-system").Update(t.Context(), live, metav1.UpdateOptions{}))(t)
	}
	change()
	if up := upload(t, u); up.Shared || !up.Replaced {
		t.Errorf("got %+v, want a new key: nothing expires the upload", up)
	}
	change()
	if _, err := u.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), victim.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the other token: %v", err)
	}
}

// A key must expire although calls continue, and must work until the time that each call returned.
func TestKeyEnds(t *testing.T) {
	dir, client := filesAndClient(t)
	synctest.Test(t, func(t *testing.T) {
		u := &kubeadmcerts.Uploader{Client: client, Dir: dir}
		start := time.Now()
		at := func(after time.Duration) joinformat.Upload {
			t.Helper()
			time.Sleep(time.Until(start.Add(after)))
			return upload(t, u)
		}
		first := at(0)
		if up := at(time.Hour); up.Key != first.Key || !up.Shared || !up.Expires.Equal(start.Add(time.Hour+joinformat.UploadTTL)) {
			t.Errorf("got %+v, want the first key, for %s from now", up, joinformat.UploadTTL)
		}
		for _, after := range []time.Duration{2*time.Hour + time.Minute, 3*time.Hour + 30*time.Minute} {
			if up := at(after); up.Key != first.Key || !up.Expires.Equal(start.Add(joinformat.KeyTTL)) {
				t.Errorf("after %s: got %+v, want the first key until %s", after, up, joinformat.KeyTTL)
			}
		}
		time.Sleep(time.Minute)
		var ends *joinformat.KeyEndsError
		if up, err := u.Upload(t.Context()); !errors.As(err, &ends) || !ends.Expires.Equal(start.Add(joinformat.KeyTTL)) || !up.Key.IsZero() {
			t.Errorf("shortly before the key expires: got %+v, %v, want a KeyEndsError with its expiration", up, err)
		}
		if list, err := client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
			t.Errorf("got %d Secrets, %v, want the upload and its owner", len(list.Items), err)
		}
		// kubectl can extend the owner token, and must not extend the key.
		live := secret(t, u)
		owner := must.Value(client.CoreV1().Secrets("kube-system").Get(t.Context(), live.OwnerReferences[0].Name, metav1.GetOptions{}))(t)
		owner.Data["expiration"] = []byte(start.Add(8000 * time.Hour).Format(time.RFC3339))
		must.Value(client.CoreV1().Secrets("kube-system").Update(t.Context(), owner, metav1.UpdateOptions{}))(t)
		if up := at(joinformat.KeyTTL); up.Key == first.Key || up.Shared || !up.Expires.Equal(start.Add(joinformat.KeyTTL+joinformat.UploadTTL)) {
			t.Errorf("when the key expires: got %+v, want a new key", up)
		}
		// The expired upload still exists, because nothing deletes it here. Upload must not use its key again.
		second := upload(t, u)
		time.Sleep(joinformat.UploadTTL)
		if up := upload(t, u); up.Key == second.Key || !up.Replaced {
			t.Errorf("after an upload expired: got %+v, want a new key", up)
		}
	})
}

// During a rotation of the CA, a replica with other files may replace the upload between the read and the write of this
// replica. Without a compare-and-swap, this call would invalidate the key of the other replica and not report it.
func TestUploadReportsReplacedUploadOfAnotherReplica(t *testing.T) {
	other := onCluster(t)
	var replace func()
	config := cluster.Shared(t).AdminConfig()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/"+kubeadmcerts.SecretName) && replace != nil {
				act := replace
				replace = nil
				act()
			}
			return next.RoundTrip(r)
		})
	})
	client := must.Value(kubernetes.NewForConfig(config))(t)
	u := &kubeadmcerts.Uploader{Client: client, Dir: other.Dir}
	other.Dir = filepath.Join(t.TempDir(), "pki")
	must.OK(t, os.CopyFS(other.Dir, os.DirFS(u.Dir)))
	appendTo(t, filepath.Join(other.Dir, "ca.crt"))
	first := upload(t, u)
	var between joinformat.Upload
	replace = func() { between = upload(t, other) }
	second := upload(t, u)
	if !between.Replaced || !second.Replaced || second.Shared || second.Key == first.Key {
		t.Errorf("got %+v after %+v, want a new key and a report that it replaced the upload of the other replica", second, between)
	}
	if _, err := kubeadmcerts.Decrypt(secret(t, u).Data, second.Key); err != nil {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// filesAndClient returns a folder with files to upload, and a client of a cluster without an API server.
func filesAndClient(t *testing.T) (string, *fake.Clientset) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	content := must.Value(os.ReadFile("../joinformat/testdata/ca.crt"))(t)
	for _, name := range []string{"ca.crt", "front-proxy-ca.crt", "sa.pub", "sa.key", "etcd/ca.crt"} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return dir, fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubeadm-config"},
		Data:       map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"},
	})
}

// Without a response, kubejoin does not know whether the Secret has the new owner. If it deleted the owner, the
// garbage collector would delete the Secret, and invalidate the keys of all earlier calls.
func TestUploadWithoutAnswerKeepsOwnerToken(t *testing.T) {
	dir, client := filesAndClient(t)
	u := &kubeadmcerts.Uploader{Client: client, Dir: dir}
	first := upload(t, u)
	lost := false
	client.PrependReactor("update", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if lost {
			return false, nil, nil
		}
		lost = true
		update := a.(clienttesting.UpdateAction)
		if err := client.Tracker().Update(update.GetResource(), update.GetObject(), update.GetNamespace()); err != nil {
			t.Error(err)
		}
		return true, nil, context.Canceled
	})
	if up, err := u.Upload(t.Context()); err == nil {
		t.Fatalf("got %+v, want an error", up)
	}
	live := secret(t, u)
	if live.OwnerReferences[0].Name == "bootstrap-token-"+first.TokenID {
		t.Fatal("the Secret has the first owner, want that of the write without an answer")
	}
	if _, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), live.OwnerReferences[0].Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the owner token of the Secret: %v", err)
	}
	if again := upload(t, u); again.Key != first.Key || again.Replaced {
		t.Errorf("got %+v, want the key of the first call", again)
	}
}

func TestRefusedUploadLeavesNoOwnerToken(t *testing.T) {
	dir, client := filesAndClient(t)
	client.PrependReactor("create", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if made := a.(clienttesting.CreateAction).GetObject().(*corev1.Secret); made.Name == kubeadmcerts.SecretName {
			return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), made.Name, errors.New("not owned"))
		}
		return false, nil, nil
	})
	u := &kubeadmcerts.Uploader{Client: client, Dir: dir}
	if up, err := u.Upload(t.Context()); err == nil || !strings.Contains(err.Error(), "not owned") || !up.Key.IsZero() {
		t.Errorf("got %+v, %v, want the error", up, err)
	}
	left, err := client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("got %d Secrets, %v, want none", len(left.Items), err)
	}
}

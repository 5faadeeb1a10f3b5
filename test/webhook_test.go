package test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificates "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Nodes join with tokens that are in kubejoin's file and nowhere else: kube-apiserver asks about
// them in both versions of the webhook, by either credential, and kubejoin has no right to Secrets.
func TestJoinThroughWebhook(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + itoa(port)
	s := prepare(t, cluster.Options{Setup: cluster.WithoutClusterInfo}, "--token-store=file", "--listen="+address)
	s.makePublic(t)
	dataDir := filepath.Join(s.dir, "data")
	s.flags = append(s.flags, "--data-dir="+dataDir, "--webhook-client-ca-file="+s.CAFile(), "--webhook-client-name=kube-apiserver-kubelet-client")
	s.kubectl(t, "-n", "kube-system", "delete", "rolebinding", "kubejoin:tokens")
	s.start(t)
	bearer, err := os.ReadFile(filepath.Join(dataDir, "kube-apiserver.token"))
	if err != nil {
		t.Fatal(err)
	}
	s.known.add("kube-apiserver", strings.TrimSpace(string(bearer)))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, test := range []struct {
		version    string
		credential []string
	}{
		{"v1beta1", nil}, // the bearer token
		{"v1", []string{"--client-certificate=" + filepath.Join(s.Dir, "pki/apiserver-kubelet-client.crt"), "--client-key=" + filepath.Join(s.Dir, "pki/apiserver-kubelet-client.key")}},
	} {
		flags := webhookFlags(t, append(test.credential, "--data-dir="+dataDir, "--url=https://"+address, "--cache-ttl=1s", "-o", filepath.Join(s.dir, test.version+".conf"))...)
		if test.version == "v1beta1" { // which those get who forget the flag
			flags = slices.DeleteFunc(flags, func(flag string) bool { return strings.HasPrefix(flag, "--authentication-token-webhook-version=") })
		}
		s.restartAPIServer(t, append(flags, "--enable-bootstrap-token-auth=false")...)
		args, token := s.join(t, "?ttl=1h&maxNodes=1")
		if _, err := s.Join(ctx, "worker-"+test.version, args); err != nil {
			t.Fatal(err)
		}
		s.checkRequester(t, token)
		second, err := s.StartNode("second-"+test.version, args)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.WaitKubelet(ctx, "TokenSpent"); err != nil {
			t.Error(err)
		}
		second.Stop()
	}
	// Claims are where the tokens are.
	status, claims, err := s.get(ctx, "/v1/claim", s.bearer(t))
	if err != nil || status != http.StatusOK || !strings.Contains(claims, `"worker-v1"`) || !strings.Contains(claims, `"worker-v1beta1"`) || strings.Contains(claims, "second") {
		t.Errorf("claims: %d %s %v", status, claims, err)
	}
	if leases := s.kubectl(t, "-n", "kubejoin-system", "get", "leases", "-o", "name"); leases != "" {
		t.Errorf("there are Leases: %s", leases)
	}
	if secrets := s.kubectl(t, "get", "secrets", "-A", "-o", "name"); secrets != "" {
		t.Errorf("there are Secrets: %s", secrets)
	}

	checkRevocation(t, s)
	checkAway(t, s)
	checkIdentity(t, s)
	metrics := s.checkSecrets(t)
	for _, result := range []string{"authenticated", "refused"} {
		if metric(t, metrics, `kubejoin_token_reviews_total{result="`+result+`"}`) == 0 {
			t.Errorf("no review was %s", result)
		}
	}
}

// webhookFlags runs kubejoin webhook-config and takes kube-apiserver's flags from what it says.
func webhookFlags(t *testing.T, args ...string) []string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"webhook-config"}, args...)...)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("webhook-config: %v\n%s", err, &stderr)
	}
	var flags []string
	for line := range strings.Lines(stderr.String()) {
		if flag := strings.TrimSpace(line); strings.HasPrefix(flag, "--") {
			flags = append(flags, flag)
		}
	}
	if len(flags) != 3 {
		t.Fatalf("webhook-config names the flags %q, want three:\n%s", flags, &stderr)
	}
	return flags
}

func (s *site) restartAPIServer(t *testing.T, flags ...string) {
	t.Helper()
	s.StopAPIServer()
	if err := s.StartAPIServer(t.Context(), flags...); err != nil {
		t.Fatal(err)
	}
}

// checkRequester looks at who asked for a certificate with the token.
func (s *site) checkRequester(t *testing.T, token tokens.Token) {
	t.Helper()
	list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Items {
		if r.Spec.Username != "system:bootstrap:"+token.ID() {
			continue
		}
		groups := slices.Sorted(slices.Values(r.Spec.Groups))
		if want := []string{"system:authenticated", "system:bootstrappers", tokens.DefaultGroup}; !slices.Equal(groups, want) || r.Spec.UID != "" {
			t.Errorf("the requester has UID %q and groups %q, want none and %q", r.Spec.UID, groups, want)
		}
		return
	}
	t.Errorf("none of %d requests is by token %s", len(list.Items), token.ID())
}

// whoami is who kube-apiserver takes the holder of a bearer token for.
func (s *site) whoami(t *testing.T, bearer string) (authenticationv1.UserInfo, error) {
	t.Helper()
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.BearerToken = bearer
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// A token that is deleted is accepted no longer than webhook-config says, which is cache-ttl, here
// 1 s, and 10 s more; and then never again. It is good for no certificate at once.
func checkRevocation(t *testing.T, s *site) {
	t.Helper()
	_, token := s.join(t, "?ttl=1h")
	if _, err := s.whoami(t, token.Reveal()); err != nil {
		t.Fatal(err)
	}
	status, body, err := s.do(t.Context(), http.MethodDelete, "/v1/token/"+token.ID(), s.bearer(t))
	if err != nil || status != http.StatusOK {
		t.Fatalf("deleting token %s: %d %s %v", token.ID(), status, body, err)
	}
	deleted := time.Now()
	// Whom kube-apiserver still takes for its holder gets no certificate.
	if err := request(t.Context(), asToken(t, s.Cluster, token.ID()), "late", certificates.KubeAPIServerClientKubeletSignerName, "late"); err != nil {
		t.Fatal(err)
	}
	wait(t, "the refusal of what was asked for late", func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), "late", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range r.Status.Conditions {
			if c.Reason == "TokenRevoked" && len(r.Status.Certificate) == 0 {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", r.Status.Conditions)
	})
	var accepted time.Time // a moment at which it was, at the latest
	wait(t, "the end of token "+token.ID(), func() error {
		asked := time.Now()
		_, err := s.whoami(t, token.Reveal())
		if apierrors.IsUnauthorized(err) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted = asked
		return errAllowed
	})
	if late := accepted.Sub(deleted); late > 20*time.Second { // of which the half is for a busy machine
		t.Errorf("accepted %s after it was deleted, 11s documented", late)
	}
	for range 10 {
		if _, err := s.whoami(t, token.Reveal()); !apierrors.IsUnauthorized(err) {
			t.Fatalf("a deleted token was refused and then not: %v", err)
		}
	}
	forged := token.ID() + "." + tokens.Generate().RevealSecret()
	if _, err := s.whoami(t, forged); !apierrors.IsUnauthorized(err) {
		t.Errorf("another secret: %v", err)
	}
}

// While kubejoin is away its tokens are refused and nobody else is; when it is back they are good.
func checkAway(t *testing.T, s *site) {
	t.Helper()
	_, token := s.join(t, "?ttl=1h")
	s.Stop(20 * time.Second)
	if _, err := s.whoami(t, token.Reveal()); !apierrors.IsUnauthorized(err) {
		t.Errorf("with nobody to ask: %v", err)
	}
	s.kubectl(t, "get", "nodes")
	s.start(t)
	wait(t, "kubejoin's answer", func() error { _, err := s.whoami(t, token.Reveal()); return err })
}

// For kube-apiserver the webhook's answer and its own authenticator's are the same.
func checkIdentity(t *testing.T, s *site) {
	t.Helper()
	_, token := s.join(t, "?ttl=1h")
	record := tokens.NewRecord(token, time.Hour, time.Now())
	type answers struct {
		User    authenticationv1.UserInfo
		Reviews []authenticationv1.TokenReviewStatus
	}
	ask := func() answers {
		var a answers
		var err error
		if a.User, err = s.whoami(t, token.Reveal()); err != nil {
			t.Fatal(err)
		}
		for _, audiences := range [][]string{nil, {"https://kubernetes.default.svc.cluster.local"}, {"vault"}, {"vault", "https://kubernetes.default.svc.cluster.local"}} {
			for _, shown := range []string{token.Reveal(), token.ID() + "." + tokens.Generate().RevealSecret()} {
				review, err := s.Client().AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
					Spec: authenticationv1.TokenReviewSpec{Token: shown, Audiences: audiences},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				a.Reviews = append(a.Reviews, review.Status)
			}
		}
		return a
	}
	webhook := ask()
	s.restartAPIServer(t, "--authentication-token-webhook-config-file=", "--enable-bootstrap-token-auth=true")
	secret, err := secretstore.Manifest(record)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, "kube-apiserver's own word", func() error { _, err := s.whoami(t, token.Reveal()); return err })
	builtIn := ask()
	if !reflect.DeepEqual(webhook, builtIn) {
		t.Errorf("through the webhook:\n%s\nby itself:\n%s", show(webhook), show(builtIn))
	}
	if !webhook.Reviews[0].Authenticated || webhook.Reviews[1].Authenticated || webhook.Reviews[4].Authenticated {
		t.Errorf("reviews:\n%s", show(webhook.Reviews))
	}
}

func show(v any) string { return strings.ReplaceAll(fmt.Sprintf("%+v", v), "} {", "}\n{") }

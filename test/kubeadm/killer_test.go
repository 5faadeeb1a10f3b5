package kubeadm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
)

// killerChild is set in a process of this test binary that kills kubejoin when it writes: see playKiller. The value is the PID
// namespace of its machine.
const killerChild = "KUBEJOIN_TEST_KILLER"

// killerAddress is where the process serves on its machine.
const killerAddress = "127.0.0.1:9555"

// killerWebhook has kube-apiserver ask before kubejoin writes an object of a rotation.
const killerWebhook = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: killer
webhooks:
- name: killer.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig:
    url: https://%s/
    caBundle: %s
  rules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE, UPDATE, DELETE]
    resources: [configmaps, secrets]
  matchConditions:
  - name: kubejoin
    expression: >-
      request.userInfo.username == 'system:serviceaccount:kubejoin-system:kubejoin' &&
      request.name in ['kubejoin-ca', 'kubejoin-ca-key', 'extension-apiserver-authentication']
`

// A killer is a process on a control plane that kills the kubejoin there at each of its writes for a rotation, twice: before
// the API server makes it, and before kubejoin knows that.
type killer struct {
	stdin  io.Closer
	cmd    *exec.Cmd
	mu     sync.Mutex
	output strings.Builder
}

// Write implements io.Writer.
func (k *killer) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.output.Write(p)
}

// kills returns one line for each time that it killed kubejoin.
func (k *killer) kills() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.output.String()
}

func startKiller(t *testing.T, c *Cluster) *killer {
	t.Helper()
	ca := certtest.CA(t, "killer")
	pair := certtest.Serving(t, ca, "127.0.0.1")
	key := must.Value(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	m := c.machines[0]
	namespace := must.Value(os.Readlink(fmt.Sprintf(pidNamespace, strconv.Itoa(m.init.PID()))))(t)
	if namespace == must.Value(os.Readlink(fmt.Sprintf(pidNamespace, "self")))(t) {
		t.Fatal("the machine has no processes of its own")
	}
	k := &killer{cmd: m.Command(context.WithoutCancel(t.Context()), os.Args[0])}
	k.cmd.Env = append(k.cmd.Env, killerChild+"="+namespace)
	stdin := must.Value(k.cmd.StdinPipe())(t)
	k.stdin, k.cmd.Stdout, k.cmd.Stderr = stdin, k, k
	must.OK(t, k.cmd.Start())
	t.Cleanup(func() { _ = errors.Join(k.stdin.Close(), k.cmd.Wait()) }) // the machine is gone with it at the latest
	must.OK(t, json.NewEncoder(stdin).Encode([][]byte{pair.Certificate[0], key}))
	const file = "/etc/kubernetes/killer.yaml"
	must.OK(t, m.writeFile(t.Context(), file, fmt.Sprintf(killerWebhook, killerAddress, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: ca.Certificate[0]})))))
	must.Value(c.Kubectl(t.Context(), "apply", "--filename", file))(t)
	return k
}

// pidNamespace is a link of a process. Signals do not leave the namespace.
const pidNamespace = "/proc/%s/ns/pid"

// playKiller is the process of a killer. It ends with its standard input. It refuses to run outside of the PID namespace of its
// machine, where it would kill the kubejoin of somebody else.
func playKiller(namespace string) error {
	if got, err := os.Readlink(fmt.Sprintf(pidNamespace, "self")); err != nil || got != namespace {
		return errors.Join(err, fmt.Errorf("these processes are %s, want %s", got, namespace))
	}
	in := json.NewDecoder(os.Stdin)
	var parts [][]byte
	if err := in.Decode(&parts); err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(parts[1])
	if err != nil {
		return err
	}
	var mu sync.Mutex
	seen := map[string]int{}
	server := &http.Server{Addr: killerAddress, TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: parts[:1], PrivateKey: key}}}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "want an AdmissionReview", http.StatusBadRequest)
			return
		}
		write := writeAsked(review.Request)
		seen[write]++
		switch seen[write] {
		case 1:
			signalKubejoin(syscall.SIGKILL)
			fmt.Println("before", write)
		case 2:
			// The API server drops a request whose client is gone. So kubejoin dies later, and sees nothing until then.
			signalKubejoin(syscall.SIGSTOP)
			time.AfterFunc(time.Second, func() {
				signalKubejoin(syscall.SIGKILL)
				fmt.Println("after", write)
			})
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: seen[write] > 1}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the API server may be gone
	})}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServeTLS("", "") }()
	go func() {
		_, _ = io.Copy(io.Discard, io.MultiReader(in.Buffered(), os.Stdin))
		failed <- nil
	}()
	return <-failed
}

// writeAsked describes a write, with the stage that begins with it.
func writeAsked(r *admissionv1.AdmissionRequest) string {
	text := strings.ToLower(string(r.Operation)) + " " + r.Name
	var secret corev1.Secret
	var copied corev1.ConfigMap
	var state rotation.Rotation
	var err error
	switch {
	case r.Name == clusterstore.KeyName && json.Unmarshal(r.Object.Raw, &secret) == nil:
		state, err = clusterstore.FromSecret(&secret, rotation.Cluster)
	case r.Name == clusterstore.Name && json.Unmarshal(r.Object.Raw, &copied) == nil:
		state, err = clusterstore.FromConfigMap(&copied, rotation.Cluster)
	default:
		return text
	}
	switch {
	case err != nil:
		return text + ": " + err.Error()
	case !state.InProgress() && r.Name == clusterstore.KeyName && len(secret.Data) == 1:
		return text + ": the end, no key"
	case !state.InProgress():
		return text + ": the end"
	}
	return text + ": " + string(state.Stage)
}

// signalKubejoin sends a signal to each process of 'kubejoin serve' on this machine.
func signalKubejoin(signal syscall.Signal) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		args := strings.Split(string(content), "\x00")
		if len(args) > 1 && filepath.Base(args[0]) == "kubejoin" && args[1] == "serve" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			_ = syscall.Kill(pid, signal) // it may have ended
		}
	}
}

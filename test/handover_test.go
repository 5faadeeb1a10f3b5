package test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// What deploy/kubeadm has for kube-controller-manager goes into the manifest that kubeadm writes,
// and a kube-controller-manager with these flags leaves to kubejoin what it is said to leave, and
// does the rest.
func TestHandover(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	plain := s.controllerManager(t, "", "")
	const (
		kubelet = certificates.KubeAPIServerClientKubeletSignerName
		serving = certificates.KubeletServingSignerName
		client  = certificates.KubeAPIServerClientSignerName
	)
	all := []string{kubelet, serving, client}
	for _, test := range []struct {
		name, patches, config string
		approves              bool
		signs                 []string // of the signers
		publishes             bool     // whether it signs cluster-info
		off                   []string // controllers
	}{
		{name: "as-kubeadm-has-it", approves: true, signs: all, publishes: true},
		{
			name: "all-signers-off", patches: "all-signers-off", publishes: true,
			off: []string{"certificatesigningrequest-approving-controller", "certificatesigningrequest-signing-controller"},
		},
		{
			name: "node-signer-off", patches: "node-signer-off", signs: []string{serving, client}, publishes: true,
			off: []string{"certificatesigningrequest-approving-controller", kubelet},
		},
		{
			name: "cluster-configuration", config: "cluster-configuration.yaml",
			off: []string{
				"bootstrap-signer-controller", "token-cleaner-controller", "certificatesigningrequest-approving-controller",
				"certificatesigningrequest-signing-controller", "certificatesigningrequest-cleaner-controller",
			},
		},
	} {
		before := "" // all of them write one log
		if log, err := os.ReadFile(filepath.Join(s.Dir, "logs", "kube-controller-manager.log")); err == nil {
			before = string(log)
		}
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			pod := s.controllerManager(t, test.patches, test.config)
			flags := pod.Spec.Containers[0].Command[1:]
			pod.Spec.Containers[0].Command = plain.Spec.Containers[0].Command
			if got, want := mustYAML(t, pod), mustYAML(t, plain); got != want {
				t.Errorf("the manifest has other changes than of flags:\n%s\nwant\n%s", got, want)
			}
			kcm, err := s.StartKCM(ctx, append(s.here(flags), "--leader-elect=false")...)
			if err != nil {
				t.Fatal(err)
			}
			defer kcm.Stop(0)
			// What it does beside joining nodes.
			s.kubectl(t, "create", "namespace", test.name)
			wait(t, "service account and CA of the namespace", func() error {
				_, err := s.Kubectl(ctx, "-n", test.name, "get", "serviceaccount/default", "configmap/kube-root-ca.crt")
				return err
			})
			said := strings.Split(strings.TrimPrefix(kcm.Log(), before), "\n")
			for _, name := range test.off {
				if !slices.ContainsFunc(said, func(line string) bool {
					return strings.Contains(line, fmt.Sprintf("controller=%q", name)) &&
						(strings.Contains(line, "controller is disabled") || strings.Contains(line, "Skipping CSR signer controller"))
				}) {
					t.Errorf("kube-controller-manager has not said that %s is off", name)
				}
			}

			waiting := test.name + "-pending"
			s.ask(t, waiting, kubelet)
			for i, signerName := range all {
				name := fmt.Sprintf("%s-%d", test.name, i)
				s.ask(t, name, signerName)
				if test.approves && signerName == kubelet {
					s.approved(t, name)
				} else if err := decide(ctx, s.Client(), name, certificates.CertificateApproved); err != nil {
					t.Fatal(err)
				}
			}
			for i, signerName := range all {
				if slices.Contains(test.signs, signerName) {
					s.issued(t, fmt.Sprintf("%s-%d", test.name, i))
				}
			}
			signed := s.mint(t, tokens.Limits{})
			if test.publishes {
				wait(t, "signature of cluster-info", func() error { return s.signedBy(t, signed) })
			} else if s.signedBy(t, signed) == nil {
				t.Error("cluster-info is signed, and nobody should")
			}
			for i, signerName := range all {
				r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, fmt.Sprintf("%s-%d", test.name, i), metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if issued := len(r.Status.Certificate) > 0; issued != slices.Contains(test.signs, signerName) {
					t.Errorf("%s: issued %t by kube-controller-manager, want %t", signerName, issued, !issued)
				}
			}
			if test.approves {
				s.approved(t, waiting)
			} else if got := s.kubectl(t, "get", "csr", waiting, "-o", "jsonpath={.status}"); got != "" && got != "{}" {
				t.Errorf("a request that nobody has approved is %s", got)
			}
			kcm.Stop(0)
			if len(test.off) == 0 {
				return
			}
			// kubejoin does what is left.
			s.start(t)
			s.issued(t, waiting)
			for i := range all {
				s.issued(t, fmt.Sprintf("%s-%d", test.name, i))
			}
			wait(t, "signature of cluster-info", func() error { return s.signedBy(t, signed) })
			s.Stop(20 * time.Second)
		})
	}
}

// controllerManager is the manifest that kubeadm writes for kube-controller-manager, with a
// folder of deploy/kubeadm as its patches, or with a configuration from there.
func (s *site) controllerManager(t *testing.T, patches, config string) *corev1.Pod {
	t.Helper()
	dir := t.TempDir()
	document := "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n" +
		"localAPIEndpoint: {advertiseAddress: 192.0.2.10}\n" + // RFC 5737: kubeadm refuses a loopback address
		"nodeRegistration: {name: control-plane, criSocket: unix:///run/none.sock}\n"
	folder := func(name string) string {
		path, err := filepath.Abs(filepath.Join("../deploy/kubeadm", name))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	if patches != "" {
		document += "patches: {directory: " + folder(patches) + "}\n"
	}
	document += "---\n"
	if config == "" {
		document += "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"
	} else {
		content, err := os.ReadFile(folder(config))
		if err != nil {
			t.Fatal(err)
		}
		document += string(content)
	}
	document += "kubernetesVersion: " + s.Version + "\n"
	file := filepath.Join(dir, "kubeadm.yaml")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	// A dry run writes the same manifest, to another place than /etc/kubernetes.
	kubeadm := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "kubeadm"), "init", "phase", "control-plane", "controller-manager", "--dry-run", "--config", file)
	kubeadm.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+dir, "HOME="+dir)
	if output, err := kubeadm.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	content, err := os.ReadFile(filepath.Join(dir, "kube-controller-manager.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(content, pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// here is flags with the files of this cluster.
func (s *site) here(flags []string) []string {
	files := strings.NewReplacer("/etc/kubernetes/pki/", filepath.Join(s.Dir, "pki")+"/", "/etc/kubernetes/", s.Dir+"/")
	all := make([]string, len(flags))
	for i, flag := range flags {
		all[i] = files.Replace(flag)
	}
	return all
}

// ask makes a request of a signer, for a node of the same name, as whoever may have it.
func (s *site) ask(t *testing.T, name, signerName string) {
	t.Helper()
	by := s.Client()
	if signerName == certificates.KubeAPIServerClientKubeletSignerName {
		by = machine(t, s.Cluster)
	}
	if err := request(t.Context(), by, name, signerName, name); err != nil {
		t.Fatal(err)
	}
}

// mint stores a token that signs and authenticates.
func (s *site) mint(t *testing.T, limits tokens.Limits) tokens.Token {
	t.Helper()
	store, err := secretstore.Open(t.Context(), s.Client(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = limits
	if _, err := store.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r.Token
}

func (s *site) signedBy(t *testing.T, token tokens.Token) error {
	if !strings.Contains(s.clusterInfo(t), clusterinfo.SignatureKey(token.ID())) {
		return fmt.Errorf("no signature of token %s", token.ID())
	}
	return nil
}

func mustYAML(t *testing.T, object any) string {
	t.Helper()
	content, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

package coexist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestKubeControllerManagerLeavesWorkToKubejoin applies each patch of deploy/kubeadm. It catches a patch that kubeadm does
// not apply, or that switches off other parts of kube-controller-manager than documented.
func TestKubeControllerManagerLeavesWorkToKubejoin(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	plain := controllerManager(t, s, "", "")
	const (
		kubelet = certificates.KubeAPIServerClientKubeletSignerName
		serving = certificates.KubeletServingSignerName
		client  = certificates.KubeAPIServerClientSignerName
	)
	all := []string{kubelet, serving, client}
	for _, test := range []struct {
		name, patches, config string
		approves              bool
		signs                 []string // signers that kube-controller-manager still serves
		publishes             bool     // kube-controller-manager signs cluster-info
		off                   []string // controllers that are switched off
	}{
		{name: "kubeadm-default", approves: true, signs: all, publishes: true},
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
		before := "" // all runs write to one log
		if log, err := os.ReadFile(filepath.Join(s.Dir, "logs", "kube-controller-manager.log")); err == nil {
			before = string(log)
		}
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			pod := controllerManager(t, s, test.patches, test.config)
			flags := pod.Spec.Containers[0].Command[1:]
			pod.Spec.Containers[0].Command = plain.Spec.Containers[0].Command
			if got, want := mustYAML(t, pod), mustYAML(t, plain); got != want {
				t.Errorf("the manifest differs in more than flags:\n%s\nwant\n%s", got, want)
			}
			kcm := must.Value(s.StartKCM(ctx, append(withLocalFiles(flags, s), "--leader-elect=false")...))(t)
			defer kcm.Stop(0)
			// kube-controller-manager still does its other work.
			s.RunKubectl(t, "create", "namespace", test.name)
			harness.Wait(t, "service account and CA of the namespace", func() error {
				_, err := s.Kubectl(ctx, "-n", test.name, "get", "serviceaccount/default", "configmap/kube-root-ca.crt")
				return err
			})
			for _, name := range test.off {
				harness.Wait(t, "the log that "+name+" is off", func() error {
					for line := range strings.Lines(strings.TrimPrefix(kcm.Log(), before)) {
						if strings.Contains(line, fmt.Sprintf("controller=%q", name)) &&
							(strings.Contains(line, "controller is disabled") || strings.Contains(line, "Skipping CSR signer controller")) {
							return nil
						}
					}
					return errors.New("not in the log")
				})
			}

			waiting := test.name + "-pending"
			s.RequestCertificate(t, waiting, kubelet)
			for i, signerName := range all {
				name := fmt.Sprintf("%s-%d", test.name, i)
				s.RequestCertificate(t, name, signerName)
				if test.approves && signerName == kubelet {
					s.WaitApproved(t, name)
				} else if err := harness.Decide(ctx, s.Client(), name, certificates.CertificateApproved); err != nil {
					t.Fatal(err)
				}
			}
			for i, signerName := range all {
				if slices.Contains(test.signs, signerName) {
					s.WaitIssued(t, fmt.Sprintf("%s-%d", test.name, i))
				}
			}
			signed := s.CreateToken(t, tokens.Limits{})
			if test.publishes {
				harness.Wait(t, "signature of cluster-info", func() error { return signedBy(t, s, signed) })
			} else if signedBy(t, s, signed) == nil {
				t.Error("cluster-info is signed although bootstrap-signer-controller is off")
			}
			for i, signerName := range all {
				r := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, fmt.Sprintf("%s-%d", test.name, i), metav1.GetOptions{}))(t)
				if issued := len(r.Status.Certificate) > 0; issued != slices.Contains(test.signs, signerName) {
					t.Errorf("%s: issued %t by kube-controller-manager, want %t", signerName, issued, !issued)
				}
			}
			if test.approves {
				s.WaitApproved(t, waiting)
			} else if got := s.RunKubectl(t, "get", "csr", waiting, "-o", "jsonpath={.status}"); got != "" && got != "{}" {
				t.Errorf("unapproved request: got status %s, want none", got)
			}
			kcm.Stop(0)
			if len(test.off) == 0 {
				return
			}
			// kubejoin does the work that kube-controller-manager no longer does.
			s.Start(t)
			s.WaitIssued(t, waiting)
			for i := range all {
				s.WaitIssued(t, fmt.Sprintf("%s-%d", test.name, i))
			}
			harness.Wait(t, "signature of cluster-info", func() error { return signedBy(t, s, signed) })
			s.Stop(20 * time.Second)
		})
	}
}

// controllerManager returns the manifest that kubeadm writes for kube-controller-manager with a patch folder or a
// configuration file of deploy/kubeadm.
func controllerManager(t *testing.T, s *harness.Site, patches, config string) *corev1.Pod {
	t.Helper()
	dir := t.TempDir()
	document := "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n" +
		"localAPIEndpoint: {advertiseAddress: 192.0.2.10}\n" + // RFC 5737: kubeadm refuses a loopback address
		"nodeRegistration: {name: control-plane, criSocket: unix:///run/none.sock}\n"
	folder := func(name string) string {
		return harness.RepositoryFile(t, filepath.Join("deploy/kubeadm", name))
	}
	if patches != "" {
		document += "patches: {directory: " + folder(patches) + "}\n"
	}
	document += "---\n"
	if config == "" {
		document += "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"
	} else {
		content := must.Value(os.ReadFile(folder(config)))(t)
		document += string(content)
	}
	document += "kubernetesVersion: " + s.Version + "\n"
	file := filepath.Join(dir, "kubeadm.yaml")
	must.OK(t, os.WriteFile(file, []byte(document), 0o600))
	// A dry run writes the same manifest, but not to /etc/kubernetes.
	kubeadm := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "kubeadm"), "init", "phase", "control-plane", "controller-manager", "--dry-run", "--config", file)
	kubeadm.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+dir, "HOME="+dir)
	if output, err := kubeadm.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	content := must.Value(os.ReadFile(filepath.Join(dir, "kube-controller-manager.yaml")))(t)
	pod := &corev1.Pod{}
	must.OK(t, yaml.UnmarshalStrict(content, pod))
	return pod
}

// withLocalFiles replaces kubeadm's paths in flags by the paths of this cluster.
func withLocalFiles(flags []string, s *harness.Site) []string {
	files := strings.NewReplacer("/etc/kubernetes/pki/", filepath.Join(s.Dir, "pki")+"/", "/etc/kubernetes/", s.Dir+"/")
	all := make([]string, len(flags))
	for i, flag := range flags {
		all[i] = files.Replace(flag)
	}
	return all
}

func signedBy(t *testing.T, s *harness.Site, token tokens.Token) error {
	if s.ClusterInfo(t)[clusterinfo.SignatureKey(token.ID())] == "" {
		return fmt.Errorf("cluster-info has no signature of token %s", token.ID())
	}
	return nil
}

func mustYAML(t *testing.T, object any) string {
	t.Helper()
	content := must.Value(yaml.Marshal(object))(t)
	return string(content)
}

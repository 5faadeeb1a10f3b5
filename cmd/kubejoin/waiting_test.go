package main

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// A command that waits for two seconds must print what it waits for, and for how long at most. After Ctrl-C, it must exit
// with 130 and print what remains.
func TestSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	silent := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t) // nobody accepts connections, so clients wait
	t.Cleanup(func() { _ = silent.Close() })
	address := silent.Addr().String()
	url, dir, host := "https://"+address, t.TempDir(), newControlPlane(t)
	file := func(name string, content []byte) string {
		name = filepath.Join(dir, name)
		must.OK(t, os.WriteFile(name, content, 0o600))
		return name
	}
	key := csrtest.NewKey()
	csr := file("jane.csr", csrtest.PEM(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key))
	pem := file("key", must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t))
	bearer, ca := file("bearer", []byte("bearer-0123456789abcdef")), filepath.Join(host.dir, "pki/ca.crt")
	cluster := &clientcmdapi.Cluster{Server: url, CertificateAuthority: ca}
	kubeconfig := file("admin.conf", must.Value(clientcmd.Write(oneCluster("kubernetes", cluster, "me", &clientcmdapi.AuthInfo{Token: "me"})))(t))
	onServer, onKube := []string{"--url", url, "--ca-file", ca, "--bearer-file", bearer}, []string{"--kubeconfig", kubeconfig}
	const ctrlC = "; Ctrl-C ends the wait"
	const forCA = "until API servers, kubelets and etcd were looked at, for at most 6m"
	forServer, ofAdmin := "for "+url+", for at most 6m", "for the API server of "+kubeconfig
	forKube := ofAdmin + ", for at most 10s"
	unsigned, slow := t.TempDir(), t.TempDir()
	must.OK(t, errors.Join(os.CopyFS(unsigned, os.DirFS(host.dir)), os.CopyFS(slow, os.DirFS(host.dir))))
	config := must.Value(clientcmd.LoadFromFile(filepath.Join(slow, "admin.conf")))(t)
	config.Clusters["c"].Server = url
	must.OK(t, clientcmd.WriteToFile(*config, filepath.Join(slow, "admin.conf")))
	must.OK(t, os.Remove(filepath.Join(unsigned, "pki/apiserver.crt")))
	var commands sync.WaitGroup
	for _, test := range []struct {
		command string
		flags   []string
		waits   string
		says    string
	}{
		{"token list", onServer, forServer, ""},
		{"token list", onKube, forKube, ""},
		{"token create --wait 20s", onServer, "for a signature by the token in cluster-info, for at most 6m20s", "may have been created: check with 'kubejoin token get "},
		{"token create aaaaaa.bbbbbbbbbbbbbbbb --print-join-command", onServer, "for a signature by the token in cluster-info, for at most 6m30s", "token aaaaaa may have been created"},
		{"token create --wait 20s", onKube, forKube, ""},
		{"token create -", onServer, "for the end of standard input" + ctrlC, ""},
		{"explain -f -", onKube, "for the end of standard input" + ctrlC, ""},
		{"sign", onServer, "for the end of standard input" + ctrlC, ""},
		{"kubeconfig bootstrap --token-file -", onServer, "for the end of standard input" + ctrlC, ""},
		{"explain worker-1", onKube, forKube, ""},
		{"timeline --watch", onServer, forServer, ""},
		{"claim list", onKube, forKube, ""},
		{"ca prepare", onServer, forCA, "run kubejoin ca abort, and prepare again"},
		{"ca trust", onServer, forCA, "the step may have been done: see kubejoin ca status"},
		{"ca trust --dry-run", onServer, forCA, ": context canceled\n"},
		{"ca trust", onKube, forKube, ""},
		{"ca status", onServer, forCA, ""},
		{"ca apply " + dir, nil, ofAdmin + ctrlC, ""},
		{"host apply " + dir, nil, ofAdmin + ctrlC, ""},
		{"revoke worker-1", onServer, "until every replica knows the revocation, for at most 6m", ""},
		{"sign --wait 1m --signer kubernetes.io/kube-apiserver-client " + csr, onServer, "for the certificate, for at most 7m", ""},
		{"sign --kubeadm-dir " + unsigned, onServer, "for a certificate, for at most 6m", ""},
		{"certs renew " + host.dir, onServer, "for a certificate, for at most 7m", ""},
		{"certs renew " + slow, onServer, "for the API server of " + slow + "/admin.conf, for at most 5s", ""},
		{"certs list", onKube, ofAdmin + ", for at most 30s", ""},
		{"kubeconfig bootstrap", onServer, "for cluster-info, for at most 30s", ""},
		{"kubeconfig user jane", onServer, "for the certificate, for at most 1m", ""},
		{"kubeconfig check " + kubeconfig, nil, "for the checks" + ctrlC, ""},
		{"rejoin --node worker-1 --kubeconfig none --key " + pem, onServer[:4], "for the kubejoin server, for at most 6m", ""},
		{"doctor", onKube, "for the checks" + ctrlC, ""},
		{"store copy --to file:new.db --from etcd:" + url, nil, "for the stores" + ctrlC, ""},
		{"store check etcd:" + url, nil, "for the store" + ctrlC, ""},
		{"serve --listen 127.0.0.1:0 --advertise join.example.com:443 --token-store etcd --etcd-servers " + url, nil, `for etcd" servers=[` + url + "]", ""},
	} {
		var out, errs lines
		cmd := exec.CommandContext(t.Context(), "kubejoin", append(strings.Fields(test.command), test.flags...)...)
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = t.TempDir(), []string{"HOME=/none"}, &out, &errs
		must.Value(cmd.StdinPipe())(t) // stays open
		must.OK(t, cmd.Start())
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }() // the test checks its exit code below
		commands.Go(func() {
			_ = wait.Poll(20*longWait, func() error { // if the line is missing, the count below fails
				select {
				case <-ended:
				default:
					if !strings.Contains(errs.String(), "waiting ") {
						return errors.New("no line yet")
					}
				}
				return nil
			})
			code, signal, end := exitInterrupt, syscall.SIGINT, "kubejoin: interrupted; what the command has done before remains\n"
			switch cmd.Args[1] {
			case "explain":
				code, signal = exitTerminate, syscall.SIGTERM
			case "serve":
				code, end = 0, "\n"
			}
			_ = cmd.Process.Signal(signal) // fails if the command has ended
			<-ended
			got := errs.String()
			if cmd.ProcessState.ExitCode() != code || !strings.Contains(got, "waiting "+test.waits+"\n") || strings.Count(got, "waiting") != 1 ||
				!strings.Contains(got, test.says) || !strings.HasSuffix(got, end) || strings.ContainsAny(got, "\x1b") || strings.Contains(got, "token delete") ||
				out.String() != "" && !strings.HasPrefix(test.command, "token create --wait") && !strings.HasPrefix(test.command, "kubeconfig check") {
				t.Errorf("%s: got exit code %d and\n%s", test.command, cmd.ProcessState.ExitCode(), got+out.String())
			}
		})
	}
	commands.Wait()
}

// slowPipe is a pipe whose reader takes longer than longWait.
type slowPipe struct{}

func (slowPipe) Write(b []byte) (int, error) {
	time.Sleep(longWait + time.Second/2)
	return len(b), nil
}

// Catches a command that prints that it waits while it prints the result, or after the result.
func TestWaitEndsWhenResultIsPrinted(t *testing.T) {
	for _, test := range []struct {
		quiet  bool
		silent time.Duration // after the result
		want   string
	}{{false, 0, ""}, {false, longWait + 1, "kubejoin: waiting for more, for at most 1m\n"}, {true, longWait + 1, ""}} {
		synctest.Test(t, func(t *testing.T) {
			var errs lines
			cmd := &cobra.Command{}
			cmd.SetOut(slowPipe{})
			cmd.SetErr(&errs)
			cmd.Flags().Bool("quiet", test.quiet, "")
			done := waiting{"for more", time.Minute}.begin(cmd)
			out := cmd.OutOrStdout()
			for range 2 { // one line, also after two pauses
				must.Value(out.Write([]byte("result")))(t)
				time.Sleep(test.silent)
			}
			done()
			must.Value(out.Write([]byte("end")))(t)
			time.Sleep(time.Minute)
			if got := errs.String(); got != test.want {
				t.Errorf("%+v: got %q", test, got)
			}
		})
	}
}

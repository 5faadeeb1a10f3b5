package kubeadm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/test/harness"
)

// A killsTest is a cluster with one control plane. In a rotation of its CA, everything that writes is killed at each write.
type killsTest struct {
	*rotationTest
	killer *killer
	server []string // flags for the kubejoin there
	worker *Machine
	off    *Machine // a worker that is off in stage finish
}

// TestSurvivesKillsOfCARotation rotates the CA of a cluster. 'kubejoin ca apply' is killed at each write, and so is kubejoin
// in each step. The same command then completes what the killed one began. The DaemonSet in deploy/host applies on the
// other worker, and on the control plane at the end. The worker is off in stage finish, and joins again after the end.
func TestSurvivesKillsOfCARotation(t *testing.T) {
	harness.Parallel(t)
	k := newKillsTest(t)
	old := k.signing("ca")
	k.must(k.first.writeFile(t.Context(), certificateKeyFile, must.Value(k.ca("prepare"))(t)))
	k.killer = startKiller(t, k.Cluster)
	k.installHost("\n      automountServiceAccountToken:", "\n      nodeSelector: {applies: \"true\"}\n      automountServiceAccountToken:")
	k.applyKilled(k.first)

	k.survive(rotation.Trust, "trust")
	k.label(k.off, true)
	k.applyKilled(k.first)
	k.applyKilled(k.worker)
	k.nothingBehind()

	k.label(k.off, false) // its first request would come before the control plane has the new key
	k.survive(rotation.Switch, "switch")
	k.applyKilled(k.first, "--certificate-key-file="+certificateKeyFile)
	k.label(k.off, true)
	k.applyKilled(k.worker)
	k.nothingBehind()

	k.off.Stop()
	k.notReady(k.off) // until then, its last report counts
	k.refuse(k.off.Name, "finish", expireTokens)
	k.survive(rotation.Finish, "finish", expireTokens, "--leave-behind="+k.off.Name)
	k.applyKilled(k.first)
	k.applyKilled(k.worker)
	k.nothingBehind()
	k.survive("", "finish")
	k.passSettling()
	k.label(k.first, true)
	k.applyKilled(k.worker)
	harness.Wait(t, "the end of the rotation on "+k.first.Name, func() error {
		_, err := os.Stat(filepath.Join(k.first.root(), "/etc/kubernetes", pki.Backups))
		if err == nil {
			return errors.New("the backup is still there")
		}
		return nil
	})

	k.joinAgain()
	k.kubectl("wait", "--for=condition=Ready", "--timeout=3m", "nodes", "--all")
	k.checkKills()
	for _, m := range k.nodes {
		k.checkFiles(m)
	}
	k.wantGone(old, k.signing("ca"), 4)
}

func newKillsTest(t *testing.T) *killsTest {
	t.Helper()
	c := ForTest(t)
	k := &killsTest{rotationTest: &rotationTest{pair: &pair{Cluster: c, t: t, first: addMachine(t, c, "control-1")}}}
	k.nodes = []*Machine{k.first}
	patches, err := AllSignersOff()
	k.must(err)
	k.network(k.first)
	k.must(c.Init(t.Context(), patches))
	k.must(k.first.ImportProgram(t.Context(), image, harness.Kubejoin()))
	k.must(c.Install(t.Context(), image))
	line := k.request()
	k.add("worker-1", line)
	k.add("worker-2", line)
	k.worker, k.off = k.nodes[1], k.nodes[2]
	k.must(k.off.ImportProgram(t.Context(), image, harness.Kubejoin()))

	k.kubectl("create", "clusterrolebinding", "rotator", "--clusterrole=kubejoin:ca-rotator", "--serviceaccount=default:"+requester)
	k.kubectl("create", "clusterrolebinding", "expirer", "--clusterrole=kubejoin:token-admin", "--serviceaccount=default:"+requester)
	const bearer = "/run/bearer"
	k.must(k.first.writeFile(t.Context(), bearer, k.kubectl("create", "token", requester, "--audience=kubejoin")))
	k.server = []string{"--url=https://" + k.first.Address + ":9443", "--ca-file=/etc/kubernetes/pki/ca.crt", "--bearer-file=" + bearer}
	return k
}

const image = "ghcr.io/kubejoin/kubejoin:test"

// survive has kubejoin make a step, by one command again and again. It ends when the stage has begun; with no stage, when the
// rotation has ended.
func (k *killsTest) survive(to rotation.Stage, args ...string) {
	k.t.Helper()
	began, before := time.Now(), k.killer.kills()
	harness.Wait(k.t, "kubejoin ca "+strings.Join(args, " "), func() error {
		kills := k.killer.kills()
		_, err := k.ca(append(slices.Clone(args), k.server...)...)
		if err == nil {
			return nil
		}
		if k.killer.kills() == kills {
			if r := k.state(); strings.Contains(err.Error(), "not ready to finish") && r.Stage == to {
				return nil // the command that began the stage would end it, which is too early
			}
			return err
		}
		// A new pod starts at once. In the old one, the container would wait longer after each kill.
		k.kubectl("--namespace=kubejoin-system", "delete", "pods", "--selector=app.kubernetes.io/name=kubejoin", "--force", "--grace-period=0")
		k.kubectl("--namespace=kubejoin-system", "rollout", "status", "daemonset/kubejoin", "--timeout=3m")
		return err
	})
	if r := k.state(); to != "" && r.Stage != to || to == "" && r.InProgress() {
		k.t.Fatalf("after 'kubejoin ca %s', the rotation is in stage %s", strings.Join(args, " "), r.Stage)
	}
	k.t.Logf("ca %s: %.1f s; kubejoin was killed\n%s", strings.Join(args, " "), time.Since(began).Seconds(), strings.TrimPrefix(k.killer.kills(), before))
}

// state returns the stored rotation.
func (k *killsTest) state() rotation.Rotation {
	k.t.Helper()
	return storedRotation(k.t, k.kubectl)
}

// applyKilled applies the stage on a machine again and again. Each command is killed before another write, until one makes
// no new write.
func (k *killsTest) applyKilled(m *Machine, flags ...string) {
	k.t.Helper()
	began := time.Now()
	list := filepath.Join(k.t.TempDir(), "writes")
	harness.WaitFor(k.t, 6*time.Minute, "kubejoin ca apply on "+m.Name, func() error {
		cmd := m.Command(k.t.Context(), append([]string{os.Args[0], harness.Kubejoin(), "ca", "apply"}, flags...)...)
		cmd.Env = append(cmd.Env, tracerChild+"="+list)
		output, err := cmd.CombinedOutput()
		// exitUnfit: kubejoin may not have the new key yet.
		if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitKilled && exit.ExitCode() != exitUnfit) {
			k.t.Fatalf("kubejoin ca apply on %s: %v\n%s", m.Name, err, output)
		} else if err != nil && exit.ExitCode() == exitUnfit {
			err = fmt.Errorf("%w\n%s", err, output)
		}
		return err
	})
	content := strings.TrimSpace(string(must.Value(os.ReadFile(list))(k.t)))
	k.t.Logf("%s: %.1f s, killed %d times, before\n%s", m.Name, time.Since(began).Seconds(), strings.Count(content, "\n")+1, content)
	if strings.Count(content, "\n") < 3 {
		k.t.Errorf("too few writes: the test does not see all")
	}
}

// label says whether the DaemonSet applies on a machine.
func (k *killsTest) label(m *Machine, applies bool) {
	k.t.Helper()
	k.kubectl("label", "--overwrite", "node", m.Name, fmt.Sprintf("applies=%t", applies))
}

// nothingBehind waits until all hosts are in the stage. The next step itself can mend the rest.
func (k *killsTest) nothingBehind() {
	k.t.Helper()
	began := time.Now()
	harness.Wait(k.t, "nothing to be behind", func() error {
		text, err := k.first.Run(k.t.Context(), harness.Kubejoin(), "ca", "status", "--output=json")
		if err != nil {
			return err
		}
		var status api.CARotation
		k.must(json.Unmarshal([]byte(text), &status))
		for _, b := range status.Behind {
			if b.Kind != string(rotation.KindToken) && b.Kind != string(rotation.KindMerged) {
				err = errors.Join(err, errors.New(b.Why))
			}
		}
		return err
	})
	k.t.Logf("nothing was behind after %.1f s", time.Since(began).Seconds())
}

// notReady waits until the Node of a machine that is off is not ready.
func (k *killsTest) notReady(m *Machine) {
	k.t.Helper()
	k.kubectl("wait", "--for=condition=Ready=Unknown", "--timeout=3m", "node/"+m.Name)
}

// joinAgain joins the worker that was off, from scratch, in place of its Node.
func (k *killsTest) joinAgain() {
	k.t.Helper()
	name, dir := k.off.Name, k.off.dir
	k.off.Name, k.off.dir = name+"-off", dir+"-off" // which keeps its logs
	k.must(os.Rename(dir, k.off.dir))
	k.nodes = k.nodes[:2]
	k.add(name, k.on(k.first, harness.Kubejoin(), "token", "create", "--replace-node="+name, "--print-join-command"))
}

// leftover is the name of a temporary file.
var leftover = regexp.MustCompile(`/\.[^/]*$|\.kubejoin$|\.unfinished`)

// checkFiles fails if a killed command left something behind.
func (k *killsTest) checkFiles(m *Machine) {
	k.t.Helper()
	for name := range must.Value(filesBelow(m.root(), "/etc/kubernetes", "/var/lib/kubelet/pki"))(k.t) {
		if leftover.MatchString(name) || strings.Contains(name, pki.Backups+"/") {
			k.t.Errorf("%s is left behind on %s", name, m.Name)
		}
	}
}

// checkKills fails unless kubejoin was killed at each write.
func (k *killsTest) checkKills() {
	k.t.Helper()
	got := strings.Split(strings.TrimSpace(k.killer.kills()), "\n")
	slices.Sort(got)
	var want []string
	for _, when := range []string{"after", "before"} {
		for _, write := range []string{
			"delete extension-apiserver-authentication",
			"update kubejoin-ca-key: finish", "update kubejoin-ca-key: switch", "update kubejoin-ca-key: the end", "update kubejoin-ca-key: the end, no key", "update kubejoin-ca-key: trust",
			"update kubejoin-ca: finish", "update kubejoin-ca: switch", "update kubejoin-ca: the end", "update kubejoin-ca: trust",
		} {
			want = append(want, when+" "+write)
		}
	}
	if !slices.Equal(got, want) {
		k.t.Errorf("kubejoin was killed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

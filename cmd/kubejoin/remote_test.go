package main

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onKube runs commands with a kubeconfig, in this process.
type onKube struct {
	t          *testing.T
	kubeconfig string
}

// result is the output of a command and its error.
type result struct {
	t              *testing.T
	command        string
	stdout, stderr string
	err            error
}

func (k onKube) run(args ...string) result {
	k.t.Helper()
	var stdout, stderr bytes.Buffer
	err := run(k.t.Context(), append(slices.Clone(args), "--kubeconfig", k.kubeconfig), &stdout, &stderr)
	return result{k.t, strings.Join(args, " "), stdout.String(), stderr.String(), err}
}

// ok fails the test if the command has failed.
func (r result) ok() result {
	r.t.Helper()
	if r.err != nil {
		r.t.Fatalf("%s: %v\n%s", r.command, r.err, r.stderr)
	}
	return r
}

// failed fails the test unless the error of the command contains want.
func (r result) failed(want string) result {
	r.t.Helper()
	if r.err == nil || !strings.Contains(r.err.Error(), want) {
		r.t.Errorf("%s: %v, want %q", r.command, r.err, want)
	}
	return r
}

// has fails the test unless stdout contains each of the texts.
func (r result) has(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		if !strings.Contains(r.stdout, text) {
			r.t.Errorf("%s: want %q in\n%s", r.command, text, r.stdout)
		}
	}
	return r
}

// warned fails the test unless stderr contains the text.
func (r result) warned(text string) result {
	r.t.Helper()
	if !strings.Contains(r.stderr, text) {
		r.t.Errorf("%s: want %q in\n%s", r.command, text, r.stderr)
	}
	return r
}

func (r result) token() tokens.Token {
	r.t.Helper()
	token, err := tokens.Parse(strings.TrimSpace(r.stdout))
	if err != nil {
		r.t.Fatalf("%s: %v", r.command, err)
	}
	return token
}

// TestTokensOfCluster creates, lists, renews and deletes tokens and claims with a kubeconfig, on a real API server.
func TestTokensOfCluster(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	ctx := t.Context()
	client := c.Client()
	secrets := client.CoreV1().Secrets("kube-system")
	kube := onKube{t, c.Kubeconfig()}
	store := must.Value(secretstore.Open(ctx, client, nil))(t)
	claims := must.Value(secretstore.OpenClaims(ctx, client, store, secretstore.ClaimNamespace, nil))(t)

	// If no controller signs, the token must stay stored and be printed, and the error must name the missing signer.
	r := kube.run("token", "create", "--wait", "100ms").failed("no signature of the new token appeared in cluster-info within 100ms")
	r.failed("(there is no Lease kubejoin-system/kubejoin)")
	unsigned := r.token()
	kube.run("token", "get", unsigned.ID(), "-o", "wide").ok().has("unsigned")
	kube.run("token", "create", "--wait", "0").ok().token()

	signing, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- configmap.Signer{ConfigMap: configmap.Open(signing, client), Tokens: store}.Run(signing)
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	// kubeadm must list the token like its own.
	own := tokens.Generate()
	kube.run("token", "create", own.Reveal(), "--ttl", "2h", "--description", "rack 7").ok().has(own.Reveal())
	kube.run("token", "create", own.Reveal()).failed("token " + own.ID() + " already exists")
	line := kube.run("token", "create", "--print-join-command").ok().warned("is a loopback address").stdout
	args, err := cluster.JoinArgs(line)
	if err != nil || len(args) == 0 {
		t.Errorf("join command: %v", err)
	}
	const noUpload = "there is no Secret kube-system/kubeadm-certs, so no machine can join as control plane with this key"
	withKey := []string{"token", "create", "--print-join-command", "--certificate-key", strings.Repeat("5e", 32)}
	kube.run(withKey...).ok().warned(noUpload).has(" --certificate-key 5e5e")
	must.Value(secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-certs"}}, metav1.CreateOptions{}))(t)
	if r := kube.run(withKey...).ok(); strings.Contains(r.stderr, "kubeadm-certs") {
		t.Errorf("with an upload: got the warning %s", r.stderr)
	}
	theirs := kubeadm(t, c, "token", "create", "--print-join-command")
	mask := func(line string) string {
		words := strings.Fields(line)
		words[4] = "TOKEN"
		return strings.Join(words, " ")
	}
	if mask(line) != mask(theirs) {
		t.Errorf("join command %s, kubeadm's %s", mask(line), mask(theirs))
	}
	sameTable(t, kubeadm(t, c, "token", "list"), kube.run("token", "list", "--show-secrets").ok().stdout)
	if text := kube.run("token", "list", "-o", "json").ok().stdout; strings.Contains(text, own.RevealSecret()) {
		t.Error("got token secrets in the list")
	}
	kube.run("token", "list", "--show-secrets", "-o", "csv").ok().has(own.Reveal() + ",system:bootstrap:" + own.ID() + `,,"system:bootstrappers,` + tokens.DefaultGroup + `"`)

	// kubejoin stores the limits in the Secret. If no kubejoin runs on the cluster, it prints a warning.
	const noKubejoin = "no kubejoin is known to run on this cluster (there is no Lease kubejoin-system/kubejoin): if none runs with --leader-elect=false, start one"
	limited := kube.run("token", "create", "--max-nodes", "2", "--node-name", "worker-*", "--certificate-duration", "48h").ok().warned(noKubejoin).token()
	secret := must.Value(secrets.Get(ctx, "bootstrap-token-"+limited.ID(), metav1.GetOptions{}))(t)
	for key, want := range map[string]string{"max-nodes": "2", "node-names": "worker-*", "certificate-duration": "48h0m0s"} {
		if got := secret.Annotations["kubejoin.io/"+key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
	kube.run("token", "create", "--replace-node", "worker-9").failed("there is no Node worker-9")
	node := must.Value(client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-9"}}, metav1.CreateOptions{}))(t)
	kube.run("token", "create", "--replace-node", "worker-9", "-o", "json").ok().has(`"uid": "` + string(node.UID) + `"`)

	// The command reads the UID of an owner with the rights of its user.
	owner := "v1/Node/worker-9/" + string(node.UID)
	owned := kube.run("token", "create", tokens.Generate().Reveal(), "--owner", "v1/Node/worker-9", "--wait", "0").ok().token()
	kube.run("token", "get", owned.ID(), "-o", "yaml").ok().has("owner: " + owner)
	kube.run("token", "create", owned.Reveal(), "--owner", owner, "--wait", "0").ok()
	kube.run("token", "create", owned.Reveal(), "--wait", "0").failed("differs in owner")
	kube.run("token", "create", "--owner", "v1/Node/worker-8").failed(`--owner: cannot read v1/Node/worker-8: nodes "worker-8" not found; give its UID`)
	kube.run("token", "create", "--owner", "v1/Pod/a").failed("--owner: Pod of v1 is namespaced; want a cluster-scoped object")
	kube.run("token", "create", "--owner", "v1/Machine/a").failed("the API server has no kind Machine in v1")
	kube.run("token", "create", "--owner", "karpenter.sh/v1/NodeClaim/a").failed("cannot read karpenter.sh/v1/NodeClaim/a: the server could not find the requested resource")
	kube.run("token", "create", "--owner", "rbac.authorization.k8s.io/v1/ClusterRole/system:node", "--print-join-command").ok()

	// A held Lease prevents the warning. After the Lease has expired, kubejoin prints the warning again.
	if r := kube.run("token", "create", "--max-nodes", "1", "--dry-run").ok().warned(noKubejoin); r.stdout == "" {
		t.Error("no token is printed")
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secretstore.ClaimNamespace}}
	must.Value(client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}))(t)
	leases := client.CoordinationV1().Leases(secretstore.ClaimNamespace)
	now, holder, lasts := metav1.NowMicro(), "replica-1", int32(3600)
	lease := must.Value(leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: tokens.OwnName},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &lasts, RenewTime: &now},
	}, metav1.CreateOptions{}))(t)
	if r := kube.run("token", "create", "--max-nodes", "1").ok(); r.stderr != "" {
		t.Errorf("while replica-1 leads: %s", r.stderr)
	}
	// Without the right of its leader, the Nodes would not get what their token says.
	labeled := []string{"token", "create", "--node-label", "node-role.kubernetes.io/gpu=,b.node-restriction.kubernetes.io/a=1", "--node-taint", "gpu:NoSchedule", "--node-ready-after", "serving-certificate", "--wait", "0"}
	kube.run(labeled...).failed("--node-label: kubejoin may not patch Nodes; apply deploy/node-properties.yaml")
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, leader.NodePropertiesAnnotation, "true")
	lease = must.Value(leases.Update(ctx, lease, metav1.UpdateOptions{}))(t)
	with := kube.run(labeled...).ok().token()
	kube.run("token", "get", with.ID(), "-o", "wide").ok().has("labels=b.node-restriction.kubernetes.io/a=1|node-role.kubernetes.io/gpu=,taints=gpu:NoSchedule,ready-after=serving-certificate")
	kube.run(append(slices.Clone(labeled), with.Reveal())...).ok()
	kube.run("token", "create", with.Reveal(), "--wait", "0").failed("differs in nodeLabels, nodeTaints, nodeReadyAfter")
	past := metav1.NewMicroTime(now.Add(-2 * time.Hour))
	lease.Spec.RenewTime = &past
	must.Value(leases.Update(ctx, lease, metav1.UpdateOptions{}))(t)
	kube.run("token", "create", "--max-nodes", "1").ok().warned("no replica holds the Lease kubejoin-system/kubejoin")

	// kubejoin lists and releases a claim, and the slot is free again.
	record := must.Value(store.Update(ctx, limited.ID(), func(r *tokens.Record) error { r.Nodes = []string{"worker-1", "worker-2"}; return nil }))(t)
	for _, name := range record.Nodes {
		must.Value(storetest.CreateClaim(ctx, claims, tokens.Claim{Node: name, TokenID: limited.ID(), TokenUID: record.UID, Limits: record.Limits}))(t)
	}
	kube.run("claim", "list").ok().has("worker-1", "worker-2", limited.ID())
	kube.run("token", "get", limited.ID(), "-o", "wide").ok().has("spent", "2/2", "worker-1,worker-2")
	kube.run("token", "renew", limited.ID()).failed("is spent (used by worker-1, worker-2)")
	kube.run("claim", "release", "worker-1").ok().has("claim of token " + limited.ID() + ` on node name "worker-1" released`)
	kube.run("claim", "release", "worker-1").failed("there is no claim on node name worker-1")
	if record, err := store.Get(ctx, limited.ID(), tokens.Live); err != nil || !slices.Equal(record.Nodes, []string{"worker-2"}) {
		t.Errorf("nodes %v, %v", record.Nodes, err)
	}
	if c, err := claims.Get(ctx, "worker-1", tokens.Live); err != nil || !c.Released() || c.Past.CertificateDuration != record.Limits.CertificateDuration {
		t.Errorf("claim: %+v, %v", c, err) // it must have a Past, because its certificates may still be valid
	}

	// kubejoin keeps machines in claims. It has no handshakes on the cluster, and the kubeconfig names no kubejoin.
	kube.run("machine", "add", "worker-9", "--key", "lusab-babad-gutih-tugad").failed("a Node has the node name worker-9")
	kube.run("machine", "add", "rack-1", "--key", "lusab-babad-gutih-tugad", "--ttl", "1h").ok().has("machine rack-1 added")
	kube.run("machine", "add", "rack-1", "--key", "lusab-babad-gutih-tugad", "--ttl", "1h").ok().has("machine rack-1 unchanged")
	kube.run("machine", "list", "-o", "wide").ok().has("rack-1", "waiting", "kubernetes-admin")
	kube.run("machine", "get", "rack-1", "-o", "yaml").ok().has("addedBy: kubernetes-admin")
	kube.run("machine", "list", "--pending").failed("--pending: needs a kubejoin server")
	kube.run("machine", "print-join-command").failed("--endpoint: none given, want the HOST:PORT of a kubejoin server")
	kube.run("machine", "print-join-command", "--endpoint", "join.example.com:9443").ok().has("#!/bin/sh", "join.example.com:9443")
	kube.run("machine", "delete", "rack-1").ok().has("machine rack-1 deleted")
	kube.run("machine", "get", "rack-1").failed("node name rack-1 has no machine with a key of its own")

	// A cluster has no issuance record.
	kube.run("issued", "list").failed("this command needs a kubejoin server")
	kube.run("issued", "show", "1f").failed("this command needs a kubejoin server")

	// Tokens are renewed and deleted.
	kube.run("token", "renew", own.ID(), "--ttl", "1h").failed("would make it expire sooner")
	kube.run("token", "renew", own.ID(), "--ttl", "48h").ok()
	if record, err := store.Get(ctx, own.ID(), tokens.Live); err != nil || time.Until(record.Expires) < 47*time.Hour {
		t.Errorf("expires %s, %v", record.Expires, err)
	}
	r = kube.run("token", "delete", own.Reveal(), "nonono", unsigned.ID()).failed("1 of 3 failed")
	r.has(`bootstrap token "`+own.ID()+`" deleted`, `bootstrap token "`+unsigned.ID()+`" deleted`).warned("there is no token nonono")
	old := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now().Add(-2*time.Hour))
	must.Value(store.Create(ctx, old))(t)
	if r := kube.run("token", "delete", "--all-expired").ok(); r.stdout != "bootstrap token \""+old.Token.ID()+"\" deleted\n" {
		t.Errorf("expired ones: %s", r.stdout)
	}
}

// TestReportsMissingPermissions checks that a command fails at once with the error of the API server.
func TestReportsMissingPermissions(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	ctx := t.Context()
	kubeconfig := must.Value(c.ServiceAccountKubeconfig(ctx, "default", "visitor"))(t)
	visitor := onKube{t, kubeconfig}
	for _, args := range [][]string{
		{"token", "list"}, {"token", "list", "--show-secrets"}, {"token", "get", "qwertz"}, {"token", "create"}, {"token", "create", "--dry-run"},
		{"token", "delete", "qwertz"}, {"token", "delete", "--all-expired"}, {"token", "renew", "qwertz"},
	} {
		if r := visitor.run(args...).failed(`User "system:serviceaccount:default:visitor" cannot`); r.stdout != "" {
			t.Errorf("%s prints %s", r.command, r.stdout)
		}
	}
	visitor.run("claim", "list").failed(`cannot list resource "leases"`)
	visitor.run("claim", "release", "worker-1").failed(`cannot list resource "leases"`)
	for _, args := range [][]string{{"list"}, {"get", "rack-1"}, {"delete", "rack-1"}, {"add", "rack-1", "--key", "lusab-babad-gutih-tugad"}} {
		visitor.run(append([]string{"machine"}, args...)...).failed(`cannot list resource "leases"`)
	}

	// A user who may read tokens but not claims must see the tokens.
	must.Value(c.Client().RbacV1().Roles("kube-system").Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "visitor"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{}))(t)
	must.Value(c.Client().RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "visitor"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "visitor"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "visitor"},
	}, metav1.CreateOptions{}))(t)
	token := onKube{t, c.Kubeconfig()}.run("token", "create", "--wait", "0").ok().token()
	for { // RBAC applies the role with a delay
		r := visitor.run("token", "list", "-o", "name")
		if r.err == nil {
			r.has(token.ID())
			break
		}
		r.failed("cannot list")
		if t.Failed() {
			break
		}
	}

	// An unreachable API server must give an error.
	c.StopAPIServer()
	for _, args := range [][]string{{"token", "list"}, {"token", "create"}, {"claim", "list"}} {
		if r := visitor.run(args...).failed("connect: connection refused"); r.stdout != "" {
			t.Errorf("%s prints %s", r.command, r.stdout)
		}
	}
}

func kubeadm(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "kubeadm"), append(args, "--kubeconfig", c.Kubeconfig())...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubeadm %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// sameTable compares two lists of tokens, without the remaining time.
func sameTable(t *testing.T, theirs, ours string) {
	t.Helper()
	rows := func(table string) []string {
		var rows []string
		for line := range strings.Lines(table) {
			words := strings.Fields(line)
			rows = append(rows, strings.Join(slices.Delete(words, 1, 2), " "))
		}
		slices.Sort(rows)
		return rows
	}
	// Only kubejoin has the last column.
	header, _, _ := strings.Cut(ours, "\n")
	kubeadms := ""
	for line := range strings.Lines(ours) {
		kubeadms += line[:strings.Index(header, "STATUS")] + "\n"
	}
	if a, b := rows(theirs), rows(kubeadms); !slices.Equal(a, b) || len(a) < 5 {
		t.Errorf("kubeadm's list:\n%s\nand ours:\n%s", theirs, ours)
	}
}

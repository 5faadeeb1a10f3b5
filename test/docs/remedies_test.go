package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// A remedy is a text that tells a reader to destroy something.
type remedy struct {
	file string
	// states is the part of the text that states when the remedy is right.
	states string
	// checks is the test, or the file of the test, which shows that the remedy appears only in the right case. If the
	// reader has to check that, it is the command for the check, which the text or its section must name.
	checks string
}

var remedies = []remedy{
	// code
	{"clusterinfo/joinformat/certificatekey.go", "if nobody needs them any more", "TestKeyEnds"},
	{"clusterinfo/joinformat/diagnose.sh", "no kubelet can use this machine", "TestDiagnoseOffersResetOnlyForUnusedMachine"},
	{"clusterinfo/joinformat/script.sh", "which removes what this join wrote", "TestScriptReportsFailureOfKubeadm"},
	{"clusterinfo/joinformat/script.sh", "differs from the cluster CA: if no other cluster uses it", "TestScriptWritesFiles"},
	{"clusterinfo/mint/change.go", "is malformed, and renewing it does not help", "TestRenew"},
	{"clusterinfo/mint/change.go", "if no control plane still joins with the upload", "TestDelete"},
	{"clusterinfo/mint/error.go", "if no machine still joins with the existing one", "TestRepeatedCreateReturnsSameToken"},
	{"clusterinfo/mint/error.go", "cluster-info is full", "TestRefusesTokensWhenClusterInfoIsFull"},
	{"clusterinfo/mint/minter.go", "if those machines will not join", "TestRefusesIDOfDeletedTokenWithClaims"},
	{"clusterinfo/mint/quota.go", "those that no machine still joins with", "TestBoundsTokensOfOneUser"},
	{"cmd/kubejoin/ca.go", "wait until 'kubejoin ca status' lists nothing that is behind", "kubejoin ca status"},
	{"cmd/kubejoin/ca.go", "Once 'kubejoin ca status' lists nothing that is behind", "kubejoin ca status"},
	{"cmd/kubejoin/ca.go", "once nothing trusts the old CA", "TestEachPrecondition"},
	{"cmd/kubejoin/ca.go", "If 'kubejoin ca status' still shows a rotation", "kubejoin ca status"},
	{"cmd/kubejoin/ca_prepare.go", "if %s shows stage prepare, the certificate key is lost", "TestCAPrepareSaysThatLostResponseHadKey"},
	{"cmd/kubejoin/certs.go", "If 'kubejoin certs list' shows an upload that nobody needs any more", "kubejoin certs list"},
	{"cmd/kubejoin/kubeconfig_bootstrap.go", "was created for this file and is unused", "cmd/kubejoin/testdata/script/bootstrap_new_token.txtar"},
	{"cmd/kubejoin/token_create_join.go", "nothing was printed", "TestPrintsJoinCommandOrNothing"},
	{"internal/doctor/controlplane.go", "if machines on it were destroyed", "kubejoin revoke list"},
	{"internal/doctor/discovery.go", "although machines read it from kubejoin at", "TestDiagnose"},
	{"internal/doctor/state.go", "is not Ready since %s (%s) and keeps its name from other machines: replace it, or if its machine is gone", "TestDiagnose"},
	{"internal/doctor/tokens.go", "is in public documentation", "TestDiagnose"},
	{"internal/doctor/tokens.go", "was picked by hand", "TestHandPicked"},
	{"internal/doctor/tokens.go", "token %s is malformed", "TestDiagnose"},
	{"internal/doctor/tokens.go", "so it admits nobody", "TestDiagnose"},
	{"internal/host/datadir/datadir.go", "is empty, although %s exists: restore a backup, or if there is none", "TestCheckStoreRefusesEmptyFileBesideOthers"},
	{"internal/host/pki/cluster.go", "if it is gone", "TestLockBelievesNoLeaseForLong"},
	{"internal/kube/caobserver/objects.go", "it is immutable", "TestObserveShowsWhatIsBehind"},
	{"internal/kube/caobserver/objects.go", "it has a CA that is not trusted now", "TestFinishNamesOldCAInPublishedAuthentication"},
	{"internal/kube/tokenwarning/tokenwarning.go", "when it is full", "TestFillMonitorWarnsOnce"},
	{"internal/storecopy/check.go", "if no backup has the row", "TestCheckFindsEachViolation"},
	{"internal/storecopy/copy.go", "the copy cannot be used", "TestIncompleteCopyCannotBeUsed"},
	{"internal/storecopy/check.go", "it joined more nodes than allowed", "TestCheckFindsEachViolation"},
	{"internal/storecopy/check.go", "if the machine will not join", "TestCheckFindsEachViolation"},
	{"server/explain/token.go", "if no other machine is to join with this name", "TestExplain"},
	{"server/explain/turn.go", "if no machine joins with that address", "TestExplain"},
	{"server/rejoin.go", "If you do not expect this", "TestServerBindsKeys"},
	{"server/turn.go", "if that machine no longer joins", "TestControlPlanesTakeTurns"},
	{"signer/admission/identity.go", "if that key is lost", "TestBindsOneKey"},
	{"signer/admission/machine.go", "if its machine was reinstalled", "TestStandaloneMachineProvesUntilItHasJoined"},
	{"signer/admission/plan.go", "now uses its certificate; if that machine is gone", "TestStandaloneRenewalConfirmsClaim"},
	{"signer/admission/plan.go", "if only one machine uses this name", "TestAdmitsThreeKeysUntilNodeRegisters"},
	{"signer/admission/plan.go", "if its machine no longer exists", "TestAdmitAppliesLimitsOfToken"},
	{"signer/admission/plan.go", "if that machine will not join", "TestAdmitAppliesLimitsOfToken"},
	{"signer/approval/serving.go", "if that machine no longer exists", "TestKubeletServingDecidesOnEvidence"},
	{"signer/revocation/desk/desk.go", "cannot read now when the last certificate ends", "TestRevokeReportsEachFailedCall"},
	{"signer/revocation/desk/desk.go", "the token that admitted the node, if 'kubejoin token list -o wide' has it", "TestRevokeNodeWarns"},
	{"signer/revocation/desk/desk.go", "which admitted the node, still works", "TestRevokeNodeWarns"},
	{"signer/revocation/desk/desk.go", "delete those that the machine may have", "TestRevokeNodeWarns"},
	{"signer/revocation/desk/desk.go", "is revoked, and a release gives its slot back", "TestCheckRelease"},
	{"signer/revocation/desk/desk.go", "if machines on it were destroyed", "TestRevokeTokenMakesItUnusableFirst"},
	{"signer/rotation/clusterstore/clusterstore.go", "if you began no rotation", "TestOnlySecretHasTheState"},
	{"signer/rotation/clusterstore/clusterstore.go", "has all rotations of this ConfigMap", "TestPublishRemovesOtherData"},
	{"signer/rotation/desk.go", "the key of the new CA is not stored any more", "TestKeyThatSomebodyDeletedIsNoticed"},
	{"signer/rotation/report.go", "if nothing needs it", "TestReportHoldsUpSteps"},
	{"signer/rotation/rotation.go", "the rotation is being aborted", "TestStagesFollowEachOther"},
	{"signer/rotation/rotation.go", "if it is gone for good", "TestEachPrecondition"},
	{"signer/rotation/rotation.go", "if no machine still joins with it", "TestEachPrecondition"},
	{"signer/rotation/rowstate/store.go", "if it is lost", "TestRotationThatLostItsSecretGoesBack"},
	{"signer/rotation/rowstate/store.go", "cannot decrypt the new CA key with the old CA key", "TestKeyIsStoredEncrypted"},
	{"tokens/secretstore/lease.go", "if no machine uses the name", "TestMalformedClaimKeepsName"},
	// tables of codes
	{"docs/machines.md", "Do that only if the machine was reinstalled", "TestStandaloneMachineProvesUntilItHasJoined"},
	{"docs/codes.md", "Somebody changed cluster-info to something that no machine should trust", "TestPublishesNoUnusableClusterInfo"},
	{"docs/codes.md", "if no machine joins with this one", "TestRepeatedCreateReturnsSameToken"},
	{"docs/codes.md", "The stored token is malformed", "TestRenew"},
	{"docs/codes.md", "kubejoin probably did not store the token", "TestReasonsOfMintAreProblems"},
	{"docs/codes.md", "if no control plane joins any more", "TestDelete"},
	{"docs/codes.md", "if the bound key is lost", "kubejoin explain NODE"},
	{"docs/codes.md", "if its machine is gone", "kubejoin explain NODE"},
	{"docs/codes.md", "if that machine is gone", "kubejoin explain NODE"},
	{"docs/codes.md", "if the machine has not joined", "sh join.sh --diagnose"},
	{"docs/codes.md", "if one machine uses the name", "kubejoin explain NODE"},
	{"docs/codes.md", "The node is revoked, and the release would give its slot back to a token that still works", "TestCheckRelease"},
	{"docs/codes.md", "if you do not expect it", "TestServerBindsKeys"},
	{"docs/codes.md", "a token secret was picked by hand, or is in public documentation", "TestHandPicked"},
	{"docs/codes.md", "a token or its limits are malformed", "TestDiagnose"},
	{"docs/codes.md", "because the ConfigMap has no space for its signature. | delete tokens that no machine joins with", "TestRefusesTokensWhenClusterInfoIsFull"},
	{"docs/codes.md", "because the user has `--user-tokens` live tokens. | delete tokens that no machine joins with", "TestBoundsTokensOfOneUser"},
	{"docs/codes.md", "cluster-info is 80 % full | delete tokens that no machine joins with", "TestFillMonitorWarnsOnce"},
	{"docs/codes.md", "cluster-info has no space for another signature | delete tokens that no machine joins with", "TestFillMonitorWarnsOnce"},
	{"docs/codes.md", "507 | The list of revocations is full", "TestRevokeTokenMakesItUnusableFirst"},
	{"docs/codes.md", "and remove entries of destroyed machines, see", "kubejoin revoke list"},
	// pages
	{"docs/ca.md", "if no machine joins with an old join command any more", "kubejoin ca status"},
	{"docs/ca.md", "If `kubejoin ca status` shows a rotation", "kubejoin ca status"},
	{"docs/ca.md", "if status lists nothing else that is behind", "kubejoin ca status"},
	{"docs/configuration.md", "delete tokens that no machine joins with", "kubejoin token list"},
	{"docs/control-planes.md", "If no control plane joins with it any more", "kubejoin certs list"},
	{"docs/control-planes.md", "If no machine joins with that address", "kubejoin explain NODE"},
	{"docs/control-planes.md", "If a join command leaked", "kubejoin token list"},
	{"docs/diagnose.md", "no kubelet can use this machine", "TestDiagnoseOffersResetOnlyForUnusedMachine"},
	{"docs/diagnose.md", "only if no kubelet uses the machine, or its certificate has expired", "TestDiagnoseOffersResetOnlyForUnusedMachine"},
	{"docs/install.md", "If `kubejoin doctor` then reports `cluster-info-public`", "kubejoin doctor"},
	{"docs/migrate-from-kube-controller-manager.md", "delete tokens with limits", "kubejoin token list -o wide"},
	{"docs/migrate-from-kube-controller-manager.md", "has reported `kcm-signs` for each control plane", "kubejoin doctor"},
	{"docs/migrate-from-kube-controller-manager.md", "If `kubejoin doctor` has reported `kcm-signs` for a control plane", "kubejoin doctor"},
	{"docs/migrate-from-kube-controller-manager.md", "for which `kubejoin doctor` has reported `kcm-signs`", "kubejoin doctor"},
	{"docs/migrate-from-kube-controller-manager.md", "If nobody renews the Lease any more", "kubectl -n kubejoin-system get lease kubejoin"},
	{"docs/node-properties.md", "When no Node has it", "kubectl describe nodes"},
	{"docs/operate.md", "because the restored counts lack nodes", "kubejoin token list"},
	{"docs/pipelines.md", "If a token leaks", "kubejoin token list"},
	{"docs/protocol.md", "If `kubejoin doctor` says so too", "kubejoin doctor"},
	{"docs/rejoin.md", "If the bound key is lost", "kubectl get node NODE"},
	{"docs/revocation.md", "A dry run names the token while it works", "kubejoin revoke worker-7 --dry-run"},
	{"docs/revocation.md", "If the machine is out and does not come back", "kubejoin revoke list"},
	{"docs/revocation.md", "If nobody else had access to it", "kubectl get node worker-7"},
	{"docs/revocation.md", "If ALLOWED SINCE is not 0 and you did not let the machine come back", "kubejoin revoke list"},
	{"docs/revocation.md", "kubejoin refuses to release the name while the token works", "TestCheckRelease"},
	{"docs/revocation.md", "if the machine was destroyed", "kubejoin revoke list"},
	{"docs/revocation.md", "only for entries of a machine that was destroyed", "kubejoin revoke list"},
	{"docs/revocation.md", "has machines that were destroyed", "kubejoin revoke list"},
	{"docs/security.md", "A stolen node", "TestStandaloneRenewalConfirmsClaim"},
	{"docs/tokens.md", "If no machine joins with a token any more", "kubejoin token list"},
	{"docs/tokens.md", "only if no machine joins with it any more", "kubejoin token list"},
	{"docs/tokens.md", "shows no Ready Node, or the machine is to leave", "kubectl get node NODE"},
	{"docs/tokens.md", "if its machine is gone", "kubectl get node NODE"},
	{"docs/tokens.md", "If that machine is gone", "kubejoin claim list"},
	{"docs/troubleshooting.md", "If it does not say that the machine has joined", "kubejoin explain"},
	{"docs/troubleshooting.md", "on it before the next `kubeadm join`", "kubectl get node NODE"},
	{"docs/troubleshooting.md", "If the machine has no Ready Node (`kubectl get node NODE`), run `kubeadm reset -f` on it, then the printed command", "kubectl get node NODE"},
	{"docs/troubleshooting.md", "If its machine is gone", "kubectl get node NODE"},
	{"docs/troubleshooting.md", "shows no joined node, and the other machine is gone", "kubejoin explain NODE"},
	{"docs/troubleshooting.md", "Then delete tokens that no machine joins with", "kubejoin token list"},
	{"docs/zh-CN/install.md", "如果此后 `kubejoin doctor` 报告 `cluster-info-public`", "kubejoin doctor"},
	{"docs/zh-CN/tokens.md", "如果不再有机器用某个令牌加入", "kubejoin token list"},
	{"docs/zh-CN/tokens.md", "只有不再有机器用它加入时", "kubejoin token list"},
	{"docs/zh-CN/tokens.md", "没有显示 Ready 的 Node，或者机器要离开集群", "kubectl get node NODE"},
	{"docs/zh-CN/tokens.md", "机器已经不存在，Node 已被删除", "kubectl get node NODE"},
	{"docs/zh-CN/tokens.md", "如果那台机器已经不存在", "kubejoin claim list"},
	{"docs/zh-CN/troubleshooting.md", "如果它没有说机器已经加入", "kubejoin explain"},
	{"docs/zh-CN/troubleshooting.md", "再次执行 `kubeadm join` 之前", "kubectl get node NODE"},
	{"docs/zh-CN/troubleshooting.md", "先在机器上执行 `kubeadm reset -f`，再执行输出的命令", "kubectl get node NODE"},
	{"docs/zh-CN/troubleshooting.md", "如果机器已经不存在", "kubectl get node NODE"},
	{"docs/zh-CN/troubleshooting.md", "没有显示已加入的节点，而且另一台机器已经不存在", "kubejoin explain NODE"},
}

var (
	// destroys matches commands that destroy something, in text and in source code. Its last parts match sentences.
	destroys = regexp.MustCompile(`kubeadm reset|kubectl( [^ ]+){0,8} delete\b|kubejoin (token|certs) delete|kubejoin claim release|revoke undo|ca (finish|abort)\b|` +
		`[.]Command[(](abort|"abort"|"finish")|(%s|") ?--(expire-tokens|leave-behind)|([` + "`'" + `]|: |sudo )rm |(?m:^rm )|` +
		`[Rr]emove (those|entries)|([Rr]emove|[Dd]elete) (the (member|Lease|row|Node|token|upload|ConfigMap)\b|it( with|;))|[:,] (or )?delete %|([:,|] |"|Then )[Dd]elete tokens`)
	// ownHelp are the fields of a cobra.Command that show the command itself.
	ownHelp = []string{"Use", "Short", "Example"}
	mdItem  = regexp.MustCompile(`^(?: *- | *\d+\. |\|)`)
)

// A text is a piece of text for a reader.
type text struct {
	content, lines string // content is the text in one line
	section        *strings.Builder
}

// textsIn returns the texts of a file that destroy something.
func textsIn(t *testing.T, name, content string) (texts []text) {
	t.Helper()
	begin := func(section *strings.Builder) { texts = append(texts, text{section: section}) }
	extend := func(line string) {
		last := &texts[len(texts)-1]
		last.lines += line
		line = " " + strings.Join(strings.Fields(line), " ")
		last.content += line
		last.section.WriteString(line)
	}
	switch filepath.Ext(name) {
	case ".go": // one text per statement or field with a string
		file := must.Value(parser.ParseFile(token.NewFileSet(), name, content, parser.SkipObjectResolution))(t)
		source := func(n ast.Node) string { return content[n.Pos()-1 : n.End()-1] }
		var last ast.Node
		ast.PreorderStack(file, nil, func(n ast.Node, parents []ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				return !slices.Contains(ownHelp, source(n.Key))
			case *ast.BinaryExpr, *ast.BasicLit, *ast.CallExpr:
				if _, call := n.(*ast.CallExpr); !destroys.MatchString(source(n)) || call && !strings.HasPrefix(destroys.FindString(source(n)), ".Command") {
					return true
				}
				for _, p := range slices.Backward(parents) {
					switch p.(type) {
					case ast.Stmt, *ast.KeyValueExpr, *ast.CompositeLit, *ast.ValueSpec:
						if p != last {
							last = p
							begin(&strings.Builder{})
							extend(source(p))
						}
						return true
					}
				}
			}
			return true
		})
	case ".sh":
		for line := range strings.Lines(content) {
			if !strings.HasPrefix(strings.TrimSpace(line), "#") {
				begin(&strings.Builder{})
				extend(line)
			}
		}
	default: // one text per paragraph, list item or table row, with the code below it
		section, code, ended := &strings.Builder{}, false, true
		for line := range strings.Lines(content) {
			title := !code && mdTitle.MatchString(line)
			if title {
				section = &strings.Builder{}
			}
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				code = !code
			case code:
			case strings.HasPrefix(line, "<!--"):
				continue
			case title, ended, mdItem.MatchString(line):
				begin(section)
			}
			ended = !code && strings.TrimSpace(line) == ""
			extend(line)
		}
	}
	return slices.DeleteFunc(texts, func(text text) bool { return !destroys.MatchString(text.content + "\n" + text.lines) })
}

// Each text that tells a reader to destroy something must state when that is right. The code must check this condition, or
// the text must name a command with which the reader checks it.
func TestRemediesThatDestroyStateWhatWasChecked(t *testing.T) {
	t.Parallel()
	declared, files := declaredTests(t), pages(t)
	for _, name := range []string{"CHANGELOG.md", "CONTRIBUTING.md"} {
		delete(files, name)
	}
	root := harness.RepositoryFile(t, "")
	for _, dir := range []string{"clusterinfo", "cmd", "deploy", "internal", "server", "signer", "tokens"} {
		must.OK(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch name := strings.TrimPrefix(path, root+"/"); {
			case err != nil:
				return err
			case d.Name() == "testdata", name == "internal/testing":
				return fs.SkipDir
			case name == "internal/codes/codepage/entries.go", name == "internal/doctor/findings.go": // docs/codes.md has the same texts
			case strings.HasSuffix(name, ".sh"), strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				files[name] = string(harness.ReadFile(t, path))
			}
			return nil
		}))
	}
	uses := map[remedy]int{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, text := range textsIn(t, name, files[name]) {
			found := false
			for _, r := range remedies {
				if r.file != name || !strings.Contains(text.content, r.states) {
					continue
				}
				found = true
				uses[r]++
				_, err := os.Stat(filepath.Join(root, r.checks))
				script := err == nil && strings.HasSuffix(r.checks, ".txtar")
				command := strings.Contains(r.checks, " ") && strings.Contains(text.section.String(), r.checks)
				if declared[r.checks] == nil && !script && !command {
					t.Errorf("%s: %q: there is no %q", name, r.states, r.checks)
				}
			}
			if !found {
				t.Errorf("%s: no entry says when this is right:\n%s", name, text.content)
			}
		}
	}
	for _, r := range remedies {
		if uses[r] != 1 {
			t.Errorf("%s: %d texts that destroy something state %q, want one", r.file, uses[r], r.states)
		}
	}
}

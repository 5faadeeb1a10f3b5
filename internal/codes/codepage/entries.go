package codepage

import (
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
)

// Next steps that several codes share.
const (
	oneMachine   = "`kubejoin token create --max-nodes 1 --node-name NODE --print-join-command`"
	replaceNode  = "`kubejoin token create --replace-node NODE`"
	rotateCA     = "rotate the CA: docs/ca.md"
	renewCA      = "renew the CA: docs/operate.md#renew-an-expired-ca"
	otherSigner  = "switch one of the two off: docs/migrate-from-kube-controller-manager.md"
	comeBack     = "let the machine come back: docs/revocation.md#let-a-machine-come-back"
	signerFile   = "`kubejoin signer-config check FILE`"
	limitsFile   = "`kubejoin token-limits check FILE`"
	applyAll     = "`kubectl apply -f deploy/manifests`"
	fewerTokens  = "delete tokens that no machine joins with, or `kubejoin serve --advertise HOST:PORT`"
	restoreFiles = "restore the files"
)

// Verdicts: what kubejoin does with a request that has a reason.
const (
	denied      = "denied"
	deniedHTTPS = "denied over HTTPS"
	notApproved = "not approved"
	waits       = "waits"
	noRefusal   = "no refusal"
	noRejoin    = "rejoin refused"
	noToken     = "no token for the machine"
)

var reasons = []Entry{
	{Reason, admission.ReasonTokenSpent, denied, "the node limit of the token is used up, or this node joined with it before", oneMachine},
	{Reason, admission.ReasonTokenExpired, denied, "the token has expired", oneMachine},
	{Reason, admission.ReasonTokenRevoked, denied, "the token was deleted, is malformed, or lacks usage `authentication`", oneMachine},
	{Reason, admission.ReasonTokenReplaced, denied, "the token was created after the request: another token now has the same ID", "if the machine has not joined, `kubeadm reset -f`, then join with the new token"},
	{Reason, admission.ReasonTokenLimitsMalformed, denied, "kubejoin cannot read the limits of the token, because somebody edited its Secret", "correct its annotations: docs/protocol.md#limits-on-the-secret-of-a-token"},
	{Reason, admission.ReasonNodeNameNotAllowed, denied, "the token allows other names, or no Node can have this name", oneMachine},
	{Reason, admission.ReasonNodeNameReserved, denied, "the name is in `--reserved-node-names`, and the token lacks role control-plane", "`kubejoin token create --role control-plane --max-nodes 1 --node-name NODE`"},
	{Reason, admission.ReasonNodeNameClaimed, denied, "another token or a machine with a key of its own holds the name", "`kubejoin claim release NODE` or `kubejoin machine delete NODE`, if that machine is gone"},
	{Reason, admission.ReasonNodeNameReleased, denied, "standalone: a node renews, and its claim was released", oneMachine},
	{Reason, admission.ReasonNodeExists, denied, "a Node has the name; standalone, the node of this token has joined", "if its machine is gone: `kubectl delete node NODE`, " + replaceNode + ", or standalone `kubejoin claim release NODE`"},
	{Reason, admission.ReasonNodeReplaced, denied, "the Node to replace was deleted and created again", replaceNode},
	{Reason, admission.ReasonNodeReplaced, noRejoin, "the Node was deleted and created again, or kubejoin has not stored its UID yet", "retry in a minute, then " + replaceNode},
	{Reason, admission.ReasonTooManyKeys, denied, "three other keys were admitted under this name, and no Node registered", "`kubejoin claim release NODE`, if one machine uses the name"},
	{Reason, admission.ReasonNodeNotFound, waits, "a node renews or requests a serving certificate, and has no Node", "wait; if the Node was deleted, " + oneMachine},
	{Reason, admission.ReasonNodeNotFound, noRejoin, "the Node was deleted", oneMachine},
	{Reason, admission.ReasonNotForBootstrap, denied, "a bootstrap token requests a certificate that is not a node's", "use a bootstrap token for nodes only"},
	{Reason, admission.ReasonNotForRejoin, denied, "a node without a valid client certificate requests another certificate, for example its serving certificate", "rejoin first, then request it"},
	{Reason, revocation.Reason, denied, "the certificate, the node or its token is revoked", comeBack},

	{Reason, admission.ReasonRejoinOff, noRejoin, "no `--rejoin-window`, or the token of the node denies it", replaceNode},
	{Reason, admission.ReasonRejoinTooLate, noRejoin, "the certificate expired longer ago than `--rejoin-window`", replaceNode},
	{Reason, admission.ReasonKeyNotCurrent, noRejoin, "kubejoin knows no key, this one is not current, or another one is bound", "unless a disk was copied, " + replaceNode + "; if the bound key is lost, `kubejoin claim release NODE`"},
	{Reason, admission.ReasonKeyReused, noRejoin, "the request is for a key that has been used before", "make a new key"},
	{Reason, admission.ReasonRejoinBudgetSpent, noRejoin, "the node has used up `--rejoin-budget`", "find out why its certificates expire, or raise the budget"},

	{Reason, admission.ReasonNodeIsReady, noToken, "the Node is still Ready: its machine was just reinstalled, or another machine has a copy of its key", "wait a minute after a reinstallation; if the key was copied, `kubejoin revoke NODE`"},
	{Reason, admission.ReasonMachineExpired, noToken, "the machine has expired", "`kubejoin machine delete NODE`, then add it again"},
	{Reason, admission.ReasonMachineRevoked, noToken, "the node was revoked, and so was the key of its machine", "`kubejoin machine delete NODE`, then add it with a new key"},
	{Reason, admission.ReasonMachineKeyDiffers, noToken, "the machine has another key with the same words", "if that key is not your machine's, `kubejoin machine delete NODE`, then add your machine with its whole key"},

	{Reason, approval.ReasonValidation, notApproved, "the request breaks the rules of its signer, or is too large; `Failed` if someone approves, and over HTTPS `certificate-refused`", "correct the request: the message says what"},
	{Reason, approval.ReasonNameForbidden, denied, "no kubelet may have this name or address in its serving certificate, for example `localhost`", "remove it from the machine, or set `--serving-leave-alone`"},
	{Reason, approval.ReasonNameReserved, denied, "the name belongs to the API server, kubejoin or a Service", "add control planes to `--reserved-node-names`, or set `--serving-leave-alone`"},
	{Reason, approval.ReasonTooManyNames, denied, "a serving certificate for more than 500 names and addresses", "remove addresses from the machine, or set `--serving-leave-alone`"},
	{Reason, approval.ReasonSubjectRestriction, deniedHTTPS, "the subject is in group `system:masters`", "use another group"},
	{Reason, approval.ReasonNodeRestriction, deniedHTTPS, "a node requests the certificate of another node", "inspect that node, which may be compromised"},

	{Reason, approval.ReasonNotPermitted, notApproved, "the requester lacks the permission for automatic approval, or to `sign`", "`kubectl certificate approve NAME`, or bind the role that `kubejoin explain` names"},
	{Reason, approval.ReasonNotRecognized, notApproved, "no rule of the signer matches the request", "`kubejoin explain --csr NAME`, then `kubectl certificate approve NAME`"},
	{Reason, approval.ReasonNotByNode, notApproved, "someone else requests the serving certificate of a node", "let the kubelet request it"},
	{Reason, approval.ReasonScopeNotConfigured, notApproved, "no flag allows names or addresses in serving certificates; a CSR object waits", "set `--serving-allowed-cidr`: docs/certificates.md"},
	{Reason, approval.ReasonNameOutOfScope, notApproved, "the flags do not allow the name or address in a serving certificate", "extend `--serving-allowed-cidr` or `--serving-allowed-dns-suffix`, or `kubectl certificate approve NAME`"},
	{Reason, approval.ReasonNameOfOther, notApproved, "another Node has the name or address", "delete that Node if its machine is gone, or `kubectl certificate approve NAME`"},
	{Reason, approval.ReasonAddressNotReported, waits, "the Node has not reported the name or address; standalone, kubejoin cannot verify it and does not approve", "`kubectl get node NODE -o wide`, and check `--node-ip`"},
	{Reason, approval.ReasonFactsUnavailable, waits, "kubejoin cannot read a fact, sign or record now", "wait: kubejoin retries for a day"},
	{Reason, signer.ReasonTooManyCertificates, waits, "the requester requests certificates too often; HTTPS returns 429", "find out why; kubejoin continues after a while"},

	{Reason, approval.ReasonAutoApproved, noRefusal, "a rule approves", ""},
	{Reason, signer.ReasonInOrder, noRefusal, "the signer would sign the request, if it is approved", ""},
	{Reason, signer.ReasonAdmitted, noRefusal, "the requester may have the node name", ""},
	{Reason, signer.ReasonUnknownSigner, noRefusal, "kubejoin has no such signer, and ignores the request", "configure it: docs/certificates.md"},
}

// states are the states that are not also reasons.
var states = []Entry{
	{State, string(api.Joined), "", "the Node is Ready", "if it is not your machine, another one has the name: `kubectl get node NODE -o wide`"},
	{State, string(api.JoinedNotReady), "", "the Node exists, and is not Ready", "`kubectl describe node NODE`"},
	{State, string(explain.NothingArrived), "", "no request came, but a live token or a machine with its own key has the name", "on the machine: `sh join.sh --diagnose`"},
	{State, string(explain.NothingKnown), "", "no request came, and no token is limited to the name", "on the machine: `sh join.sh --diagnose`"},
	{State, string(explain.NoClusterInfo), "", "no request came, and without cluster-info no machine discovers the cluster", "`kubejoin doctor`"},
	{State, string(explain.TokenUnsigned), "", "cluster-info has no signature by a usable token", "`kubejoin token list -o wide`"},
	{State, string(explain.TokenUnknown), "", "the token of the request does not exist", oneMachine},
	{State, string(explain.Denied), "", "the request was denied for another reason, which the sentence gives", "`kubectl describe csr NAME`"},
	{State, string(explain.Failed), "", "the signer refused the request for another reason, which the sentence gives", "`kubectl describe csr NAME`"},
	{State, string(explain.NotApproved), "", "the request is not approved, although it could be", "`kubejoin explain --csr NAME`"},
	{State, string(explain.NotSigned), "", "the request is approved, and not signed", "`kubejoin doctor`"},
	{State, string(explain.WaitsForTurn), "", "the machine waits until another control plane has joined", "wait: docs/control-planes.md"},
	{State, string(explain.Claimed), "", "a token holds the name, and there is neither a request nor a Node", "`kubejoin claim list`"},
	{State, string(explain.CertificateIssued), "", "the machine has its certificate, but there is no Node", "on the machine: `journalctl -u kubelet`"},
	{State, string(explain.CertificateExpired), "", "the certificate has expired, and no Node is Ready", "on the machine: `kubejoin rejoin`; without `--rejoin-window`, " + replaceNode},
	{State, string(explain.SignedByOther), "", "another signer issued the certificate, and there is no Node", otherSigner},
	{State, string(explain.WrongIssuer), "", "no CA in cluster-info issued the certificate, and there is no Node", "`kubejoin doctor`"},
	{State, string(explain.NodeDeleted), "", "the Node was deleted, and its machine cannot renew", oneMachine},
	{State, string(explain.Unknown), "", "you lack the permission to read a required fact", "ask for the permission that the sentence names"},
}

// on returns the entry of an Event on a kind of object. The class contains the object and the type of the Event.
func on(object string, e codes.Event, meaning, next string) Entry {
	return Entry{Event, e.Reason(), object + ", " + e.Type(), meaning, next}
}

var events = []Entry{
	on("request", codes.SigningFailed, "signing or writing failed; kubejoin retries, at most 15 s apart", "read the message"),
	on("request", codes.ApprovalFailed, "kubejoin could not write its decision; it retries", "check RBAC and admission policies"),
	on("request", codes.SignedByOther, "another signer wrote the certificate", otherSigner),
	on("request", codes.AnotherKey, "a kubelet made a new key, or another machine uses the same name and token", "`kubejoin claim list`"),
	on("request", codes.SharedNodeName, "a certificate of this name with another key is still valid", "docs/security.md#two-certificates-of-one-node-name"),
	on("Node", codes.CertificateRenewed, "`kubejoin host apply` renewed a certificate of the host", ""),
	on("Node", codes.Rejoined, "the machine came back with an expired certificate or a bound key", "look at a machine that you do not expect"),
	on("Node", codes.KeyBound, "the machine bound a key for rejoining", "`kubejoin claim release NODE`, if you do not expect it"),
	on("Node", codes.NodeRevoked, "the node is revoked", comeBack),
	on("Lease", codes.RenewalsWait, "nodes wait too long for a renewal", "`kubectl describe csr NAME`, with the request that it names"),
	on("Lease", codes.CAReplaced, "kubejoin uses new CA files", ""),
	on("Lease", codes.CAFilesUnusable, "new CA files are unusable, and the last valid ones stay in use", restoreFiles),
	on("Lease", codes.CAShortensCertificates, "the CA ends before its certificates would", rotateCA),
	on("Lease", codes.CAExpiresSoon, "the CA ends within 90, 30 or 7 days; one Event for each step", "`kubejoin ca prepare`; the own CA of a signer: replace its files"),
	on("Lease", codes.CANotTrusted, "clients refuse certificates of the CA, for example because of name constraints", rotateCA),
	on("Lease", codes.CAExpired, "the CA has expired; kubejoin signs nothing", renewCA),
	on("Lease", codes.SignerConfigReplaced, "the signer file or one of its CAs changed, and is in use", ""),
	on("Lease", codes.SignerConfigUnusable, "the new signer file is unusable, and the last valid one stays in use", signerFile),
	on("Lease", codes.TokenLimitsReplaced, "the file of `--token-limits` changed, and is in use", ""),
	on("Lease", codes.TokenLimitsUnusable, "the new file of `--token-limits` is unusable, and the last valid one stays in use", limitsFile),
	on("Lease", codes.ClusterInfoFillsUp, "cluster-info is 80 % full", fewerTokens),
	on("Lease", codes.ClusterInfoFull, "cluster-info has no space for another signature", fewerTokens),
	on("Lease", codes.CARotation, "a stage of a CA rotation began, or the rotation ended", "`kubejoin ca status`"),
	on("Lease", codes.CARotationEdited, "kubejoin corrected the state of a CA rotation that hosts read", "`kubejoin ca status`"),
	on("Lease", codes.ClusterInfoEdited, "somebody changed the CAs in cluster-info during a CA rotation; kubejoin corrected them", "`kubejoin ca status`"),
	on("Namespace", codes.ClaimsUnavailable, "no namespace `kubejoin-system`, or no right to create Leases in it", applyAll),
}

var readiness = []Entry{
	{Readiness, "shutdown", "failure", "kubejoin is stopping", "use another replica"},
	{Readiness, "cluster-ca", "failure", "new CA files are unusable, or the CA has expired or was replaced", restoreFiles + ", or " + renewCA},
	{Readiness, "cluster-ca", "notice", "the CA ends soon, shortens certificates, or clients refuse them", rotateCA},
	{Readiness, "ca-rotation", "failure", "the CA files are from before the end of a CA rotation", "copy the CA files of another replica"},
	{Readiness, "ca-rotation", "notice", "somebody changed the CA files or ConfigMap kubejoin-ca, or kubejoin cannot write the files or read the rotations", "read the log"},
	{Readiness, "signer-process", "notice", "`kubejoin signer` does not respond, or signs with a CA that kubejoin does not have; requests wait", "read the log: docs/signer.md#when-the-signer-is-away"},
	{Readiness, "serving-certificate", "failure", "new files of `--tls-cert-file` are unusable", restoreFiles},
	{Readiness, "client-ca", "failure", "the new `--client-ca-file` is unusable", restoreFiles},
	{Readiness, "webhook-client-ca", "failure", "the new `--webhook-client-ca-file` is unusable", restoreFiles},
	{Readiness, "operators", "failure", "the new `--token-auth-file` or `operators.csv` is unusable", "correct the line that the log names"},
	{Readiness, "revocations", "failure", "kubejoin never listed the ConfigMaps of revocations", "read the log: API server or permissions"},
	{Readiness, "signer-config", "failure", "the new signer file is unusable, or one of its CAs has expired", signerFile},
	{Readiness, "signer-config", "notice", "a CA of the signer file ends soon, or clients refuse its certificates", signerFile},
	{Readiness, "token-limits", "failure", "the new file of `--token-limits` is unusable", limitsFile},
	{Readiness, "tokens", "failure", "kubejoin never listed the Secrets, or cannot read `kubejoin.db` or etcd", "read the log: API server, permissions or disk"},
	{Readiness, "etcd-writes", "notice", "etcd refused the last write", "read the log: space or permissions"},
	{Readiness, "cluster-info", "failure", "cluster-info is missing, unread or unusable", "`kubejoin doctor`"},
	{Readiness, "cluster-info", "notice", "cluster-info is not public, 80 % full, or lacks the CA of kubejoin", "`kubejoin doctor`"},
	{Readiness, "writes", "notice", "the API server does not accept a write of kubejoin, for example because a webhook is down", "`kubejoin doctor`"},
	{Readiness, "leader", "failure", "no replica leads: nobody renewed the Lease for 15 s, or none leads in etcd", "`kubectl -n kubejoin-system get lease kubejoin -o yaml`"},
	{Readiness, "claims", "failure", "no namespace `kubejoin-system`, or no right to create Leases: limited tokens admit nobody", applyAll},
	{Readiness, "only-signer", "notice", "another signer wrote a certificate in the last hour", otherSigner},
	{Readiness, "renewals", "notice", "nodes wait too long for a renewal", "`kubectl -n kubejoin-system get events --field-selector reason=RenewalsWait`"},
	{Readiness, "issuance-record", "notice", "a copy failed, or entries were dropped, in the last 24 hours", "free the disk"},
}

// exits are the exit codes. The class lists the commands that return them.
var exits = []Entry{
	{Exit, "0", "all commands", "done, without a finding", ""},
	{Exit, "1", "all other commands", "the command failed, at least for one of the given tokens or nodes", "read the message"},
	{Exit, "1", "doctor, kubeconfig check, store check, join.sh --diagnose", "there are findings: errors or warnings", "run the printed commands"},
	{Exit, "1", "certs check", "a certificate cannot be used", "`kubejoin certs renew`"},
	{Exit, "1", "join.sh", "something on this machine is missing or in the way", "read the message"},
	{Exit, "2", "all commands", "the command line is invalid", "add `--help`"},
	{Exit, "2", "doctor, kubeconfig check, store check, join.sh --diagnose", "no finding, but a check could not be made, or nothing responds", "read the lines with `unknown`, or the message"},
	{Exit, "2", "certs check", "there are no certificates", "check DIR"},
	{Exit, "3", "explain", "the node has not joined or is revoked, the request would not be approved, or a required object is forbidden", "follow the printed commands"},
	{Exit, "3", "ca apply, host apply", "the command did its part, and something on this host is left to do", "follow the lines that it prints"},
	{Exit, "3", "all commands but doctor", "refused by a decision, or not ready yet: the problem types with exit code 3", "do what the message says, then run it again"},
	{Exit, "3", "rejoin.sh", "the server refuses", "`kubejoin explain REASON`"},
	{Exit, "3", "join.sh", "not this cluster: wrong CA, or a certificate by another CA", "`sh join.sh --diagnose`"},
	{Exit, "4", "rejoin, rejoin.sh", "the server did not decide within `--wait`", "run it again"},
	{Exit, "4", "join.sh", "no cluster-info, no signature by the token, or no certificate valid now, within `--timeout`", "`sh join.sh --diagnose`"},
	{Exit, "5", "join.sh", "kubeadm failed; its output is above the message", "`sh join.sh --diagnose`"},
	{Exit, "129", "join.sh", "stopped by SIGHUP", "run it again"},
	{Exit, "130", "all commands but serve", "stopped by Ctrl-C (SIGINT); what the command has done before remains", "run it again"},
	{Exit, "143", "all commands but serve", "stopped by SIGTERM; what the command has done before remains", "run it again"},
	{Exit, "130", "join.sh", "stopped by SIGINT", "run it again"},
	{Exit, "130", "rejoin.sh", "stopped by SIGHUP, SIGINT or SIGTERM", "run it again"},
	{Exit, "143", "join.sh", "stopped by SIGTERM", "run it again"},
}

var diagnose = []Entry{
	{Diagnose, "user", "", "you are not root, so files may be hidden", "run the script as root"},
	{Diagnose, "programs", "", "kubeadm, the kubelet, or a program that the script needs is missing", "install it"},
	{Diagnose, "cgroup", "", "the machine has cgroup v1, and its kubelet is 1.35 or later", "boot with cgroup v2"},
	{Diagnose, "swap", "", "swap is on", "`swapoff -a`"},
	{Diagnose, "ip-forward", "", "IPv4 forwarding is off; an error if the endpoint is an IPv4 address", "`sysctl -w net.ipv4.ip_forward=1`"},
	{Diagnose, "node-name", "", "the name cannot be that of a node", "`hostnamectl set-hostname NAME`, or `-- --node-name NAME`"},
	{Diagnose, "runtime", "", "no socket of a container runtime, or several; CRI does not answer", "`systemctl restart containerd`, or `-- --cri-socket SOCKET`"},
	{Diagnose, "ports", "", "port 10250, or on a control plane its ports, are in use", "`ss -ltnp`"},
	{Diagnose, "leftovers", "", "files of an earlier join are there: kubeconfigs, CA; or the machine is no Ready node", "follow the printed remedy"},
	{Diagnose, "ca-file", "", "`/etc/kubernetes/pki/ca.crt` is of another cluster", "move it away if no other cluster uses the machine"},
	{Diagnose, "kubelet-certificate", "", "the client certificate of the kubelet has expired", "`kubejoin rejoin`, or " + replaceNode},
	{Diagnose, "proxy", "", "requests to the cluster would go through a proxy", "add the host to `no_proxy`"},
	{Diagnose, "endpoint-dns", "", "the name in the join command does not resolve", "add it to DNS or to `/etc/hosts`"},
	{Diagnose, "endpoint-tcp", "", "kubejoin, or the API server of the join command, is unreachable", "start it, or open the port"},
	{Diagnose, "clock", "", "the clock differs by more than a minute; from 5 minutes on an error", "`timedatectl set-ntp true`"},
	{Diagnose, "cluster-info", "", "cluster-info cannot be read: HTTP 401, 403, 404 or another response", "`kubejoin doctor`, on the cluster"},
	{Diagnose, "pin", "", "the CA has another pin: another cluster, or a man in the middle", "`kubejoin token create --print-join-command --format script`"},
	{Diagnose, "endpoint-tls", "", "the endpoint has a certificate of another CA, for another name, or not valid now", "follow the printed remedy"},
	{Diagnose, "api-dns", "", "the name of the API server in cluster-info does not resolve", "add it to DNS or to `/etc/hosts`"},
	{Diagnose, "api-tcp", "", "the API server in cluster-info is unreachable", "start it, or open the port"},
	{Diagnose, "api-tls", "", "the API server has a certificate of another CA, for another name, or not valid now", "follow the printed remedy"},
	{Diagnose, "token", "", "the token has expired, was deleted, lacks a usage, or has another secret", oneMachine},
	{Diagnose, "signature", "", "cluster-info has no valid signature by the token", "`kubejoin token list -o wide`"},
	{Diagnose, "version", "", "kubelet newer than the API server or over 3 minor versions older; or kubeadm too new", "install another version"},
	{Diagnose, "node", "", "a Node has the name of this machine", "`-- --node-name NAME`, or " + replaceNode + " if its machine is gone"},
	{Diagnose, "requests", "", "kubejoin refused the newest request of this name and token, or has not answered it", "`kubejoin explain NODE`"},
}

// startErrors are messages of 'kubejoin serve' if it does not start. The code is a part of the message.
var startErrors = []Entry{
	{StartError, "csr-signer needs --cluster-signing-cert-file", "2", "on a cluster, without CA files", "give them, or `--controllers='*,-csr-signer'` with `--tls-cert-file`"},
	{StartError, "needs a cluster", "2", "the flag is for kubejoin on a cluster", "remove it, or give `--kubeconfig`"},
	{StartError, "needs standalone mode", "2", "the flag is for kubejoin standalone, or for stores outside of Kubernetes", "remove it, or the kubeconfig"},
	{StartError, "address already in use", "1", "another process has the port of `--listen`", "`ss -ltnp`, or another `--listen`"},
	{StartError, "no such file or directory", "1", "a file of a flag is missing", "correct the path"},
	{StartError, "permission denied", "1", "kubejoin may not read a file of a flag", "run kubejoin as the owner of the file"},
	{StartError, "the CA key matches none of the", "1", "certificate and key belong to different CAs", "give the pair that belongs together"},
	{StartError, "the key is encrypted", "1", "the key of the CA has a passphrase", "`kubejoin serve --cluster-signing-key-passphrase-file FILE`"},
	{StartError, "file is accessible to every user", "1", "all users of the machine can read the key of the CA", "`chmod 600 FILE`; in a Secret volume, set `defaultMode`"},
	{StartError, "file is accessible to other users", "1", "other users could read the tokens in `--data-dir`", "`chmod 600 FILE`, and replace its tokens"},
	{StartError, "so other users can write to it", "1", "other users could have changed a file of kubejoin", "if you trust the content of the file, run the printed `chmod`"},
	{StartError, "so other users can replace its contents", "1", "other users could have replaced the files in a folder of kubejoin", "run the printed `chmod`, or use another folder"},
	{StartError, "the CA is not valid yet", "1", "the clock is wrong, here or where the CA was made", "`date -u`"},
	{StartError, "the CA has expired", "1", "an old CA, or a wrong clock", "`date -u`, or " + renewCA},
	{StartError, "file is in use", "1", "another kubejoin process uses the folder", "stop it, or use another `--data-dir`"},
	{StartError, "schema version", "1", "another version of kubejoin wrote `kubejoin.db` or the keys in etcd", "run that version: docs/operate.md#upgrade"},
	{StartError, "file is damaged", "1", "the disk or another program damaged `kubejoin.db`", "restore a backup: docs/operate.md#back-up"},
	{StartError, "is empty, although", "1", "`kubejoin.db` lost its content", "restore a backup: docs/operate.md#back-up"},
	{StartError, "is of an earlier kubejoin", "1", "that version crashed and left `kubejoin.db-journal`", "start and stop that version once: docs/operate.md#upgrade"},
	{StartError, "kubejoin cannot create a missing cluster-info", "warning", "the address or the CA of the API server is unknown", "set `--api-server https://HOST:PORT`"},
}

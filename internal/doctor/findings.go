package doctor

// A Known contains what all findings with one ID have in common.
type Known struct {
	Severity Severity
	// Meaning is a phrase. Next is the general advice. A [Finding] has the exact command for its cluster.
	Meaning, Next string
}

// fixPrints is the text of Next for findings whose command depends on the cluster.
const fixPrints = "`kubejoin doctor --fix` prints the command"

// Findings has the explanation of each finding, by ID.
var Findings = map[string]Known{
	// kube-controller-manager
	"kcm-signs":              {Error, "kube-controller-manager signs certificates of nodes, so limits of tokens do not hold", "switch its controllers off: docs/migrate-from-kube-controller-manager.md"},
	"kcm-approves":           {Warning, "kube-controller-manager approves requests of nodes", "switch its csrapproving controller off: docs/migrate-from-kube-controller-manager.md"},
	"kcm-signs-cluster-info": {Warning, "bootstrapsigner of kube-controller-manager runs: it keeps signatures of spent tokens, and removes signatures of tokens that it does not know", "switch its bootstrapsigner off: docs/migrate-from-kube-controller-manager.md"},
	"kcm-cleans-tokens":      {Warning, "tokencleaner of kube-controller-manager runs, and may delete a token that was just renewed", "switch its tokencleaner off: docs/migrate-from-kube-controller-manager.md"},
	// kube-apiserver
	"apiserver-bootstrap-tokens-off": {Error, "`--enable-bootstrap-token-auth` is missing, and no webhook reviews tokens", "add the flag to the manifest of kube-apiserver"},
	"apiserver-always-allow":         {Error, "`--authorization-mode` is AlwaysAllow, or missing", "set `--authorization-mode=Node,RBAC` in the manifest of kube-apiserver"},
	"apiserver-node-authorizer-off":  {Error, "`--authorization-mode` lacks Node", "set `--authorization-mode=Node,RBAC` in the manifest of kube-apiserver"},
	"apiserver-node-restriction-off": {Error, "the admission plugin NodeRestriction is off", "set `--enable-admission-plugins=NodeRestriction` in the manifest of kube-apiserver"},
	"apiserver-trusts-any-kubelet":   {Warning, "`--kubelet-certificate-authority` is missing, as by kubeadm's default", "add the flag, after kubelets have serving certificates: docs/certificates.md"},
	"anonymous-on":                   {Warning, "kubejoin runs with `--advertise`, and the API server accepts anonymous requests", fixPrints},
	"revocations-not-enforced":       {Error, "a node or certificate is revoked, and kube-apiserver does not refuse it", "`kubejoin authorization-config`: docs/revocation.md"},
	"revocations-nearly-full":        {Warning, "a ConfigMap of revocations is 80 % full; when it is full, it accepts no new revocations", "`kubejoin revoke list`"},
	"kubelet-client-rights-missing":  {Warning, "no binding gives kubeadm's `apiserver-kubelet-client` its rights: logs and exec fail on new control planes", fixPrints},
	"feature-gate-removed":           {Warning, "a flag sets a feature gate that the next minor version lacks, so the component will not start", "remove the gate from the manifest of the component"},
	// RBAC
	"nodeclient-too-wide":     {Error, "certificates of any node name are approved for a wide group", fixPrints},
	"nodeclient-other":        {Warning, "certificates of new nodes are approved for other tokens than kubeadm's, or for one user", fixPrints},
	"nodeclient-missing":      {Error, "no binding approves certificates of new nodes: they wait for a person", fixPrints},
	"selfnodeclient-too-wide": {Warning, "kubejoin approves renewals also for users outside of group `system:nodes`", fixPrints},
	"selfnodeclient-missing":  {Error, "no binding approves renewals, so certificates of nodes expire", fixPrints},
	"join-rights-missing":     {Error, "tokens lack the right to create requests, or to read Nodes, `kubeadm-config` or `kubelet-config`", fixPrints},
	"join-config-missing":     {Error, "no ConfigMap `kubeadm-config` or `kubelet-config`: `kubeadm join` fails", "`kubeadm init phase upload-config all --config kubeadm.yaml`; without kubeadm, `kubejoin doctor --skip join-config-missing`"},
	"join-config-malformed":   {Error, "kubeadm cannot decode `kubeadm-config`, `kubelet-config` or `kube-proxy`", fixPrints},
	"impersonates-nodes":      {Warning, "a user who is not a cluster administrator may act as a node", fixPrints},
	// installation of kubejoin
	"namespace-missing":        {Error, "no namespace `kubejoin-system`: every request with a limited token waits", "`kubectl create namespace kubejoin-system`"},
	"service-account-missing":  {Warning, "no service account `kubejoin`", "`kubectl apply -f deploy/manifests`"},
	"rights-missing":           {Error, "the service account lacks rights of `deploy/manifests`", "`kubectl apply -f deploy/manifests`"},
	"admission-policy-missing": {Warning, "no admission policy limits which Secrets kubejoin may write", "`kubectl apply -f deploy/manifests`"},
	"node-policy-missing":      {Warning, "kubejoin may patch Nodes, and no policy limits the patches to labels and taints", "`kubectl apply -f deploy/node-properties.yaml`"},
	"writes-fail":              {Error, "the API server does not accept a write of kubejoin, for example because a webhook is down", "`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`"},
	"kubejoin-not-running":     {Error, "no kubejoin holds the Lease `kubejoin-system/kubejoin`", "`kubejoin serve`"},
	// tokens
	"token-never-expires": {Warning, "a token has no expiration", "`kubejoin token renew ID --ttl 24h --shorten`"},
	"token-guessable":     {Error, "a token secret was picked by hand, or is in public documentation", "`kubejoin token delete ID`"},
	"token-malformed":     {Warning, "a token or its limits are malformed: it admits nobody", "`kubejoin token delete ID`"},
	"upload-missing":      {Warning, "a token admits a control plane, and no certificates are uploaded: a join command with `--certificate-key` fails", "on a control plane, as root: `kubejoin token create --print-join-command --control-plane`"},
	// discovery
	"cluster-info-missing":            {Error, "no ConfigMap cluster-info", "`kubejoin serve --api-server https://HOST:PORT`"},
	"cluster-info-malformed":          {Error, "the kubeconfig in cluster-info is unusable", "`kubectl -n kube-public edit configmap cluster-info`"},
	"cluster-info-not-public":         {Error, "kubejoin runs without `--advertise`, and anonymous users cannot read cluster-info", "`kubectl apply -f deploy/cluster-info-public.yaml`, or `kubejoin serve --advertise HOST:PORT`"},
	"cluster-info-public":             {Warning, "kubejoin runs with `--advertise`, and anybody can read cluster-info at the API server", fixPrints},
	"cluster-info-unsigned":           {Error, "a live token has no valid signature", "`kubectl -n kubejoin-system get lease kubejoin -o yaml`"},
	"cluster-info-other-ca":           {Error, "cluster-info has none of the CAs of your kubeconfig", "`kubectl -n kube-public edit configmap cluster-info`"},
	"cluster-info-server-unreachable": {Error, "the API server in cluster-info is unreachable from here", "`kubectl -n kube-public edit configmap cluster-info`"},
	"cluster-info-server-untrusted":   {Error, "the API server in cluster-info has a certificate of another CA", "`kubectl -n kube-public edit configmap cluster-info`"},
	"advertise-unreachable":           {Error, "the address in join commands is unreachable from here", "`curl -vk https://HOST:PORT/readyz?verbose`"},
	"advertise-untrusted":             {Error, "the certificate at the address in join commands is of a CA that cluster-info lacks", "`curl -vk https://HOST:PORT/readyz?verbose`"},
	"advertise-other-cluster":         {Error, "the address in join commands serves another cluster-info", "`curl -vk https://HOST:PORT/readyz?verbose`"},
	"loopback-address":                {Warning, "join commands or cluster-info name localhost or 127.0.0.0/8, so each machine connects to itself", "`kubejoin serve --advertise HOST:PORT`, or `kubectl -n kube-public edit configmap cluster-info`"},
	"pin-mismatch":                    {Error, "a CA pin matches no CA in cluster-info", "`kubejoin token create --print-join-command`"},
	// time
	"ca-expired":         {Error, "the CA has expired", "`kubeadm certs check-expiration`"},
	"ca-expires-soon":    {Warning, "the CA expires within 90 days", "`kubejoin ca prepare`"},
	"ca-rotation-edited": {Error, "hosts read another state of a CA rotation than kubejoin has stored", "`kubectl -n kube-public get configmap kubejoin-ca -o yaml --show-managed-fields`"},
	"ca-rotation-stuck":  {Warning, "a rotation of a CA has been in one stage for three days", "`kubejoin ca status`"},
	"ca-not-trusted":     {Warning, "clients refuse certificates of the CA: its name constraints exclude Nodes, or it may not sign certificates", "`openssl x509 -noout -text -in FILE`"},
	"clock-skew":         {Warning, "two clocks differ by more than a minute; from 5 minutes on, joins fail", "`timedatectl set-ntp true`"},
	// versions
	"kubernetes-version": {Warning, "the API server is not of a supported version", "`kubeadm upgrade plan`, or a newer kubejoin: docs/versions.md"},
	"kubejoin-older":     {Warning, "the server is older than the command", "`helm upgrade kubejoin`, or replace the program"},
	// a running kubejoin
	"kubejoin-unreachable": {Error, "no kubejoin responds at `--url`", "`curl -vk URL/readyz?verbose`"},
	"signer-ca":            {Warning, "the own CA of a signer expires within 90 days, shortens certificates, or clients refuse them", "`curl -k URL/readyz?verbose`"},
	"kubejoin-not-ready":   {Error, "checks of `/readyz` fail", "`curl -k URL/readyz?verbose`"},
	// nodes
	"node-not-ready":  {Warning, "a Node has not been Ready for 10 minutes, and keeps its name", "`kubejoin token create --replace-node NODE`"},
	"node-joining":    {Warning, "a Node has waited for 10 minutes for what its token asks for", "`kubejoin explain NODE`"},
	"machine-cloned":  {Error, "another machine proves the key of a Node that is Ready", "`kubejoin revoke NODE`"},
	"machine-expired": {Warning, "a machine expired before it got a token, and keeps its name", "`kubejoin machine delete NODE`"},
	"csr-pending":     {Warning, "a request of a kubelet has waited for 30 s", "`kubejoin explain --csr NAME`"},
}

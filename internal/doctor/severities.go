package doctor

// Severities has the severity of each finding. docs/doctor.md describes each of them.
var Severities = map[string]Severity{
	// kube-controller-manager
	"kcm-signs":              Error,
	"kcm-approves":           Warning,
	"kcm-signs-cluster-info": Warning,
	"kcm-cleans-tokens":      Warning,
	// kube-apiserver
	"apiserver-bootstrap-tokens-off": Error,
	"apiserver-always-allow":         Error,
	"apiserver-node-authorizer-off":  Error,
	"apiserver-node-restriction-off": Error,
	"apiserver-trusts-any-kubelet":   Warning,
	"anonymous-on":                   Warning,
	"revocations-not-enforced":       Error,
	// RBAC
	"nodeclient-too-wide":     Error,
	"nodeclient-other":        Warning,
	"nodeclient-missing":      Error,
	"selfnodeclient-too-wide": Warning,
	"selfnodeclient-missing":  Error,
	"join-rights-missing":     Error,
	// installation of kubejoin
	"namespace-missing":        Error,
	"service-account-missing":  Warning,
	"rights-missing":           Error,
	"admission-policy-missing": Warning,
	"kubejoin-not-running":     Error,
	// tokens
	"token-never-expires": Warning,
	"token-guessable":     Error,
	"token-malformed":     Warning,
	// discovery
	"cluster-info-missing":            Error,
	"cluster-info-malformed":          Error,
	"cluster-info-not-public":         Error,
	"cluster-info-public":             Warning,
	"cluster-info-unsigned":           Error,
	"cluster-info-other-ca":           Error,
	"cluster-info-server-unreachable": Error,
	"cluster-info-server-untrusted":   Error,
	"advertise-unreachable":           Error,
	"advertise-untrusted":             Error,
	"advertise-other-cluster":         Error,
	"pin-mismatch":                    Error,
	// time
	"ca-expired":      Error,
	"ca-expires-soon": Warning,
	"clock-skew":      Warning,
	// versions
	"kubernetes-version": Warning,
	"kubejoin-older":     Warning,
	// a running kubejoin
	"kubejoin-unreachable": Error,
	"kubejoin-not-ready":   Error,
	// nodes
	"node-not-ready": Warning,
	"csr-pending":    Warning,
}

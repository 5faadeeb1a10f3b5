package daemon

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Names of the controllers.
const (
	BootstrapSigner = "bootstrap-signer"
	TokenCleaner    = "token-cleaner"
	CSRApprover     = "csr-approver"
	CSRSigner       = "csr-signer"
	CSRCleaner      = "csr-cleaner"
	ClaimCleaner    = "claim-cleaner"
)

// ControllerNames are the names of all controllers.
var ControllerNames = []string{BootstrapSigner, TokenCleaner, CSRApprover, CSRSigner, CSRCleaner, ClaimCleaner}

// AdminGroup is the group of operators who may do everything.
const AdminGroup = "kubejoin:admins"

// StandardOutput is the IssuanceRecord of lines on standard output.
const StandardOutput = "-"

// Options are the flags of 'kubejoin serve', read and checked: Run does not check them again. The help of
// a flag describes the field.
type Options struct {
	// Cluster is nil for a standalone kubejoin.
	Cluster *ClusterOptions

	Listen, Advertise, APIServer string
	TLS                          TLS
	Callers                      Callers
	Limits                       Limits
	DataDir                      string
	Webhook                      Webhook

	Controllers    map[string]bool // by name
	CA             CA
	SignerConfig   string
	Nodes          Nodes
	Serving        Serving
	IssuanceRecord string // file, StandardOutput or empty

	Version server.Version
	// Around wraps the handler of the HTTPS API; nil leaves it as it is.
	Around func(http.Handler) http.Handler
}

// ClusterOptions say how to work on a Kubernetes cluster.
type ClusterOptions struct {
	Kubeconfig   string  // empty: the service account of the pod
	QPS          float32 // 0: unlimited
	Burst        int     // 0: same as QPS
	TokensInFile bool    // in DataDir, and not in Secrets
	Shadow       bool
	Audiences    []string // that a bearer token of the cluster must have one of

	LeaderElect               bool
	LeaseNamespace, LeaseName string
}

// TLS is how the HTTPS API is served.
type TLS struct {
	CertFile, KeyFile string // empty: issued from the cluster CA
	MinVersion        uint16
	SANs              []string // of an issued certificate
}

// Callers say who is known by what.
type Callers struct {
	TokenFile, ClientCAFile string
}

// Limits of the HTTPS API, as [server.Server] has them: below zero is unlimited.
type Limits struct {
	Clients, Users server.Rate
	UserTokens     int
}

// Webhook says how kube-apiserver authenticates to ask about tokens in a file, in addition to the
// bearer token in DataDir.
type Webhook struct {
	ClientCAFile, ClientName string
	Audiences                []string
}

// CA is the cluster CA.
type CA struct {
	CertFile, KeyFile string
	Duration          time.Duration // of certificates
}

// Nodes are the rules about node names.
type Nodes struct {
	AllowExisting  bool
	Reserved       []string
	SpentRetention time.Duration
}

// Serving are the rules about serving certificates of kubelets.
type Serving struct {
	Scope        approval.ServingScope
	ServiceCIDRs []netip.Prefix
}

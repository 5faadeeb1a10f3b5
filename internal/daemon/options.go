package daemon

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/remote"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
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

// StandardOutput is the value of IssuanceRecord for standard output.
const StandardOutput = "-"

// Options are the parsed and validated flags of 'kubejoin serve'. Run does not check them again. The help of each
// flag describes its field.
type Options struct {
	// Cluster is nil for a standalone kubejoin.
	Cluster *ClusterOptions

	Listen, Advertise, APIServer string
	ShutdownDelay                time.Duration
	TLS                          TLS
	Callers                      Callers
	Limits                       server.Limits
	Console                      bool
	DataDir                      string
	Etcd                         *etcdstore.Config // replaces the file in DataDir; nil without etcd
	Webhook                      Webhook

	Controllers    map[string]bool // by name
	CA             CA
	SignerConfig   string
	NodeRules      NodeRules
	Serving        Serving
	IssuanceRecord string // file, StandardOutput or empty
	// IssuanceRetention is how long the record in DataDir or Etcd keeps an entry after its certificate has expired.
	IssuanceRetention time.Duration

	Version api.Version
	// Around wraps the handler of the HTTPS API; nil means no wrapper.
	Around func(http.Handler) http.Handler
}

// ClusterOptions are the options for a Kubernetes cluster.
type ClusterOptions struct {
	Kubeconfig string  // empty means the service account of the pod
	QPS        float32 // 0: unlimited
	Burst      int     // 0: same as QPS
	OwnTokens  bool    // tokens are in a file in DataDir or in Etcd, instead of Secrets
	// TokenLimits is a file with rules for tokens in Secrets; empty without rules.
	TokenLimits string
	Shadow      bool
	PKIDir      string   // empty: kubejoin uploads no certificates of control planes
	Audiences   []string // a bearer token of the cluster must have one of these audiences

	LeaderElect               bool
	LeaseNamespace, LeaseName string
}

// TLS configures serving of the HTTPS API.
type TLS struct {
	CertFile, KeyFile string // empty: the cluster CA issues the certificate
	MinVersion        uint16
	SANs              []string // extra names in an issued certificate
}

// Callers configure the authentication of callers.
type Callers struct {
	TokenFile, ClientCAFile string
}

// Webhook configures a client certificate with which kube-apiserver may authenticate to kubejoin's webhooks. The
// bearer token in DataDir also works.
type Webhook struct {
	ClientCAFile, ClientName string
	Audiences                []string
}

// CA is the cluster CA.
type CA struct {
	CertFile, KeyFile string
	PassphraseFile    string        // empty: the key is not encrypted
	Remote            remote.Config // the signer process with the key; if it has no URL, the key is in KeyFile
	Duration          time.Duration // lifetime of certificates
	RotationQPS       float64       // rate limit for renewals of kubelets during a rotation, per second
}

// NodeRules configures the rules about node names.
type NodeRules struct {
	AllowExisting  bool
	Reserved       []string
	SpentRetention time.Duration
	RejoinWindow   time.Duration // 0: nodes cannot rejoin
	RejoinBudget   int
}

// Serving configures the rules about kubelets' serving certificates.
type Serving struct {
	Scope        approval.ServingScope
	ServiceCIDRs []netip.Prefix
}

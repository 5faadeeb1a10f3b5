package tokens

// Users and groups that kube-apiserver and its authorizers give a meaning.
const (
	// BootstrapUserPrefix and a token ID are the user of a bootstrap token.
	BootstrapUserPrefix = "system:bootstrap:"
	// NodeUserPrefix and a node name are the user of a node, which is in NodesGroup.
	NodeUserPrefix = "system:node:"
	NodesGroup     = "system:nodes"
	// MastersGroup may do everything, whatever RBAC says.
	MastersGroup = "system:masters"
)

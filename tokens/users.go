package tokens

import "strings"

// Users and groups that have a meaning for kube-apiserver and its authorizers.
const (
	// SystemPrefix is the prefix of the users and groups that Kubernetes reserves.
	SystemPrefix = "system:"
	// BootstrapUserPrefix, followed by a token ID, is the user name of a bootstrap token. This user is in
	// BootstrappersGroup.
	BootstrapUserPrefix = SystemPrefix + "bootstrap:"
	BootstrappersGroup  = SystemPrefix + "bootstrappers"
	// NodeUserPrefix, followed by a node name, is the user name of a node. This user is in NodesGroup.
	NodeUserPrefix = SystemPrefix + "node:"
	NodesGroup     = SystemPrefix + "nodes"
	// AuthenticatedGroup contains every user that kube-apiserver has authenticated.
	AuthenticatedGroup = SystemPrefix + "authenticated"
	// MastersGroup has all permissions, regardless of RBAC.
	MastersGroup = SystemPrefix + "masters"
)

// IDOfUser returns the token ID in a user name. It is empty if the user is not a bootstrap token.
func IDOfUser(user string) string {
	id, found := strings.CutPrefix(user, BootstrapUserPrefix)
	if !found || CheckID(id) != nil {
		return ""
	}
	return id
}

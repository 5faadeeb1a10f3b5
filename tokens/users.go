package tokens

import "strings"

// Users and groups that have a meaning for kube-apiserver and its authorizers.
const (
	// ReservedPrefix is the prefix of the users and groups that Kubernetes reserves.
	ReservedPrefix = "system:"
	// BootstrapUserPrefix, followed by a token ID, is the user name of a bootstrap token. This user is in
	// BootstrappersGroup.
	BootstrapUserPrefix = ReservedPrefix + "bootstrap:"
	BootstrappersGroup  = ReservedPrefix + "bootstrappers"
	// NodeUserPrefix, followed by a node name, is the user name of a node. This user is in NodesGroup.
	NodeUserPrefix = ReservedPrefix + "node:"
	NodesGroup     = ReservedPrefix + "nodes"
	// AuthenticatedGroup contains every user that kube-apiserver has authenticated.
	AuthenticatedGroup = ReservedPrefix + "authenticated"
	// MastersGroup has all permissions, regardless of RBAC.
	MastersGroup = ReservedPrefix + "masters"
)

// IDOfUser returns the token ID in a user name. It is empty if the user is not a bootstrap token.
func IDOfUser(user string) string {
	id, found := strings.CutPrefix(user, BootstrapUserPrefix)
	if !found || CheckID(id) != nil {
		return ""
	}
	return id
}

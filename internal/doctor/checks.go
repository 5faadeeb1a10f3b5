package doctor

// checks are all checks, and the facts that each needs.
var checks = []check{
	{"kube-controller-manager", []Fact{factControllerManager}, checkControllerManager},
	{"bootstrap-tokens", []Fact{factAPIServer}, checkBootstrapTokens},
	{"authorizers", []Fact{factAPIServer, factAuthorizers}, checkAuthorizers},
	{"revocations", []Fact{factAPIServer, factRevocations}, checkRevocations},
	{"node-restriction", []Fact{factAPIServer}, checkNodeRestriction},
	{"kubelet-ca", []Fact{factAPIServer}, checkKubeletCA},
	{"approval-bindings", []Fact{factClusterRoles}, checkApprovalBindings},
	{"join-rights", []Fact{factClusterRoles}, checkJoinRights},
	{"objects", []Fact{factObjects}, checkObjects},
	{"rights", []Fact{factClusterRoles, factRoles, factClusterInfo}, checkRights},
	{"kubejoin", []Fact{factLease}, checkRunning},
	{"tokens", []Fact{factTokens}, checkTokens},
	{"cluster-info", []Fact{factClusterInfo}, checkClusterInfo},
	{"signatures", []Fact{factClusterInfo, factTokens}, checkSignatures},
	{"anonymous", []Fact{factAnonymous, factAdvertise}, checkAnonymous},
	{"advertise", []Fact{factAdvertise, factClusterInfo}, checkAdvertise},
	{"pins", []Fact{factClusterInfo}, checkPins},
	{"ca", []Fact{factClusterInfo}, checkCA},
	{"clocks", []Fact{factVersion}, checkClocks},
	{"kubernetes-version", []Fact{factVersion}, checkKubernetesVersion},
	{"kubejoin-version", []Fact{factVersionsComparable}, checkKubejoinVersion},
	{"nodes", []Fact{factNodes}, checkNodes},
	{"requests", []Fact{factRequests}, checkRequests},
}

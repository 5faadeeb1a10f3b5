package api

// KindPermissionList is the kind of a PermissionList.
const KindPermissionList = "PermissionList"

// A Permission is one permission of API group kubejoin.io, in the terms of Kubernetes RBAC.
type Permission struct {
	Verb     string `json:"verb"`
	Resource string `json:"resource"` // with its subresource, for example "tokens/unlimited"
	// Name is the only object that the permission covers; empty means all objects.
	Name string `json:"name,omitempty"`
}

// A PermissionList has the permissions of the caller. It is for display: kubejoin authorizes each request again.
type PermissionList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Items are sorted by resource and verb.
	Items []Permission `json:"items"`
}

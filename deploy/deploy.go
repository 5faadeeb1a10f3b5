// Package deploy contains the manifests of this folder, for programs that compare a cluster with them.
package deploy

import "embed"

// Manifests are the files in the folder manifests.
//
//go:embed manifests/*.yaml
var Manifests embed.FS

// Package deploy embeds the manifests of this folder, for programs that compare a cluster with them.
package deploy

import "embed"

// Manifests are the files in the folder manifests.
//
//go:embed manifests/*.yaml
var Manifests embed.FS

// AlertRules are the alert rules of kubejoin for Prometheus, in YAML.
//
//go:embed chart/kubejoin/files/rules.yaml
var AlertRules []byte

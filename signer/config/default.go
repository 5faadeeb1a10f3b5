package config

import _ "embed"

// Default is a file with the signers that kubejoin uses if no file is given.
//
//go:embed default.yaml
var Default string

// Kubeadm is a file with the signers of [Default], and one signer for each certificate of a control plane that kubeadm
// makes. The name after the slash is the name of the certificate in 'kubeadm certs check-expiration'. No rule approves
// their requests, so only users who may sign for them get a certificate.
var Kubeadm = Default + "\n" + kubeadm

//go:embed kubeadm.yaml
var kubeadm string

// DefaultPolicy is a policy that allows the certificates of nodes.
//
//go:embed policy.yaml
var DefaultPolicy string

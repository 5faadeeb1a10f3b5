// Package joinformat writes the data that a machine needs to become a node, in the formats that machines boot
// from. These are kubeadm's join command, its JoinConfiguration, a kubeconfig, a shell script, and cloud-init
// and Ignition documents with that script. It only encodes values; it does not create tokens or discover
// clusters.
//
// Everything that it writes contains the token, and is as secret as the token. Only a script for a [Join.Machine] contains
// no secret.
package joinformat

// Package joinformat writes what a machine needs to become a node in the forms that machines boot
// from: kubeadm's join line, its JoinConfiguration, a kubeconfig, a shell script, and documents of
// cloud-init and Ignition around that script. It turns values into bytes; making tokens, and
// finding out what a cluster is, is left to others.
//
// Everything that it writes holds the token, and is a secret as the token is.
package joinformat

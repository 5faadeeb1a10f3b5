// Package systemd contains the files with which a machine rejoins, for scripts that install them.
package systemd

import _ "embed" // for go:embed

// RejoinScript is the script of a rejoin.
//
//go:embed rejoin.sh
var RejoinScript string

// RejoinDropIn is the drop-in of kubelet.service that runs it as /usr/local/sbin/kubejoin-rejoin.
//
//go:embed kubelet.service.d/20-kubejoin-rejoin.conf
var RejoinDropIn string

// Package systemd embeds the files that let a machine rejoin, for scripts that install them.
package systemd

import _ "embed" // for go:embed

// RejoinScript is the script that lets a machine rejoin.
//
//go:embed rejoin.sh
var RejoinScript string

// RejoinDropIn is the drop-in of kubelet.service that runs the script as /usr/local/sbin/kubejoin-rejoin.
//
//go:embed kubelet.service.d/20-kubejoin-rejoin.conf
var RejoinDropIn string

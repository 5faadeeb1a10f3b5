// Package systemd contains the files with which a machine rejoins, for scripts that install them.
package systemd

import "embed"

// Rejoin are the script and the units of a rejoin.
//
//go:embed rejoin.sh kubejoin-rejoin.service kubejoin-rejoin.timer kubelet.service.d/20-kubejoin-rejoin.conf
var Rejoin embed.FS

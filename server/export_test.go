package server

import (
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds that tests go up to.
const (
	MaxDiscovery    = maxDiscovery
	MaxJoinCommands = maxJoinCommands
	MaxLifecycle    = maxLifecycle
	MaxTokenReviews = maxTokenReviews
)

// LimitConnections is the ConnState of a server that holds so many connections at most.
func LimitConnections(most int, reg prometheus.Registerer) func(net.Conn, http.ConnState) {
	return newConnections(most, reg).changed
}

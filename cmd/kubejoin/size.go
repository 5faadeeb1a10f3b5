package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
)

// discovered is the cluster-info that joins come to. Where they come through kubejoin it has the
// signatures of all tokens; the API server has no more than fit into the ConfigMap.
func (s *service) discovered(info *configmap.ConfigMap, store tokens.Store) server.ClusterInfo {
	if s.options.advertise == "" {
		return info
	}
	return info.Complete(store)
}

// sizeAdvice is what can be done about a ConfigMap that fills up.
func (s *service) sizeAdvice() string {
	if s.options.advertise == "" {
		return tokenwarning.SizeAdvice
	}
	return fmt.Sprintf("tokens that it has no room for are good for discovery through kubejoin at %s, as its join commands have it, and not at the API server", s.options.advertise)
}

// watchSize tells of a ConfigMap that fills up.
func (s *service) watchSize(info *configmap.ConfigMap) func(context.Context) error {
	kind := corev1.EventTypeWarning
	if s.options.advertise != "" {
		kind = corev1.EventTypeNormal
	}
	return configmap.Gauge{
		ConfigMap: info, Advice: s.sizeAdvice(),
		Event:  func(reason, message string) { s.event(kind, reason, message) },
		Logger: s.log, Registerer: s.registry,
	}.Run
}

// sized adds to what is said of cluster-info how full it is, if that is worth a notice.
func (s *service) sized(info *configmap.ConfigMap, found error) error {
	fill := info.Fill()
	if !fill.High() {
		return found
	}
	return noticed(found, fill.String()+"; "+s.sizeAdvice())
}

// noticed adds a notice to what a check has found. A failure stays as it is.
func noticed(found error, said string) error {
	var notice server.Notice
	if said == "" || found != nil && !errors.As(found, &notice) {
		return found
	}
	return server.Notice(strings.TrimPrefix(string(notice)+"; "+said, "; "))
}

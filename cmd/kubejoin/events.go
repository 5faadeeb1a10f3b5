package main

import (
	"context"

	"github.com/kubejoin/kubejoin/internal/foreign"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// recordEvents lets what concerns this kubejoin as a whole be seen as Events, on the Lease that
// its replicas lead by.
func (s *service) recordEvents(ctx context.Context, client kubernetes.Interface) {
	lease := &corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease",
		Namespace: s.options.leaseNamespace, Name: s.options.leaseName,
	}
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubejoin"})
	s.event = func(kind, reason, message string) {
		recorder.Event(lease, kind, reason, foreign.Text(message, foreign.MaxMessage))
	}
	s.closers = append(s.closers, func() error { events.Shutdown(); return nil })
}

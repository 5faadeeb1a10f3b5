package main

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clusterConfig returns the configuration of a client of the API server in a context of a kubeconfig.
func clusterConfig(rules *clientcmd.ClientConfigLoadingRules, context string) (*rest.Config, error) {
	config, err := credentials.LoadConfig(rules, context)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "kubejoin/" + buildVersion().Version
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// clusterClient returns a client of the API server in a context of a kubeconfig.
func clusterClient(rules *clientcmd.ClientConfigLoadingRules, context string) (kubernetes.Interface, error) {
	config, err := clusterConfig(rules, context)
	if err != nil {
		return nil, err
	}
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS = -1 // the API server limits each user
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return clientset, nil
}

// connectCluster connects to the cluster that the flags select.
func (o *remoteOptions) connectCluster(ctx context.Context, rules *clientcmd.ClientConfigLoadingRules) (*remote, func(), error) {
	clientset, err := clusterClient(rules, o.context)
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	c, err := kube.Open(ctx, clientset, o.pkiDir)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return &remote{backend: c, cluster: c}, stop, nil
}

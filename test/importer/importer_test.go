package importer_test

import (
	_ "github.com/kubejoin/kubejoin/clusterinfo"
	_ "github.com/kubejoin/kubejoin/signer"
	_ "github.com/kubejoin/kubejoin/test/cluster"
	_ "github.com/kubejoin/kubejoin/tokens"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "k8s.io/client-go/kubernetes"
)

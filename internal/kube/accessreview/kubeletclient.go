package accessreview

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
)

// kubeletClientTimeout limits the review of KubeletClient, whose callers wait for its warning.
const kubeletClientTimeout = 5 * time.Second

// KubeletClientUser is the user in kubeadm's certificate apiserver-kubelet-client. BindKubeletClient is the command that
// gives this user the rights that [KubeletClient] reviews.
const (
	KubeletClientUser = "kube-apiserver-kubelet-client"
	BindKubeletClient = "kubectl create clusterrolebinding kubeadm:apiserver-kubelet-client --clusterrole=system:kubelet-api-admin --user=" + KubeletClientUser
)

// KubeletClient returns a warning unless the user of kubeadm's certificate apiserver-kubelet-client may use kubelets.
// kubeadm 1.35.5, 1.36.1, 1.37 and later create this certificate without a group. Only 'kubeadm init' and 'kubeadm
// upgrade apply' bind its user. So control planes that join an older cluster lack these rights.
func KubeletClient(ctx context.Context, client kubernetes.Interface) string {
	ctx, cancel := context.WithTimeout(ctx, kubeletClientTimeout)
	defer cancel()
	_, allowed, err := Allowed(ctx, client, Spec(KubeletClientUser, "", []string{"system:authenticated"}, nil,
		authorization.ResourceAttributes{Verb: "create", Version: "v1", Resource: "nodes", Subresource: "proxy"}))
	switch {
	case err != nil:
		return KubeletClientUnchecked(err)
	case !allowed:
		return fmt.Sprintf("user %s may not use kubelets, so kubectl logs and exec fail on control planes with a new certificate; first run: %s", KubeletClientUser, BindKubeletClient)
	}
	return ""
}

// KubeletClientUnchecked returns a warning that err prevented the review of KubeletClient.
func KubeletClientUnchecked(err error) string {
	return fmt.Sprintf("could not check whether user %s may use kubelets (%s); if kubectl logs and exec fail, run: %s",
		KubeletClientUser, safetext.Text(err.Error(), safetext.MaxName), BindKubeletClient)
}

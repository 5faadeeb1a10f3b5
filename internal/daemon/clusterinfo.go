package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/server/api"
)

// firstKubeconfig returns the content of a new cluster-info, or nil if kubejoin cannot determine the content. A pod knows only
// the address of the Service, which joining machines cannot reach. So kubejoin in a pod needs --api-server.
func (c *connection) firstKubeconfig() ([]byte, error) {
	apiServer := c.options.APIServer
	if apiServer == "" {
		if c.Kubeconfig == "" {
			return nil, nil
		}
		apiServer = c.config.Host
		if _, err := clusterinfo.Endpoint(apiServer); err != nil {
			return nil, nil // kubejoin can connect to this address, but a join command cannot contain it
		}
	}
	bundle := c.config.CAData
	if len(bundle) == 0 && c.config.CAFile != "" {
		var err error
		if bundle, err = os.ReadFile(c.config.CAFile); err != nil {
			return nil, fmt.Errorf("--kubeconfig: certificate authority: %w", err)
		}
	}
	if len(bundle) == 0 {
		return nil, nil // the kubeconfig trusts the API server by other means, for example system CAs
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: certificate authority: %w", err)
	}
	return clusterinfo.Kubeconfig(apiServer, cas)
}

// sizeAdvice returns the advice for a nearly full ConfigMap cluster-info.
func (c *cluster) sizeAdvice() string {
	if c.options.Advertise == "" {
		return tokenwarning.SizeAdvice
	}
	return fmt.Sprintf("tokens that do not fit work only for discovery at kubejoin (%s), which join commands use, and not at the API server", c.options.Advertise)
}

// watchSize returns a function that reports when the ConfigMap cluster-info is nearly full.
func (c *cluster) watchSize() func(context.Context) error {
	return configmap.FillMonitor{
		ConfigMap: c.info, Advice: c.sizeAdvice(),
		Event:  func(reason, message string) { c.events.own(codes.Events[reason], message) },
		Logger: c.log, Registerer: c.registry,
	}.Run
}

// checkClusterInfo adds a readiness check: can machines join with the ConfigMap cluster-info?
func (c *cluster) checkClusterInfo(public *publicAccess) {
	c.check("cluster-info", func(ctx context.Context) error {
		data, err := c.info.Data(ctx)
		var apiServer string
		var cas []*x509.Certificate
		if err == nil {
			apiServer, cas, err = clusterinfo.ParseKubeconfig([]byte(data[clusterinfo.KubeconfigKey]))
		}
		unnamed := ""
		if _, bad := clusterinfo.JoinEndpoint(apiServer); err == nil && bad != nil && c.options.Advertise == "" {
			unnamed = fmt.Sprintf("no join command can name the server in cluster-info: %v; give --advertise HOST:PORT, or --api-server with another address", bad)
		}
		switch {
		case err == nil && c.ca != nil && c.options.TLS.CertFile == "" && !tokenwarning.Trusted(c.ca.Get(), cas):
			err = api.Notice(tokenwarning.Untrusted)
		case errors.Is(err, clusterinfo.ErrNotFound):
			return errors.New("ConfigMap kube-public/cluster-info does not exist")
		case errors.Is(err, context.DeadlineExceeded):
			return errors.New("kubejoin has not read ConfigMap kube-public/cluster-info yet; see the log")
		}
		err = noticed(noticed(err, unnamed), public.notice())
		if fill := c.info.Fill(); fill.High() {
			err = noticed(err, fill.String()+"; "+c.sizeAdvice())
		}
		return err
	})
}

// noticed adds a notice to the result of a check. If the check failed, it returns the failure unchanged.
func noticed(found error, notice string) error {
	var before api.Notice
	if notice == "" || found != nil && !errors.As(found, &before) {
		return found
	}
	return api.Notice(strings.TrimPrefix(string(before)+"; "+notice, "; "))
}

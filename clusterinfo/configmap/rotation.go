package configmap

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/kubejoin/kubejoin/clusterinfo"
)

// A Rotation is the part of the replacement of the cluster's CA that concerns cluster-info.
type Rotation struct {
	// Stage names the rotation and its stage.
	Stage string
	// Trusted are the CAs that cluster-info must contain. All are all CAs of the rotation; cluster-info must not
	// contain CAs of All that are not in Trusted.
	Trusted, All []*x509.Certificate
}

// A Follower updates the CAs in cluster-info to match the stage of a rotation.
type Follower struct {
	// Rotation returns the state from a cache; nil if no rotation is known to be in progress. In that case,
	// cluster-info keeps its CAs.
	Rotation func() (*Rotation, error)
	// Watch hints that the state may have changed, as [ConfigMap.Watch] does.
	Watch func(context.Context) <-chan struct{}
	// Edited is called when somebody else has changed the CAs of a stage in cluster-info, and the Signer has corrected them.
	Edited func(message string)
}

func (f *Follower) watch(ctx context.Context) <-chan struct{} {
	if f == nil {
		return nil
	}
	return f.Watch(ctx)
}

// A followed is the kubeconfig to sign, and the stage of the rotation that it follows; empty if it follows none.
// changed reports whether its CAs differ from the CAs of the kubeconfig before.
type followed struct {
	kubeconfig []byte
	stage      string
	changed    bool
}

// follow returns the kubeconfig with the CAs of the rotation. Other CAs stay, after the CAs of the rotation: an
// operator may have added them for a load balancer.
func (f *Follower) follow(kubeconfig []byte) (followed, error) {
	same := followed{kubeconfig: kubeconfig}
	if f == nil {
		return same, nil
	}
	r, err := f.Rotation()
	if err != nil || r == nil {
		return same, err
	}
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return same, err
	}
	// Compare pins, which are hashes of keys: a CA may have been renewed with the same key, and a cross certificate
	// has the key of the new CA.
	pins := clusterinfo.Pins(r.All)
	want := slices.Concat(r.Trusted, slices.DeleteFunc(slices.Clone(cas), func(c *x509.Certificate) bool { return slices.Contains(pins, clusterinfo.Pin(c)) }))
	if sameCAs(cas, want) {
		return followed{kubeconfig, r.Stage, false}, nil
	}
	if kubeconfig, err = clusterinfo.WithCAs(kubeconfig, want); err != nil {
		return same, err
	}
	return followed{kubeconfig, r.Stage, true}, nil
}

// sameCAs reports whether two lists have the same certificates, in any order.
func sameCAs(a, b []*x509.Certificate) bool {
	in := func(list []*x509.Certificate, c *x509.Certificate) bool { return slices.ContainsFunc(list, c.Equal) }
	return !slices.ContainsFunc(a, func(c *x509.Certificate) bool { return !in(b, c) }) &&
		!slices.ContainsFunc(b, func(c *x509.Certificate) bool { return !in(a, c) })
}

// corrected reports an edit if cluster-info had the CAs of this stage at an earlier step and had other CAs
// before this step.
func (s *signing) corrected(now followed) {
	if now.changed && s.followed == now.stage {
		s.Logger.Warn("CAs in cluster-info were edited during a CA rotation, corrected", "stage", now.stage)
		s.Follow.Edited(fmt.Sprintf("Somebody changed the CAs in ConfigMap %s/%s during a CA rotation, and kubejoin corrected them. Next: kubejoin ca status", clusterinfo.Namespace, clusterinfo.Name))
	}
	s.followed = now.stage
}

package daemon

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
)

// reachable returns the HOST:PORT at which other machines can probably reach a server that listens on an address. It
// returns the address itself, or this machine's first global address if the server listens on all addresses.
func reachable(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("--listen: %w", err)
	}
	if !everyAddress(host) {
		// Only tests listen on port 0.
		if err := clusterinfo.CheckEndpoint(net.JoinHostPort(host, "1")); err != nil {
			return "", fmt.Errorf("--listen: host %q: %w; or give --advertise", host, err)
		}
		return listen, nil
	}
	for _, ip := range ownAddresses() {
		return net.JoinHostPort(ip, port), nil
	}
	return net.JoinHostPort("127.0.0.1", port), nil
}

// shownAddress returns the HOST:PORT at which kubejoin serves, for a person.
func (o *Options) shownAddress() string {
	if dialable(o.Listen) == o.Listen {
		return o.Listen
	}
	own, _ := reachable(o.Listen) // never fails for all addresses
	return cmp.Or(o.Advertise, own)
}

// warnOfLoopback logs loopback addresses in the options, at which other machines reach no server.
func (s *service) warnOfLoopback() {
	apiServer, _ := clusterinfo.Endpoint(s.options.APIServer) // empty after an error
	for flag, endpoint := range map[string]string{"--advertise": s.options.Advertise, "--api-server": apiServer} {
		if clusterinfo.IsLoopback(endpoint) {
			s.log.Warn("other machines cannot join at a loopback address", "flag", flag, "address", endpoint)
		}
	}
}

// dialable returns an address at which this machine reaches its own listener.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err == nil && everyAddress(host) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}

func everyAddress(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// ownAddresses returns this machine's global unicast addresses, private ones included.
func ownAddresses() []string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the caller then uses its fallback
	}
	var list []string
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			list = append(list, n.IP.String())
		}
	}
	return list
}

// servingNames returns the names in an issued serving certificate: the listener, this machine's names, and more.
func servingNames(listen string, more ...string) []string {
	names := append([]string{"localhost", "127.0.0.1", "::1"}, more...)
	if host, _, err := net.SplitHostPort(listen); err == nil && !everyAddress(host) {
		names = append(names, host)
	} else {
		names = append(names, ownAddresses()...)
	}
	if host, err := os.Hostname(); err == nil && clusterinfo.CheckEndpoint(net.JoinHostPort(host, "1")) == nil {
		names = append(names, strings.ToLower(host))
	}
	return names
}

package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
)

// reachable is the HOST:PORT under which other machines probably reach a server that listens
// on an address: the address itself, or this machine's first global one if it is every address.
func reachable(listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("--listen: %w", err)
	}
	if !everyAddress(host) {
		return listen, nil
	}
	for _, ip := range ownAddresses() {
		return net.JoinHostPort(ip, port), nil
	}
	return net.JoinHostPort("127.0.0.1", port), nil
}

// dialable is an address at which this machine reaches its own listener.
func dialable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err == nil && everyAddress(host) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}

// isHost is whether s can stand in a certificate as a DNS name or an IP address.
func isHost(s string) bool {
	return clusterinfo.CheckEndpoint(net.JoinHostPort(s, "1")) == nil
}

func everyAddress(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}

// ownAddresses are this machine's global unicast addresses, private ones among them.
func ownAddresses() []string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil // the fallback is stated by the banner and the join command
	}
	var list []string
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			list = append(list, n.IP.String())
		}
	}
	return list
}

// servingNames are what a serving certificate issued here is good for: the listener, what join
// commands name, this machine's own names for itself, and what the operator adds.
func servingNames(listen string, more ...string) []string {
	names := append([]string{"localhost", "127.0.0.1", "::1"}, more...)
	if host, _, err := net.SplitHostPort(listen); err == nil && !everyAddress(host) {
		names = append(names, host)
	} else {
		names = append(names, ownAddresses()...)
	}
	if host, err := os.Hostname(); err == nil && isHost(host) {
		names = append(names, strings.ToLower(host))
	}
	return names
}

package clusterinfo

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
)

// Endpoint returns the HOST:PORT of a server with the URL https://HOST[:PORT][/PATH]. The default port is 443.
// kubejoin calls it for each server URL that it writes or prints: a join command must be able to name the server.
// Its errors name only the host and the port of the URL, which may contain a password.
func Endpoint(server string) (string, error) {
	u, err := parseServer(server)
	if err != nil {
		return "", err
	}
	endpoint := u.Host
	if u.Port() == "" {
		endpoint = net.JoinHostPort(u.Hostname(), "443")
	}
	if err := CheckEndpoint(endpoint); err != nil {
		return "", err
	}
	return endpoint, nil
}

// JoinEndpoint returns the HOST:PORT of a server in a join command. It refuses a URL with a path: kubeadm would not send the
// path, so that the join command would name another server.
func JoinEndpoint(server string) (string, error) {
	endpoint, err := Endpoint(server)
	if u, _ := url.Parse(server); err == nil && strings.Trim(u.Path, "/") != "" {
		return "", fmt.Errorf("path %.300q: want a server without a path", u.Path)
	}
	return endpoint, err
}

// CheckEndpoint returns an error if s does not have the form HOST:PORT. HOST is a DNS name, an IPv4 address
// or an IPv6 address in brackets.
func CheckEndpoint(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("endpoint %.300q: want HOST:PORT, with an IPv6 address in brackets", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("endpoint %.300q: port %.20q: want 1 to 65535", s, port)
	}
	ip, err := netip.ParseAddr(host)
	switch isIP := err == nil; {
	case isIP && ip.IsUnspecified():
		return fmt.Errorf("endpoint %.300q: want the address of one machine", s)
	case strings.HasPrefix(s, "["):
		if !isIP || !ip.Is6() || ip.Zone() != "" {
			return fmt.Errorf("endpoint %.300q: want an IPv6 address without a zone in the brackets", s)
		}
	case !isIP && (!dnsname.IsHost(host) || dnsname.EndsInNumber(host)):
		return fmt.Errorf("endpoint %.300q: host %.300q: want a DNS name or an IP address; a name has letters, digits and hyphens, without a final dot", s, host)
	}
	return nil
}

// IsLoopback reports whether an endpoint HOST:PORT is localhost or a loopback address. A machine that uses such an
// endpoint connects to itself.
func IsLoopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	host = strings.ToLower(host)
	ip, _ := netip.ParseAddr(host) // the zero value is no loopback address
	return err == nil && (ip.Unmap().IsLoopback() || host == "localhost" || host == "localhost.localdomain" || strings.HasSuffix(host, ".localhost"))
}

// parseServer parses the URL of a server that clients can reach. kubeadm and kubectl can use more names in an existing
// cluster-info than a join command can: for example a name with an underscore or a final dot.
func parseServer(server string) (*url.URL, error) {
	if server == "" {
		return nil, errors.New("none given, want https://HOST:PORT")
	}
	u, err := url.Parse(server)
	// The error does not repeat the URL, which may contain a password.
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Count(u.Host, ":") > 1 && u.Host[0] != '[' || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Opaque != "" || strings.Contains(server, "#") {
		return nil, errors.New("want https://HOST:PORT, with an IPv6 address in brackets, and no user, query or fragment")
	}
	if n, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16); err != nil || n == 0 {
		return nil, fmt.Errorf("port %.20q: want 1 to 65535", u.Port())
	}
	return u, nil
}

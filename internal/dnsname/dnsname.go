// Package dnsname checks RFC 1123 names. It imports only the standard library, so that every package can use it.
package dnsname

import "strings"

const (
	// MaxLength is the maximum length of a name.
	MaxLength = 253
	// MaxLabel is the maximum length of a label of a host name, between two dots.
	MaxLabel = 63
)

// IsSubdomain reports whether name is an RFC 1123 subdomain as Kubernetes defines it: lower case, with labels of any
// length. Names of Nodes and of most other objects have this form.
func IsSubdomain(name string) bool { return is(name, false, MaxLength) }

// IsHost reports whether name has the form of a host name, in upper or lower case. IPv4 addresses also have this form.
func IsHost(name string) bool { return is(name, true, MaxLabel) }

func is(name string, upper bool, maxLabel int) bool {
	label := 0 // length of the label so far
	for i, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', upper && 'A' <= c && c <= 'Z', c == '-' && label > 0:
			label++
		case c == '.' && label > 0 && name[i-1] != '-':
			label = 0
		default:
			return false
		}
		if label > maxLabel {
			return false
		}
	}
	return label > 0 && name[len(name)-1] != '-' && len(name) <= MaxLength
}

// EndsInNumber reports whether the last label of a host is a number: decimal, or hexadecimal after 0x. RFC 1123, section 2.1,
// excludes such names, because clients may parse them as an address. For example, some parse 0x7f.1 as 127.0.0.1.
func EndsInNumber(host string) bool {
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	hexadecimal, found := strings.CutPrefix(last, "0x")
	return strings.Trim(last, "0123456789") == "" || found && strings.Trim(hexadecimal, "0123456789abcdef") == ""
}

#!/bin/sh
# Prints the discovery kubeconfig of a cluster, from the HOST:PORT and the CA pin of a join
# command. Usage: discovery.sh HOST:PORT sha256:HASH
#
# The script does not trust the first response. It trusts the CA in it if the CA matches the pin,
# and then reads cluster-info again with that CA. It has no token, so it does not verify the
# signature as `kubeadm join` does. Nothing here is secret. Needs curl and openssl. It checks only
# the first CA; the join script in docs/tokens.md checks all.
set -eu
[ $# -eq 2 ] || { echo "usage: discovery.sh HOST:PORT sha256:HASH" >&2; exit 2; }
url="https://$1/api/v1/namespaces/kube-public/configmaps/cluster-info"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The kubeconfig is one line in the JSON, and JSON escapes no base64 characters.
curl --silent --show-error --fail --insecure -o "$tmp/untrusted" "$url"
sed -n 's/.*certificate-authority-data: *\([A-Za-z0-9+/=]*\).*/\1/p' "$tmp/untrusted" |
	openssl base64 -d -A | openssl x509 -out "$tmp/ca.crt"
pin="sha256:$(openssl x509 -in "$tmp/ca.crt" -noout -pubkey | openssl pkey -pubin -outform DER | openssl dgst -sha256 -r | cut -d ' ' -f 1)"
[ "$pin" = "$2" ] || { echo "discovery.sh: the cluster CA at $1 has pin $pin, wanted $2" >&2; exit 1; }

# Trust only that CA: curl would also use the folder of the system's CAs.
mkdir "$tmp/none"
curl --silent --show-error --fail --cacert "$tmp/ca.crt" --capath "$tmp/none" -o "$tmp/cluster-info" "$url"
sed -n '/.*"kubeconfig": *"/{s///;s/\([^\\]\)".*/\1/;p;}' "$tmp/cluster-info" |
	awk '{ gsub(/\\n/, "\n"); gsub(/\\"/, "\""); printf "%s", $0 }'

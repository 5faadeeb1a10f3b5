#!/bin/sh
# Prints the discovery kubeconfig of a cluster, as a machine gets it that knows no more than the
# join command: HOST:PORT and the pin of the CA. Usage: discovery.sh HOST:PORT sha256:HASH
#
# The first answer is not trusted; the CA in it is, if it has the pin; and so is what is then
# served under that CA. Without the token the signature is not verified: `kubeadm join` does
# both. Nothing here is secret. Needs curl and openssl, and looks at the first CA alone; what
# looks at all of them is the script of docs/join-formats.md.
set -eu
[ $# -eq 2 ] || { echo "usage: discovery.sh HOST:PORT sha256:HASH" >&2; exit 2; }
url="https://$1/api/v1/namespaces/kube-public/configmaps/cluster-info"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# In the JSON the kubeconfig is one line, and base64 has nothing that JSON escapes.
curl --silent --show-error --fail --insecure -o "$tmp/untrusted" "$url"
sed -n 's/.*certificate-authority-data: *\([A-Za-z0-9+/=]*\).*/\1/p' "$tmp/untrusted" |
	openssl base64 -d -A | openssl x509 -out "$tmp/ca.crt"
pin="sha256:$(openssl x509 -in "$tmp/ca.crt" -noout -pubkey | openssl pkey -pubin -outform DER | openssl dgst -sha256 -r | cut -d ' ' -f 1)"
[ "$pin" = "$2" ] || { echo "discovery.sh: the cluster CA at $1 has pin $pin, wanted $2" >&2; exit 1; }

# By that CA alone: curl would take the folder of the system's CAs, too.
mkdir "$tmp/none"
curl --silent --show-error --fail --cacert "$tmp/ca.crt" --capath "$tmp/none" -o "$tmp/cluster-info" "$url"
sed -n '/.*"kubeconfig": *"/{s///;s/\([^\\]\)".*/\1/;p;}' "$tmp/cluster-info" |
	awk '{ gsub(/\\n/, "\n"); gsub(/\\"/, "\""); printf "%s", $0 }'

#!/bin/sh
# Prints the client certificate of a node, for a machine that joins with a bootstrap token and
# without kubeadm. Usage: certificate.sh HOST:PORT CA-FILE TOKEN-FILE NODE-NAME KEY-FILE
#
# KEY-FILE is made unless it is there, and never leaves the machine. The token is read by curl
# from a file that nobody else can read, so that it is in no list of processes. CA-FILE may be
# what discovery.sh has verified. Needs curl and openssl.
set -eu
[ $# -eq 5 ] || { echo "usage: certificate.sh HOST:PORT CA-FILE TOKEN-FILE NODE-NAME KEY-FILE" >&2; exit 2; }
umask 077
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

[ -e "$5" ] || openssl ecparam -name prime256v1 -genkey -noout -out "$5"
openssl req -new -key "$5" -subj "/O=system:nodes/CN=system:node:$4" -out "$tmp/csr"
{ printf 'Authorization: Bearer '; cat "$3"; } >"$tmp/header"
mkdir "$tmp/none" # in place of the folder of the system's CAs, which curl would trust, too
curl --silent --show-error --fail-with-body --cacert "$2" --capath "$tmp/none" -H "@$tmp/header" \
	--data-binary "@$tmp/csr" -o "$tmp/crt" "https://$1/v1/certificate" || { cat "$tmp/crt" >&2; exit 1; }
openssl verify -CAfile "$2" -purpose sslclient "$tmp/crt" >&2
cat "$tmp/crt"

#!/bin/sh
# Prints the client certificate of a node, for a machine that joins with a bootstrap token and
# without kubeadm. Usage: certificate.sh HOST:PORT CA-FILE TOKEN-FILE NODE-NAME KEY-FILE
#
# The script creates KEY-FILE if it does not exist; the key never leaves the machine. curl reads
# the token from a private file, so that it is not in the process list. CA-FILE may contain the
# CA that discovery.sh verified. Needs curl and openssl.
set -eu
[ $# -eq 5 ] || { echo "usage: certificate.sh HOST:PORT CA-FILE TOKEN-FILE NODE-NAME KEY-FILE" >&2; exit 2; }
umask 077
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

[ -e "$5" ] || openssl ecparam -name prime256v1 -genkey -noout -out "$5"
openssl req -new -key "$5" -subj "/O=system:nodes/CN=system:node:$4" -out "$tmp/csr"
{ printf 'Authorization: Bearer '; cat "$3"; } >"$tmp/header"
mkdir "$tmp/none" # replaces the folder of the system's CAs, which curl would also trust
curl --silent --show-error --fail-with-body --cacert "$2" --capath "$tmp/none" -H "@$tmp/header" \
	--data-binary "@$tmp/csr" -o "$tmp/crt" "https://$1/v1/certificate" || { cat "$tmp/crt" >&2; exit 1; }
openssl verify -CAfile "$2" -purpose sslclient "$tmp/crt" >&2
cat "$tmp/crt"

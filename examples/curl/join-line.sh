#!/bin/sh
# Prints a join command for one machine, or for MAX_NODES. Usage: join-line.sh [DESCRIPTION]
# FORMAT=script, cloud-config, ignition … is what a machine boots from: docs/join-formats.md.
#
# curl reads the CA and the operator's bearer token from the file CURLRC, so that no secret is
# in the list of processes. The file's folder stands in for a login: `make run` makes one.
set -eu
: "${SERVER:=127.0.0.1:9443}" "${CURLRC:=kubejoin-data/curlrc}" "${TTL:=2h}" "${MAX_NODES:=1}" "${FORMAT:=text}"

# As a query and not as JSON: there is nothing to quote for curl to encode.
exec curl -K "$CURLRC" -G -X POST \
	--data-urlencode "ttl=$TTL" --data-urlencode "maxNodes=$MAX_NODES" --data-urlencode "description=${1-}" \
	--data-urlencode "format=$FORMAT" \
	"https://$SERVER/v1/token/print-join-command"

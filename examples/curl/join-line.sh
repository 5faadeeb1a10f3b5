#!/bin/sh
# Prints a join command for one machine, or for MAX_NODES. Usage: join-line.sh [DESCRIPTION]
# FORMAT selects another output, for example script, cloud-config or ignition: docs/tokens.md.
#
# curl reads the operator's bearer token from the file CURLRC, so that no secret is in the process
# list. `make run` creates this file. CA_FILE has the CA of the server if CURLRC does not name one,
# as installer.curlrc in docs/http-api.md.
set -eu
: "${SERVER:=127.0.0.1:9443}" "${CURLRC:=kubejoin-data/curlrc}" "${TTL:=2h}" "${MAX_NODES:=1}" "${FORMAT:=text}"

# The parameters are a query, not JSON, since curl can encode a query.
exec curl -sS --fail-with-body ${CA_FILE:+--cacert "$CA_FILE"} -K "$CURLRC" -G -X POST \
	--data-urlencode "ttl=$TTL" --data-urlencode "maxNodes=$MAX_NODES" --data-urlencode "description=${1-}" \
	--data-urlencode "format=$FORMAT" \
	"https://$SERVER/v1/token/print-join-command"

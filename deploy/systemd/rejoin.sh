#!/bin/sh
# Lets this machine come back after its kubelet's certificate has expired, as 'kubejoin rejoin' does. See --help.
set +xv # tracing would print a token

usage() {
    cat <<'END'
Usage: sh rejoin.sh --url https://HOST:PORT [OPTIONS]

A kubelet that was off until its certificate expired cannot renew it. This script
proves to a kubejoin server with the key of the expired certificate that the machine
is its node, and writes the bootstrap kubeconfig that it gets. Then restart the
kubelet. While the certificate is valid, the script changes nothing. It needs curl
and openssl, and root.

  --url URL        the kubejoin server (KUBEJOIN_URL). Its certificate must have the
                   host of this URL
  --ca-file FILE   CA of the server (default: the one in --kubeconfig)
  --kubeconfig FILE
                   kubeconfig of the kubelet (default /etc/kubernetes/kubelet.conf)
  --bootstrap-kubeconfig FILE
                   file to write (default /etc/kubernetes/bootstrap-kubelet.conf)
  --key FILE --node NAME
                   use a private key that was bound to the node
  --bind-key FILE  bind the public key of this private key to the node, and exit
  --before SECONDS rejoin also if the certificate expires within this time (default 0)
  --wait SECONDS   time to retry while the server does not respond (default 300)
  --restart UNIT   systemd unit to restart after the file was written, such as kubelet

Exit codes: 0 the certificate is valid, or the file is written; 1 something on this
machine is missing; 2 invalid options; 3 the server refuses; 4 timeout.
END
}

say() { printf 'kubejoin: %s\n' "$*"; }

die() {
    code=$1
    shift
    printf 'kubejoin: %s\n' "$*" | tr -d '\000-\011\013-\037\177' >&2
    exit "$code"
}

# seconds prints a monotonic time, because the wall clock may be set while the script waits.
seconds() { cut -d. -f1 /proc/uptime 2>/dev/null || date +%s; }

# field prints a field of the kubeconfig.
field() {
    [ ! -r "$kubeconfig" ] || sed -n 's/^[[:space:]]*'"$1"':[[:space:]]*["'\'']\{0,1\}\([^"'\''[:space:]]*\).*/\1/p' "$kubeconfig" | head -n 1
}

# part writes the content of a field of the kubeconfig to the file $2: that of its file, or its data.
part() {
    from=$(field "$1")
    data=$(field "$1-data")
    if [ -n "$data" ]; then
        printf '%s' "$data" | openssl base64 -d -A >"$2"
    elif [ -n "$from" ]; then
        case $from in
        /*) ;;
        *) from=$(dirname "$kubeconfig")/$from ;;
        esac
        cat "$from" >"$2"
    else
        return 1
    fi 2>/dev/null && [ -s "$2" ]
}

# blocks prints the PEM blocks of a file whose type matches the pattern $1.
blocks() { awk -v of="$1" '/^-----BEGIN / { on = ($0 ~ "^-----BEGIN " of "-----") } on { print } /^-----END / { on = 0 }' "$2"; }

# load writes the certificate and key of the kubelet to cert and key, and sets node. It fails if there are none.
load() {
    part client-certificate "$tmp/chain" && part client-key "$tmp/keys" || return 1
    blocks CERTIFICATE "$tmp/chain" >"$tmp/cert"
    blocks '[A-Z ]*PRIVATE KEY' "$tmp/keys" >"$tmp/key"
    certified=$(openssl x509 -in "$tmp/cert" -noout -subject -nameopt RFC2253 2>/dev/null | sed -n 's/^.*CN=system:node:\([a-z0-9.-]*\).*$/\1/p')
    [ -n "$certified" ] && [ -s "$tmp/key" ]
}

# text prints the file $1 as a JSON string.
text() { awk 'BEGIN { printf "\"" } { printf "%s\\n", $0 } END { printf "\"" }' "$1"; }

# json prints the string field $1 of the JSON in the file $2.
json() { tr -d '\n' <"$2" | sed -n 's/^.*"'"$1"'":"\([^"]*\)".*$/\1/p'; }

# post sends the file $2, or nothing, to the path $1. It sets why if the response is not 200.
post() {
    curl=0
    http=$(curl -q --silent --show-error --proto '=https' --connect-timeout 5 --max-time 60 --cacert "$tmp/ca" --capath "$tmp/none" \
        --request POST --header 'Content-Type: application/json' --data-binary "@${2:-/dev/null}" \
        --output "$tmp/answer" --write-out '%{http_code}' "$url/v1/rejoin$1" 2>"$tmp/error") || curl=$?
    reason=
    case $curl:$http in
    0:200) return 0 ;;
    0:*)
        reason=$(json reason "$tmp/answer")
        why="$(json detail "$tmp/answer")"
        [ -n "$why" ] || why="$url returns HTTP $http, and is no kubejoin server"
        ;;
    *) why=$(head -n 1 "$tmp/error") ;;
    esac
    return 1
}

# sign signs the file text with the key.
sign() {
    if openssl pkey -in "$tmp/key" -noout -text 2>/dev/null | grep -qi '^ed25519'; then
        openssl pkeyutl -sign -inkey "$tmp/key" -rawin -in "$tmp/text" -out "$tmp/signature"
    else
        openssl dgst -sha256 -sign "$tmp/key" -out "$tmp/signature" "$tmp/text"
    fi 2>"$tmp/error" || die 1 "cannot sign with the private key: $(head -n 1 "$tmp/error")"
}

# attempt gets a challenge and sends the signed request to the path $1. The response is in answer.
attempt() {
    post /challenge || return 1
    challenge=$(json challenge "$tmp/answer")
    case $challenge in
    '' | *[!A-Za-z0-9_-]*)
        http=404 why="$url returns no challenge, and is no kubejoin server"
        return 1
        ;;
    esac
    if [ -n "$bind" ]; then
        printf 'kubejoin bind key v1\n%s\n%s\n%s\n%s\n' "$challenge" "$node" "$host" "$bound" >"$tmp/text"
    else
        printf 'kubejoin rejoin v1\n%s\n%s\n%s\n' "$challenge" "$node" "$host" >"$tmp/text"
    fi
    sign
    {
        printf '{"challenge":"%s","server":"%s","signature":"%s",' "$challenge" "$host" "$(openssl base64 -A -in "$tmp/signature")"
        [ -z "$bind" ] || printf '"key":%s,' "$(text "$tmp/bind.pub")"
        if [ -n "$key" ]; then
            printf '"node":"%s","publicKey":%s}' "$node" "$(text "$tmp/key.pub")"
        else
            printf '"certificate":%s}' "$(text "$tmp/cert")"
        fi
    } >"$tmp/request"
    post "$1" "$tmp/request"
}

# ask repeats attempt until it succeeds, is refused, or the time is over.
ask() {
    end=$(($(seconds) + wait))
    logged=
    until attempt "$1"; do
        case $curl:$http:$reason in
        0:*:ChallengeInvalid | 0:*:ChallengeUsed | 0:429:* | 0:5??:*) ;;
        0:4??:?*) die 3 "$reason: $why" ;;
        0:*) die 1 "$why" ;;
        60:* | 77:*) die 1 "$url is not trusted: $why" ;;
        esac
        [ "$(seconds)" -lt "$end" ] || die 4 "no decision by $url in $wait s: $why"
        [ "$why" = "$logged" ] || say "waiting: $why" >&2
        logged=$why
        sleep 2
    done
}

# place writes the file $1 to $2 with mode 0600, atomically.
place() {
    new=$(mktemp "$2.XXXXXX") && cat "$1" >"$new" && mv -f "$new" "$2" || {
        rm -f "${new-}"
        die 1 "cannot write $2"
    }
}

main() {
    url=${KUBEJOIN_URL-}
    ca_file=
    kubeconfig=/etc/kubernetes/kubelet.conf
    bootstrap=/etc/kubernetes/bootstrap-kubelet.conf
    key=
    node=
    bind=
    before=0
    wait=300
    restart=
    while [ $# -gt 0 ]; do
        case $1 in
        --help)
            usage
            exit
            ;;
        --url | --ca-file | --kubeconfig | --bootstrap-kubeconfig | --key | --node | --bind-key | --before | --wait | --restart)
            [ $# -gt 1 ] && [ -n "$2" ] || die 2 "$1: missing value"
            case $1 in
            --url) url=$2 ;;
            --ca-file) ca_file=$2 ;;
            --kubeconfig) kubeconfig=$2 ;;
            --bootstrap-kubeconfig) bootstrap=$2 ;;
            --key) key=$2 ;;
            --node) node=$2 ;;
            --bind-key) bind=$2 ;;
            --before) before=$2 ;;
            --wait) wait=$2 ;;
            --restart) restart=$2 ;;
            esac
            shift
            ;;
        *) die 2 "$1: unknown option, see --help" ;;
        esac
        shift
    done
    case $url in
    *[!]A-Za-z0-9.:/_%~[-]* | https:///*) die 2 "--url: want https://HOST:PORT" ;;
    https://?*) ;;
    *) die 2 "--url: want https://HOST:PORT" ;;
    esac
    case $before$wait in
    *[!0-9]* | ????????????*) die 2 "--before, --wait: want a number of seconds" ;;
    esac
    case ${key:+k}${node:+n}${bind:+b} in
    '' | kn | b) ;;
    *) die 2 '--key and --node go together, and not with --bind-key' ;;
    esac
    case $node in
    *[!a-z0-9.-]*) die 2 "--node: want a node name" ;;
    esac
    case $restart in
    -*) die 2 "--restart: want a systemd unit" ;;
    esac
    for program in curl openssl awk sed mktemp; do
        command -v "$program" >/dev/null || die 1 "$program is missing: install it"
    done
    url=${url%/}
    host=${url#https://}
    host=${host%%/*}
    case $host in
    \[*) host=${host#\[} host=${host%%\]*} ;;
    *) host=${host%%:*} ;;
    esac
    host=$(printf '%s' "$host" | tr '[:upper:]' '[:lower:]')

    umask 077
    dir=${TMPDIR:-/run} # in memory
    [ -d "$dir" ] && [ -w "$dir" ] || dir=/tmp
    tmp=$(mktemp -d "$dir/kubejoin.XXXXXX") || die 1 "cannot create a directory in $dir"
    trap 'code=$?; rm -rf "$tmp"; exit "$code"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$tmp/none"

    certified=
    if load && { [ -z "$key" ] || [ "$certified" = "$node" ]; }; then
        if [ -z "$bind" ] && openssl x509 -in "$tmp/cert" -noout -checkend "$before" >/dev/null 2>&1; then
            if [ -f "$bootstrap" ] && head -n 1 "$bootstrap" | grep -q '^# written by kubejoin rejoin'; then
                rm -f "$bootstrap"
            fi
            say "nothing to do: the certificate of node $certified is valid until $(openssl x509 -in "$tmp/cert" -noout -enddate | cut -d= -f2)"
            exit 0
        fi
    elif [ -z "$key" ]; then
        die 1 "--kubeconfig: $kubeconfig has no client certificate of a node"
    fi
    node=${node:-$certified}
    if [ -n "$key" ]; then
        blocks '[A-Z ]*PRIVATE KEY' "$key" >"$tmp/key" 2>/dev/null && [ -s "$tmp/key" ] || die 1 "--key: $key has no private key in PEM"
        openssl pkey -in "$tmp/key" -pubout >"$tmp/key.pub" 2>/dev/null || die 1 "--key: $key is malformed"
    fi
    if [ -n "$bind" ]; then
        openssl pkey -in "$bind" -pubout >"$tmp/bind.pub" 2>/dev/null || die 1 "--bind-key: $bind has no private key in PEM"
        bound=sha256:$(openssl pkey -pubin -in "$tmp/bind.pub" -outform DER 2>/dev/null | openssl dgst -sha256 -r | cut -c1-64)
    fi
    if [ -n "$ca_file" ]; then
        cat "$ca_file" >"$tmp/ca" 2>/dev/null || die 1 "--ca-file: cannot read $ca_file"
    else
        part certificate-authority "$tmp/ca" || die 1 "--ca-file: none given, and $kubeconfig has no CA"
    fi

    if [ -n "$bind" ]; then
        ask /key
        say "bound key $bound to node $node: rejoin with --key $bind --node $node"
        exit 0
    fi
    [ -d "$(dirname "$bootstrap")" ] && [ -w "$(dirname "$bootstrap")" ] || die 1 "cannot write $bootstrap: run this script as root"
    ask ''
    {
        printf '# written by kubejoin rejoin; removed by it when the certificate is valid again\n'
        cat "$tmp/answer"
    } >"$tmp/bootstrap"
    place "$tmp/bootstrap" "$bootstrap"
    say "node $node may rejoin within 10 minutes: wrote $bootstrap"
    if [ -n "$restart" ]; then
        systemctl restart "$restart" || die 1 "--restart: cannot restart $restart"
        say "$restart was restarted"
    else
        say "now restart the kubelet, with --bootstrap-kubeconfig=$bootstrap"
    fi
}

# The braces make a truncated script do nothing.
{ main "$@"; exit; }

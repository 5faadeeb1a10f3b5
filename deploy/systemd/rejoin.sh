#!/bin/sh
# Lets this machine come back after its kubelet's certificate has expired, as 'kubejoin rejoin' does. See --help.
set +xv # tracing would print a private key

usage() {
    cat <<'END'
Usage: sh rejoin.sh --url https://HOST:PORT [OPTIONS]

Gets a new certificate for the kubelet of this machine with the expired one, as
'kubejoin rejoin' does. While the certificate is valid, it changes nothing. It needs
curl and openssl, and root. For a machine without a disk, use 'kubejoin rejoin'.

  --url URL          the kubejoin server (KUBEJOIN_URL)
  --ca-file FILE     CA of the server (default: the one in --kubeconfig)
  --kubeconfig FILE  kubeconfig of the kubelet (default /etc/kubernetes/kubelet.conf)
  --before SECONDS   rejoin also if the certificate expires within this time (default 0)
  --wait SECONDS     time to retry while the server does not respond (default 300)
  --restart UNIT     systemd unit to restart after the certificate was written

Exit codes: 0 the certificate is valid, or a new one is written; 2 invalid options;
3 the server refuses; 4 timeout; 1 all other errors.
END
}

say() { printf 'kubejoin: %s\n' "$*" | tr -cd ' -~\n'; }

die() {
    code=$1
    shift
    say "$*" >&2
    exit "$code"
}

# seconds prints a monotonic time, because the wall clock may be set while the script waits.
seconds() { cut -d. -f1 /proc/uptime 2>/dev/null || date +%s; }

# field prints a field of the kubeconfig.
field() {
    sed -n 's/^[[:space:]]*'"$1"':[[:space:]]*["'\'']\{0,1\}\([^"'\''[:space:]]*\).*/\1/p' "$kubeconfig" 2>/dev/null | head -n 1
}

# json prints a string field of the problem in the response.
json() { tr -d '\n' <"$tmp/answer" | sed -n 's/^.*"'"$1"'":"\([^"]*\)".*$/\1/p'; }

# request sends the CSR with the expired certificate until the server decides, or the time is over.
request() {
    end=$(($(seconds) + wait))
    why=
    while :; do
        logged=$why
        curl=0
        http=$(curl -q --silent --show-error --proto '=https' --connect-timeout 5 --max-time 60 --cacert "$tmp/ca" --capath "$tmp" \
            --cert "$current" --header 'Content-Type: application/pkcs10' --data-binary "@$tmp/csr" \
            --output "$tmp/answer" --write-out '%{http_code}' "$url/v1/certificate" 2>"$tmp/error") || curl=$?
        if [ "$curl" = 0 ]; then why=$(json detail); else why=$(head -n 1 "$tmp/error"); fi
        case $curl:$http in
        0:200) return ;;
        0:429 | 0:5??) ;;
        0:401 | 0:403)
            reason=$(json reason)
            die 3 "${reason:-refused}: $why"
            ;;
        0:*) die 1 "$url returns HTTP $http: ${why:-it is no kubejoin server}" ;;
        58:*) die 1 "$why" ;;
        60:* | 77:*) die 1 "$url is not trusted: $why; give its CA with --ca-file" ;;
        esac
        [ "$(seconds)" -lt "$end" ] || die 4 "no decision by $url in $wait s: $why"
        [ "$why" = "$logged" ] || say "waiting: $why" >&2
        sleep 2
    done
}

main() {
    url=${KUBEJOIN_URL-}
    ca_file=
    kubeconfig=/etc/kubernetes/kubelet.conf
    before=0
    wait=300
    restart=
    while [ $# -gt 0 ]; do
        case $1 in
        --help)
            usage
            exit
            ;;
        --url) url=${2-} ;;
        --ca-file) ca_file=${2-} ;;
        --kubeconfig) kubeconfig=${2-} ;;
        --before) before=${2-} ;;
        --wait) wait=${2-} ;;
        --restart) restart=${2-} ;;
        *) die 2 "$1: unknown option, see --help" ;;
        esac
        [ -n "${2-}" ] || die 2 "$1: missing value"
        shift 2
    done
    case $url in
    *[!]A-Za-z0-9.:/_%~[-]* | https:///*) die 2 "--url: want https://HOST:PORT" ;;
    https://?*) url=${url%/} ;;
    *) die 2 "--url: want https://HOST:PORT" ;;
    esac
    case $before$wait in
    *[!0-9]* | ????????????*) die 2 "--before, --wait: want a number of seconds" ;;
    esac
    case $restart in
    -*) die 2 "--restart: want a systemd unit" ;;
    esac
    for program in curl openssl sed mktemp; do
        command -v "$program" >/dev/null || die 1 "$program is missing: install it"
    done

    current=$(field client-certificate)
    case $(field client-key):$current in
    "$current":/*-current.pem) ;;
    *) die 1 "--kubeconfig: want one file for client certificate and key in $kubeconfig that begins with / and ends in -current.pem" ;;
    esac
    node=$(openssl x509 -in "$current" -noout -subject -nameopt RFC2253 2>/dev/null | sed -n 's/^.*CN=system:node:\([a-z0-9.-]*\).*$/\1/p')
    [ -n "$node" ] || die 1 "$current: want the client certificate of a node"
    if openssl x509 -in "$current" -noout -checkend "$before" >/dev/null 2>&1; then
        say "nothing to do: the certificate of node $node is valid until $(openssl x509 -in "$current" -noout -enddate | cut -d= -f2)"
        exit 0
    fi
    [ -h "$current" ] || die 1 "$current: want a symbolic link, as the kubelet makes it"
    [ -w "$(dirname "$current")" ] || die 1 "cannot write $current: run this script as root"

    umask 077
    dir=${TMPDIR:-/run} # in memory
    [ -w "$dir" ] || dir=/tmp
    tmp=$(mktemp -d "$dir/kubejoin.XXXXXX") || die 1 "cannot create a directory in $dir"
    trap 'code=$?; rm -rf "$tmp"; exit "$code"' EXIT
    trap 'exit 130' HUP INT TERM
    from=${ca_file:-$(field certificate-authority)}
    if [ -n "$from" ]; then
        cat "$from" >"$tmp/ca" 2>/dev/null || die 1 "--ca-file: cannot read $from"
    else
        field certificate-authority-data | openssl base64 -d -A >"$tmp/ca"
        [ -s "$tmp/ca" ] || die 1 "--ca-file: none given, and $kubeconfig has no CA"
    fi
    key=${current%-current.pem}-rejoin.key # stays until the certificate is written: the server counts once for each key
    openssl pkey -in "$key" -noout 2>/dev/null || openssl ecparam -name prime256v1 -genkey -noout -out "$key" 2>"$tmp/error" ||
        die 1 "cannot make a key: $(head -n 1 "$tmp/error")"
    openssl req -new -key "$key" -subj "/O=system:nodes/CN=system:node:$node" -out "$tmp/csr" 2>"$tmp/error" ||
        die 1 "cannot make a request: $(head -n 1 "$tmp/error")"
    request
    [ "$(openssl x509 -in "$tmp/answer" -noout -pubkey 2>/dev/null)" = "$(openssl pkey -in "$key" -pubout)" ] || die 1 "$url returned no certificate for the new key"

    file=${current%-current.pem}-$(date +%Y-%m-%d-%H-%M-%S).pem
    link=${current%-current.pem}-updated.pem
    cat "$tmp/answer" "$key" >"$file.new" && { sync "$file.new" 2>/dev/null || sync; } && mv -f "$file.new" "$file" &&
        rm -f "$link" && ln -s "$file" "$link" && mv -f "$link" "$current" && rm -f "$key" || {
        rm -f "$file.new"
        die 1 "cannot write $current"
    }
    say "node $node has a certificate until $(openssl x509 -in "$file" -noout -enddate | cut -d= -f2) in $current"
    if [ -n "$restart" ]; then
        systemctl restart "$restart" || die 1 "--restart: cannot restart $restart"
        say "$restart was restarted"
    else
        say "a kubelet that runs uses it after it has restarted"
    fi
}

# The braces make a truncated script do nothing.
{ main "$@"; exit; }

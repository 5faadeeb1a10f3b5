#!/bin/sh
# Joins this machine to a Kubernetes cluster; --help says how. kubejoin made it.
# It holds a secret, bootstrap token abcdef: who has the file can join with it.
set +xv # no trace of the secret

usage() {
    cat <<'EOF'
Usage: sh FILE [--kubeadm | --no-kubeadm] [OPTIONS] [-- FLAGS OF KUBEADM]

Joins this machine to the cluster at join.example.com:9443, once what answers there
has a certificate of the cluster CA, which is known by its pin. It does so with
kubeadm, or if only a kubelet is installed by files from which that joins.

  --kubeadm        use kubeadm, and fail without it
  --add-config FILE
                   more of the JoinConfiguration that kubeadm gets, in YAML, such as
                   nodeRegistration or patches (KUBEJOIN_ADD_CONFIG, none)
  --no-kubeadm     write the files for the kubelet, also where there is kubeadm
  --bootstrap-kubeconfig FILE
                   what the kubelet's flag of this name says
                   (KUBEJOIN_BOOTSTRAP_KUBECONFIG, /etc/kubernetes/bootstrap-kubelet.conf)
  --ca-file FILE   where the kubelet finds the cluster CA
                   (KUBEJOIN_CA_FILE, /etc/kubernetes/pki/ca.crt)
  --kubeconfig FILE
                   the kubelet's own, which is there if the machine has joined
                   (KUBEJOIN_KUBECONFIG, /etc/kubernetes/kubelet.conf)
  --timeout SECONDS
                   how long to wait for the cluster (KUBEJOIN_TIMEOUT, 300)

Exit codes: 0 it has joined, now or before, or the files are there; 1 something
is missing on this machine; 2 wrong options; 3 what answers is not the cluster;
4 no cluster-info in time; 5 kubeadm failed; 128 and a signal's number: that came.
EOF
}

say() { printf 'kubejoin: %s\n' "$*"; }

die() {
    code=$1
    shift
    printf 'kubejoin: %s\n' "$*" >&2
    exit "$code"
}

# seconds counts time as it goes by: the wall clock may be set meanwhile.
seconds() { cut -d. -f1 /proc/uptime 2>/dev/null || date +%s; }

# fetch reads cluster-info into a file, with more options of curl. why is what went wrong, and clock
# says more if that may pass once the clock is set, which on a machine without a battery is soon.
fetch() {
    to=$1
    shift
    curl=0
    clock=
    http=$(
        ulimit -f 131072 2>/dev/null || :
        exec curl -q --silent --show-error --proto '=https' --connect-timeout 5 --max-time 30 \
            --output "$to" --write-out '%{http_code}' "$@" \
            "https://$endpoint/api/v1/namespaces/kube-public/configmaps/cluster-info" 2>"$tmp/error"
    ) || curl=$?
    case $curl:$http in
    0:200) return 0 ;;
    0:401 | 0:403) why="it lets nobody read cluster-info who has no credential (HTTP $http)" ;;
    0:404) why='it has no cluster-info yet' ;;
    0:*) why="it answers HTTP $http" ;;
    *) why=$(head -n 1 "$tmp/error" | tr -cd '[:print:]') ;;
    esac
    case $curl:$why in
    60:*' not yet valid'* | 60:*' has expired'* | 60:*' date has passed'* | 60:*' not activated yet'*)
        why="its certificate is not valid at this machine's time"
        clock=" (date $(date -u +%Y-%m-%dT%H:%M:%SZ)): is its clock right?"
        ;;
    esac
    return 1
}

# field gives a field of the kubeconfig in cluster-info, which is YAML or JSON in a string of JSON.
field() {
    tr ',{' '\n\n' <"$1" | sed -n '/^[[:space:]]*"kubeconfig":/,$s/.*[^a-z-]'"$2"'[\\"]*: *[\\"]*\([^\\" ]*\).*/\1/p' | head -n 1
}

# pin_of gives the pin of a certificate in the form of kubeadm: the hash of its public key.
pin_of() {
    openssl x509 -in "$1" -noout -pubkey >"$tmp/key.pem" 2>/dev/null &&
        openssl pkey -pubin -in "$tmp/key.pem" -outform DER -out "$tmp/key.der" 2>/dev/null &&
        sum=$(openssl dgst -sha256 -r "$tmp/key.der") && printf 'sha256:%s' "${sum%% *}"
}

# keep_pinned puts the CAs of an answer that have a pin of ours into ca.crt. found are all pins.
keep_pinned() {
    rm -f "$tmp"/cert.* "$tmp/ca.crt"
    found=
    data=$(field "$1" certificate-authority-data)
    [ "${#data}" -le 131072 ] || return 1
    printf '%s' "$data" | base64 -d >"$tmp/bundle" 2>/dev/null || return 1
    awk -v to="$tmp/cert." '/^-----BEGIN CERTIFICATE/ { n++ } n { print > (to n) } /^-----END/ { close(to n) }' "$tmp/bundle"
    for cert in "$tmp"/cert.*; do
        pin=$(pin_of "$cert") || continue
        found="$found $pin"
        case " $pins " in
        *" $pin "*) openssl x509 -in "$cert" >>"$tmp/ca.crt" ;;
        esac
    done
    [ -s "$tmp/ca.crt" ]
}

# discover puts into info what is served under a pinned CA, and the pinned CAs into ca.crt. The
# first answer is trusted in nothing but in what has a pin. Nothing secret is sent.
discover() {
    end=$(($(seconds) + timeout))
    said=
    mkdir "$tmp/none"
    while :; do
        if fetch "$tmp/untrusted" --insecure; then
            if keep_pinned "$tmp/untrusted"; then
                # curl would trust the system's folder of CAs as well.
                fetch "$tmp/info" --cacert "$tmp/ca.crt" --capath "$tmp/none" && return
                case $clock$curl in
                51 | 60 | 77 | 83) die 3 "$endpoint is not trusted: $why: it shows the right CA and has no certificate of it for this name" ;;
                esac
            elif [ -n "$found" ]; then
                die 3 "$endpoint is not trusted: the CA there has the pin$found, not $pins: another cluster, or somebody in between"
            else
                why='its answer holds no CA'
            fi
        fi
        [ "$(seconds)" -lt "$end" ] || die 4 "no cluster-info from $endpoint in $timeout s: $why$clock"
        [ "$why" = "$said" ] || say "waiting for $endpoint: $why$clock"
        said=$why
        sleep 1
    done
}

with_kubeadm() {
    cat >"$tmp/join.yaml" <<'EOF'
apiVersion: kubeadm.k8s.io/v1beta4
discovery:
  bootstrapToken:
    apiServerEndpoint: join.example.com:9443
    caCertHashes:
    - sha256:b12154dc4ae9e074899d4a6da1b72f0bea0d4f2ca01bd9289b44d01b2b3435fd
    token: abcdef.9876543210fedcba
kind: JoinConfiguration
EOF
    [ -z "$add_config" ] || cat "$add_config" >>"$tmp/join.yaml" || die 1 "--add-config: $add_config cannot be read"
    code=0
    # For a command in the background, and for no other, a shell hears signals while it waits.
    kubeadm=running
    (umask "$umask" && exec kubeadm join --config "$tmp/join.yaml" "$@") </dev/null &
    wait "$!" || code=$?
    kubeadm=
    rm -f "$tmp/join.yaml"
    [ "$code" = 0 ] || die 5 "kubeadm join failed with exit code $code. Once what it complains about is mended, run 'kubeadm reset' and then this again"
    say 'this machine has joined'
}

# stop ends with a code when a signal came, and kubeadm before that. A shell has a command in the
# background ignore INT, so it is TERM that this gets.
stop() {
    trap '' HUP INT TERM
    if [ "$kubeadm" = running ]; then
        kill "$!" 2>/dev/null || :
        wait "$!" || : # which says how it ended
    fi
    exit "$1"
}

# place moves a new file to where it belongs, at once.
place() {
    (umask 022 && mkdir -p "$(dirname "$2")") && new=$(mktemp "$2.XXXXXX") && cat "$1" >"$new" && chmod "$3" "$new" && mv -f "$new" "$2" || {
        rm -f "${new-}"
        die 1 "$2 cannot be written"
    }
}

without_kubeadm() {
    server=$(field "$tmp/info" server)
    case $server in
    https://*[!]A-Za-z0-9.:/_%~[-]*) die 3 'the server in cluster-info is no plain URL' ;;
    https://?*) ;;
    *) die 3 'cluster-info names no server' ;;
    esac
    if [ -e "$ca_file" ]; then
        [ "$(cat "$tmp/ca.crt")" = "$(cat "$ca_file")" ] || die 1 "$ca_file is there already and differs from the cluster CA: remove it, or give --ca-file"
    else
        place "$tmp/ca.crt" "$ca_file" 0644
    fi
    cat >"$tmp/bootstrap" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: kubernetes
  cluster:
    certificate-authority-data: $(base64 <"$tmp/ca.crt" | tr -d '\n')
    server: "$server"
users:
- name: tls-bootstrap-token-user
  user:
    token: "$token"
contexts:
- name: tls-bootstrap-token-user@kubernetes
  context:
    cluster: kubernetes
    user: tls-bootstrap-token-user
current-context: tls-bootstrap-token-user@kubernetes
EOF
    place "$tmp/bootstrap" "$bootstrap" 0600
    say "wrote $bootstrap and $ca_file: a kubelet with --bootstrap-kubeconfig=$bootstrap --kubeconfig=$kubeconfig joins now"
}

main() {
    endpoint='join.example.com:9443'
    pins='sha256:b12154dc4ae9e074899d4a6da1b72f0bea0d4f2ca01bd9289b44d01b2b3435fd'
    token='abcdef.9876543210fedcba'
    control_plane=''
    bootstrap=${KUBEJOIN_BOOTSTRAP_KUBECONFIG:-/etc/kubernetes/bootstrap-kubelet.conf}
    ca_file=${KUBEJOIN_CA_FILE:-/etc/kubernetes/pki/ca.crt}
    kubeconfig=${KUBEJOIN_KUBECONFIG:-/etc/kubernetes/kubelet.conf}
    timeout=${KUBEJOIN_TIMEOUT:-300}
    add_config=${KUBEJOIN_ADD_CONFIG-}
    kubeadm=
    while [ $# -gt 0 ]; do
        case $1 in
        --bootstrap-kubeconfig | --ca-file | --kubeconfig | --add-config | --timeout)
            [ $# -gt 1 ] && [ -n "$2" ] || die 2 "$1: a value is missing"
            case $1 in
            --bootstrap-kubeconfig) bootstrap=$2 ;;
            --ca-file) ca_file=$2 ;;
            --kubeconfig) kubeconfig=$2 ;;
            --add-config) add_config=$2 ;;
            --timeout) timeout=$2 ;;
            esac
            shift
            ;;
        --kubeadm) kubeadm=yes ;;
        --no-kubeadm) kubeadm=no ;;
        --help) usage && exit ;;
        --) shift && break ;;
        *) die 2 "$1: unknown option; --help names all" ;;
        esac
        shift
    done
    case $timeout in
    *[!0-9]* | 0?* | ???????*) die 2 "--timeout: want a number of seconds, not $timeout" ;;
    esac
    [ -z "$add_config" ] || [ -r "$add_config" ] && [ ! -d "$add_config" ] || die 1 "--add-config: $add_config cannot be read"

    PATH=$PATH:/usr/local/bin:/opt/bin # systemd's PATH lacks where some systems have kubeadm
    if [ -z "$kubeadm" ]; then
        if command -v kubeadm >/dev/null; then
            kubeadm=yes
        elif command -v kubelet >/dev/null; then
            kubeadm=no
        else
            die 1 'neither kubeadm nor a kubelet is installed here; install one, or give --no-kubeadm to have the files for a kubelet written'
        fi
    fi
    for program in curl openssl base64 awk sed mktemp; do
        command -v "$program" >/dev/null || die 1 "$program is missing: install it"
    done
    if [ -e "$kubeconfig" ]; then
        say "nothing is done: $kubeconfig is there, so this machine has joined already; 'kubeadm reset', or removing it, makes it join again"
        exit
    fi
    if [ "$kubeadm" = yes ]; then
        command -v kubeadm >/dev/null || die 1 'kubeadm is missing: install it'
        [ "$(id -u)" = 0 ] || die 1 'run this as root, which kubeadm needs'
    else
        [ $# = 0 ] || die 2 'flags of kubeadm are given, and it is not used'
        [ -z "$add_config" ] || die 2 "--add-config: $add_config is for kubeadm, and it is not used"
        [ -z "$control_plane" ] || die 1 'this is for a machine of the control plane, which only kubeadm joins'
        for file in "$bootstrap" "$ca_file"; do
            [ "$(id -u)" = 0 ] || [ -w "$(dirname "$file")" ] || die 1 "run this as root: $file cannot be written"
        done
    fi

    umask=$(umask)
    umask 077
    dir=${TMPDIR:-/run} # which is memory
    [ -d "$dir" ] && [ -w "$dir" ] || dir=/tmp
    tmp=$(mktemp -d "$dir/kubejoin.XXXXXX") || die 1 "no folder can be made in $dir"
    trap 'code=$?; rm -rf "$tmp"; exit "$code"' EXIT # mksh takes the code of rm otherwise
    trap 'stop 129' HUP
    trap 'stop 130' INT
    trap 'stop 143' TERM

    discover
    say "$endpoint is known by its CA"
    if [ "$kubeadm" = yes ]; then
        with_kubeadm "$@"
    else
        without_kubeadm
    fi
}

# The braces: a script that was cut off does nothing.
{ main "$@"; exit; }

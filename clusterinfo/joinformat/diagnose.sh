# checks are the names of all checks. docs/codes.md lists them.
checks='user programs cgroup swap ip-forward node-name runtime ports leftovers ca-file kubelet-certificate proxy
endpoint-dns endpoint-tcp clock cluster-info pin endpoint-tls api-dns api-tcp api-tls token signature version node requests'

# report prints the line of a check: its level $1, its name $2, what was seen, and what to do. Other machines chose parts of
# it. Without their control characters, they can neither change the terminal nor add a line.
report() {
    case $1 in
    error) errors=$((errors + 1)) ;;
    warning) warnings=$((warnings + 1)) ;;
    unknown) unknown=$((unknown + 1)) ;;
    esac
    reported="$reported $2 "
    printf '%-8s %s: %s%s' "$1" "$2" "$3" "${4:+; $4}" | tr -cd ' -~'
    echo
}

# conf_field prints a field of the kubeconfig of the kubelet. A truncated script would run a name that begins with kubelet.
conf_field() { sed -n "s/^ *$1: *\([^ ]*\).*/\1/p" "$kubeconfig" 2>/dev/null | tr -d "\"'" | head -n 1; }

# find_own sets current to the client certificate of the kubelet, own to its node, and server to the API server of the
# kubelet. It requests the Node with that certificate, and sets unready to why this machine is not a Ready node. If it is
# one, unready is empty.
find_own() {
    current=$(conf_field client-certificate)
    current=${current:-$root/var/lib/kubelet/pki/kubelet-client-current.pem}
    server=$(conf_field server)
    unready='it names no API server, or no valid certificate of a node'
    own=$(openssl x509 -in "$current" -noout -checkend 0 -subject -nameopt RFC2253 2>/dev/null) || return 0
    own=$(printf '%s' "$own" | sed -n 's/.*CN=system:node:\([a-z0-9.-]*\).*/\1/p')
    [ -n "$own" ] && check_https "$server" || return 0
    conf_field certificate-authority-data | base64 -d >"$tmp/own.crt" 2>/dev/null
    [ -s "$tmp/own.crt" ] || cat "$(conf_field certificate-authority)" >"$tmp/own.crt" 2>/dev/null
    fetch "$tmp/own" "$server/api/v1/nodes/$own" --user-agent kubejoin --cacert "$tmp/own.crt" --capath "$tmp/none" \
        --cert "$current" --key "$(conf_field client-key)" || :
    case $curl:$http in
    0:200)
        unready="Node $own is not Ready"
        ! grep -q '"type":"Ready","status":"True"' "$tmp/own" || unready=
        ;;
    0:*) unready="$server returns HTTP $http for Node $own" ;;
    *) unready="$server: ${why#curl: (*) }" ;;
    esac
}

# minor prints the minor version in a text such as "Kubernetes v1.36.3".
minor() { printf '%s' "$1" | sed -n 's/.*v1\.\([0-9][0-9]*\).*/\1/p'; }

# json_string prints the string with the key $2 in the JSON file $1.
json_string() {
    LC_ALL=C awk -v key="$2" '
        { text = text $0 "\n" }
        END {
            if (!match(text, "\"" key "\":[ \n]*\"")) exit
            text = substr(text, RSTART + RLENGTH)
            while (match(text, /[\\"]/)) {
                out = out substr(text, 1, RSTART - 1)
                if (substr(text, RSTART, 1) == "\"") break
                c = substr(text, RSTART + 1, 1)
                text = substr(text, RSTART + 2)
                if (c == "u") {
                    hex = tolower(substr(text, 1, 4))
                    c = hex == "003c" ? "<" : hex == "003e" ? ">" : hex == "0026" ? "&" : "?"
                    text = substr(text, 5)
                }
                out = out (c == "n" ? "\n" : c == "t" ? "\t" : c == "r" ? "\r" : c)
            }
            printf "%s", out
        }' "$1"
}

base64url() { base64 | tr -d '\n=' | tr '+/' '-_'; }

# hmac_key prints the key block of HMAC-SHA-256 (RFC 2104) with each byte XOR $1. The key is the token secret. openssl
# accepts it only in its arguments, which every user of this machine can read. gawk and the awk of BusyBox refuse a
# function with the name xor, because they have one.
hmac_key() {
    awk -v pad="$1" '
        function exclusive_or(a, b, r, p) {
            r = 0
            for (p = 1; p < 256; p *= 2) if (int(a / p) % 2 != int(b / p) % 2) r += p
            return r
        }
        {
            for (i = 1; i <= 66; i++) {
                n = i <= length($0) ? index("0123456789abcdefghijklmnopqrstuvwxyz", substr($0, i, 1)) : 0
                byte[i] = i > 64 ? 0 : exclusive_or(n == 0 ? 0 : n + (n > 10 ? 86 : 47), pad)
            }
            digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            for (i = 1; i <= 64; i += 3) {
                bits = byte[i] * 65536 + byte[i + 1] * 256 + byte[i + 2]
                for (p = 262144; p >= 1; p /= 64) {
                    if (i == 64 && p < 4096) printf "="
                    else printf "%s", substr(digits, int(bits / p) % 64 + 1, 1)
                }
            }
        }' <<EOF | base64 -d
${token#*.}
EOF
}

# signature_of prints the signature (JWS) of the file $1 by the token, as cluster-info has it.
signature_of() {
    header=$(printf '{"alg":"HS256","kid":"%s"}' "${token%%.*}" | base64url)
    {
        hmac_key 54
        printf '%s.' "$header"
        base64url <"$1"
    } | openssl dgst -sha256 -binary >"$tmp/inner"
    mac=$({
        hmac_key 92
        cat "$tmp/inner"
    } | openssl dgst -sha256 -binary | base64url)
    printf '%s..%s' "$header" "$mac"
}

# trusted and query are fetch with verified TLS. query also sends the token, from standard input. It requests the columns
# that kubectl get prints. The API server indents JSON for the user agent of curl.
trusted() { fetch "$@" --user-agent kubejoin --cacert "$tmp/ca.crt" --capath "$tmp/none"; }
query() {
    trusted "$tmp/$1" "$server$2" --header 'Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json' --config - <<EOF
header = "Authorization: Bearer $token"
EOF
}

# reach reports whether the last request reached the server $2, as $1-dns and $1-tcp.
reach() {
    why=${why#curl: (*) }
    case $curl:$why in
    [56]:* | 28:Resolving*)
        report error "$1-dns" "$why" "add ${2%:*} to DNS or to /etc/hosts"
        return 1
        ;;
    esac
    report ok "$1-dns" "${2%:*} has an address"
    case $curl in
    0 | 35 | 51 | 52 | 56 | 60 | 77 | 83) report ok "$1-tcp" "$2 accepts connections" ;;
    *)
        report error "$1-tcp" "$why" "start the server, or open the port in firewalls: curl -vk https://$2/readyz"
        return 1
        ;;
    esac
}

# tls reports $1-tls: whether the last request got an HTTP response over TLS from the server $2.
tls() {
    why=${why#curl: (*) }
    if [ "$curl" = 0 ]; then
        report ok "$1-tls" "the certificate of $2 is of the cluster CA"
        return
    fi
    if [ -n "$clock" ]; then
        remedy='if the line clock is ok, renew the certificate, else run: timedatectl set-ntp true'
    else
        case $curl:$why in
        *'subject name'* | 51:*) remedy="its certificate must name ${2%:*}" ;;
        60:* | 83:*) remedy="its certificate is not of the cluster CA: $2 is another server, or a man in the middle" ;;
        *) remedy="is $2 the right port, and does it serve HTTPS?" ;;
        esac
    fi
    report error "$1-tls" "$why" "$remedy"
    return 1
}

# check_clock compares the clock with the header Date of the response in headers.
check_clock() {
    there=$(tr -d '\r' <"$tmp/headers" | sed -n 's/^[Dd]ate: //p' | tail -n 1 | awk '{
        m = (index("JanFebMarAprMayJunJulAugSepOctNovDec", $3) + 2) / 3
        y = $4
        if (m < 3) { m += 12; y-- }
        split($5, t, ":")
        days = 365 * y + int(y / 4) - int(y / 100) + int(y / 400) + int((153 * m - 457) / 5) + $2 - 719469
        printf "%d", days * 86400 + t[1] * 3600 + t[2] * 60 + t[3]
    }')
    [ -n "$there" ] || return 0
    behind=$((there - $(date +%s)))
    [ "${behind#-}" -ge 300 ] || timely=yes
    off="${behind#-} s $([ "$behind" -gt 0 ] && echo behind || echo ahead of) the clock of $endpoint"
    if [ "${behind#-}" -ge 300 ]; then
        report error clock "the clock is $off" 'run: timedatectl set-ntp true'
    elif [ "${behind#-}" -gt 60 ]; then
        report warning clock "the clock is $off" 'run: timedatectl set-ntp true'
    else
        report ok clock "the clock is $off"
    fi
}

# check_proxy reports a proxy for requests to the server $1, or returns 1. Only curl knows what no_proxy covers: ranges since
# 7.86.
check_proxy() {
    curl -qsvm 1 -o /dev/null "https://$1" 2>&1 | grep -qiE 'env variable (https|all)_proxy' || return 1
    report warning proxy "https_proxy or all_proxy is set, and no_proxy does not have ${1%:*}" "run: export no_proxy=\"\${no_proxy:-\$NO_PROXY},${1%:*}\" && export NO_PROXY=\"\$no_proxy\""
}

# check_cluster reports everything about the cluster, until an error hides the rest.
check_cluster() {
    agree=
    if [ -n "${https_proxy-}${HTTPS_PROXY-}" ] && [ "${no_proxy:-${NO_PROXY-}}" != "${NO_PROXY:-${no_proxy-}}" ]; then
        report warning proxy 'no_proxy and NO_PROXY differ: curl prefers the first, kubeadm the second' "run: export NO_PROXY=\"\$no_proxy\""
    elif [ "${https_proxy:-${HTTPS_PROXY-}}" != "${HTTPS_PROXY:-${https_proxy-}}" ]; then
        report warning proxy 'https_proxy and HTTPS_PROXY differ: curl prefers the first, kubeadm the second' "run: export HTTPS_PROXY=\"\$https_proxy\""
    else
        agree=yes
        check_proxy "$endpoint" || report ok proxy "there is none for ${endpoint%:*}"
    fi
    fetch "$tmp/untrusted" "$cluster_info" --insecure || :
    reach endpoint "$endpoint" || return 0
    [ "$curl" = 0 ] || { tls endpoint "$endpoint" || return 0; }
    check_clock
    case $http in
    200) ;;
    401 | 403)
        report error cluster-info "$why" "run 'kubectl apply -f deploy/cluster-info-public.yaml', or 'kubejoin serve' with --advertise"
        return
        ;;
    *)
        report error cluster-info "$why" "run: curl -k 'https://$endpoint/readyz?verbose'"
        return
        ;;
    esac
    keep_pinned "$tmp/untrusted" || [ -n "$found" ] || {
        report error cluster-info 'the response contains no CA' "is $endpoint the cluster?"
        return
    }
    report ok cluster-info "$endpoint returns it"
    [ -s "$tmp/ca.crt" ] || {
#token         document='kubejoin token create --print-join-command --format script'
#machine         document="kubejoin machine print-join-command --endpoint $endpoint"
        report error pin "the CA of $endpoint has the pin$found, want $pins: it is another cluster or a man in the middle" "on the cluster, run: $document"
        return
    }
    report ok pin 'a CA in cluster-info has the pin of this script'
    trusted "$tmp/info" "$cluster_info" || [ "$curl" != 0 ] || {
        report error cluster-info "$why" 'run this again'
        return
    }
    tls endpoint "$endpoint" || return 0
    check_server
    check_ca_file
}

# check_server reports the API server that cluster-info names, and the token.
check_server() {
    server=$(field "$tmp/info" server)
    check_https "$server" || {
        report error cluster-info "it contains $why" 'on the cluster, run: kubejoin doctor'
        return
    }
    host=${server#https://}
    host=${host%%/*}
    case $host in
    *:*) ;;
    *) host=$host:443 ;;
    esac
    # kubeadm sends its next requests to this server.
    [ -z "$agree" ] || [ "${host%:*}" = "${endpoint%:*}" ] || check_proxy "$host" || :
    json_string "$tmp/info" kubeconfig >"$tmp/kubeconfig"
    signature=$(json_string "$tmp/info" "jws-kubeconfig-${token%%.*}")
    case $signature in
    '') signed=missing ;;
    "$(signature_of "$tmp/kubeconfig")") signed=yes ;;
    *) signed=no ;;
    esac
    query version /version || :
    if reach api "$host" && tls api "$host"; then
        check_token
    elif [ -n "$token" ]; then
        check_signature
    fi
}

# check_signature reports the signature of a token that exists, or may exist.
check_signature() {
    id=${token%%.*}
    case $signed in
    yes) report ok signature "cluster-info is signed with token $id" ;;
    no) report error signature "the signature of cluster-info by token $id is invalid" "on the cluster, run: kubejoin doctor" ;;
    *) report error signature "cluster-info has no signature by token $id: it does not sign yet, is spent, or lacks the usage signing" 'on the cluster, run: kubejoin token list -o wide' ;;
    esac
}

# check_token reports the token by the response of the API server, and what only a valid token can read.
check_token() {
    if [ -z "$token" ]; then
        for check in token signature node requests; do
            report unknown "$check" 'the machine gets its token when it joins' "on the cluster, run: kubejoin explain $node"
        done
        check_version
        return
    fi
    id=${token%%.*}
    create='on the cluster, run: kubejoin token create --print-join-command --format script'
    case $http:$signed in
    200:*)
        report ok token "the API server accepts token $id"
        check_signature
        ;;
    401:yes)
        report error token "the API server refuses token $id, which signs cluster-info: the token lacks the usage authentication, or the API server lacks --enable-bootstrap-token-auth" 'on the cluster, run: kubejoin doctor'
        check_signature
        return
        ;;
    401:no)
        report error token "the token $id has another secret on the cluster" "$create"
        return
        ;;
    401:*)
        report error token "token $id is unknown: it has expired, or was deleted" "$create"
        return
        ;;
    *)
        report unknown token "the API server returns HTTP $http" "run: curl -k https://$host/readyz"
        check_signature
        return
        ;;
    esac
    check_version
    check_node
    check_requests
}

# check_version compares the version of the kubelet, which check_programs found, and that of kubeadm with the API server.
check_version() {
    version=$(json_string "$tmp/version" gitVersion)
    api_minor=$(minor "$version")
    kubeadm_minor=$(minor "$(kubeadm version -o short 2>/dev/null)")
    if [ -z "$api_minor" ] || [ -z "$kubelet_minor$kubeadm_minor" ]; then
        report unknown version "not checked: kubelet '$kubelet_minor', kubeadm '$kubeadm_minor', API server '$version'" 'run: kubelet --version'
    elif [ "${kubelet_minor:-$api_minor}" -gt "$api_minor" ] || [ "${kubelet_minor:-$api_minor}" -lt $((api_minor - 3)) ]; then
        report error version "kubelet 1.$kubelet_minor does not work with an API server $version" "install kubelet 1.$api_minor"
    elif [ "${kubeadm_minor:-$api_minor}" -gt $((api_minor + 1)) ]; then
        report error version "kubeadm 1.$kubeadm_minor does not join a cluster of version $version" "install kubeadm 1.$api_minor"
    else
        report ok version "kubelet and kubeadm fit the API server $version"
    fi
}

# check_node reports whether a Node has the name of this machine.
check_node() {
    query node "/api/v1/nodes/$node" || :
    case $curl:$http in
    0:404) report ok node "no Node is named $node" ;;
    0:200)
        if grep -q "\"cells\":\[\"$node\",\"Ready" "$tmp/node"; then
            report error node "a Node $node exists and is Ready: another machine has the name, or this one has joined" 'choose another name with --node-name'
        else
            report warning node "a Node $node exists: only a token that replaces it can have the name" "if its machine is gone, on the cluster, run: kubejoin token create --replace-node $node"
        fi
        ;;
    *) report unknown node "the API server returns HTTP $http for Node $node" ;;
    esac
}

# check_requests reports the newest certificate request that the token made for the name of this machine.
check_requests() {
    csrs=/apis/certificates.k8s.io/v1/certificatesigningrequests
    query requests "$csrs?limit=500&includeObject=None" || {
        report unknown requests "the API server returns HTTP $http for certificate requests"
        return
    }
    newest=
    for request in $(tr '[' '\n' <"$tmp/requests" | sed -n '/"system:bootstrap:'"${token%%.*}"'"/s/^"\([a-z0-9.-]*\)",.*/\1/p' | tail -n 20); do
        trusted "$tmp/request" "$server$csrs/$request" --config - <<EOF || continue
header = "Authorization: Bearer $token"
EOF
        json_string "$tmp/request" request | base64 -d >"$tmp/request.pem" 2>/dev/null || continue
        case $(openssl req -in "$tmp/request.pem" -noout -subject -nameopt RFC2253 2>/dev/null), in
        *CN=system:node:"$node",*) ;;
        *) continue ;;
        esac
        made=$(json_string "$tmp/request" creationTimestamp)
        newest="$newest$made $request
"
        mv "$tmp/request" "$tmp/request.$request"
    done
    newest=$(printf '%s' "$newest" | sort | tail -n 1)
    request=${newest#* }
    if [ -z "$newest" ]; then
        report ok requests "none of $node by token ${token%%.*}"
        return
    fi
    # The message of a refusal follows its type.
    sed -n 's/.*"type":"Denied"/{/p; s/.*"type":"Failed"/{/p' "$tmp/request.$request" >"$tmp/refusal"
    if [ -s "$tmp/refusal" ]; then
        report error requests "the newest, $request, was refused: $(json_string "$tmp/refusal" reason): $(json_string "$tmp/refusal" message)" "on the cluster, run: kubejoin explain $node"
    elif [ -n "$(json_string "$tmp/request.$request" certificate)" ]; then
        report ok requests "the newest, $request, has its certificate"
    else
        report warning requests "the newest, $request, waits for approval or signature" "on the cluster, run: kubejoin explain --csr $request"
    fi
}

# check_ca_file compares the CA file on this machine with the pinned CAs.
check_ca_file() {
    if [ ! -e "$ca_file" ]; then
        report ok ca-file "there is no $ca_file"
        return
    fi
    pin=$(pin_of "$ca_file") || pin=none
    case " $pins " in
    *" $pin "*) report ok ca-file "$ca_file is of this cluster" ;;
    *) report error ca-file "$ca_file is of another cluster, with the pin $pin" 'move it away if no other cluster uses this machine' ;;
    esac
}

# check_programs reports missing programs, and settings of Linux that kubeadm and the kubelet check.
check_programs() {
    if [ "$(id -u)" = 0 ]; then
        report ok user root
    else
        report unknown user 'not root, so files of the kubelet may be hidden' 'run this as root'
    fi
    missing=
    for program in $programs $([ "$kubeadm" = no ] || echo kubeadm) kubelet; do
        command -v "$program" >/dev/null || missing="$missing $program"
    done
    if [ -z "$missing" ]; then
        report ok programs 'all that are necessary are installed'
    else
        report error programs "missing:$missing" 'install them'
    fi
    kubelet_minor=$(minor "$(kubelet --version 2>/dev/null)")
    if [ -e /sys/fs/cgroup/cgroup.controllers ] || [ "${kubelet_minor:-35}" -lt 35 ]; then
        report ok cgroup 'the kubelet works with it'
    else
        report error cgroup 'this machine has cgroup v1, which the kubelet refuses from 1.35 on' 'boot with systemd.unified_cgroup_hierarchy=1, or set failCgroupV1: false in the KubeletConfiguration'
    fi
    if [ -e /proc/swaps ] && [ "$(wc -l </proc/swaps)" -gt 1 ]; then
        report warning swap 'swap is on, and the kubelet does not start unless its configuration has failSwapOn: false' 'run: swapoff -a'
    else
        report ok swap off
    fi
    # kubeadm checks it if the endpoint is an IPv4 address.
    case $(cat /proc/sys/net/ipv4/ip_forward):$endpoint in
    1:*) report ok ip-forward on ;;
    *[!0-9.:]*) report warning ip-forward 'IPv4 forwarding is off, and most pod networks need it' 'run: sysctl -w net.ipv4.ip_forward=1' ;;
    *) report error ip-forward 'IPv4 forwarding is off' 'run: sysctl -w net.ipv4.ip_forward=1' ;;
    esac
    if [ "${#node}" -le 253 ] && printf '%s\n' "$node" | grep -Evx '(.*\.)?(localhost|localhost6|localdomain)' |
        grep -Eqx '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'; then
        report ok node-name "$node"
    else
        report error node-name "$node is not a name for a node" 'run: hostnamectl set-hostname NAME'
    fi
}

# check_runtime reports whether the container runtime answers a request of CRI, which is gRPC over HTTP/2.
check_runtime() {
    sockets=
    found=0
    for file in ${cri_socket:-/run/containerd/containerd.sock /run/crio/crio.sock /run/cri-dockerd.sock}; do
        file=${file#unix://}
        [ -S "$file" ] || continue
        sockets="$sockets $file"
        found=$((found + 1))
        socket=$file
    done
    if [ "$found" = 0 ]; then
        report error runtime "no container runtime has a socket ${cri_socket:-/run/containerd/containerd.sock, /run/crio/crio.sock or /run/cri-dockerd.sock}" 'run: systemctl enable --now containerd'
        return
    elif [ "$found" -gt 1 ]; then
        report error runtime "there are several:$sockets" 'choose one for kubeadm: -- --cri-socket unix://SOCKET'
        return
    fi
    code=0
    answer=$(printf '\000\000\000\000\000' | curl -q --silent --show-error --max-time 5 --unix-socket "$socket" --http2-prior-knowledge \
        --header 'Content-Type: application/grpc' --header 'TE: trailers' --data-binary @- --output /dev/null --dump-header - \
        http://localhost/runtime.v1.RuntimeService/Version 2>&1) || code=$?
    case $code:$answer in
    0:*'grpc-status: 12'*) report error runtime "$socket answers without CRI" "remove cri from disabled_plugins in /etc/containerd/config.toml, and run: systemctl restart containerd" ;;
    0:*'grpc-status: 0'*) report ok runtime "$socket answers" ;;
    [12]:*) report unknown runtime "this curl cannot ask $socket: $answer" "run: crictl --runtime-endpoint unix://$socket version" ;;
    *) report error runtime "$socket does not answer: $(printf '%s' "$answer" | tail -n 1)" 'run: systemctl restart containerd' ;;
    esac
}

# check_kubelet reports the ports of the kubelet and of a control plane, and the certificate of the kubelet.
check_kubelet() {
    taken=
    for port in 10250 $([ -z "$control_plane" ] || echo 6443 10257 10259 2379 2380); do
        cat "$root/proc/net/tcp" "$root/proc/net/tcp6" 2>/dev/null |
            awk -v port="$(printf ':%04X' "$port")" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }' &&
            taken="$taken $port"
    done
    if [ -z "$taken" ] || [ -e "$kubeconfig" ] || is_control_plane; then
        report ok ports 'those of the kubelet are free, or its own'
    else
        report error ports "in use:$taken" "run 'ss -ltnp' to find the program"
    fi
    expired=
    if openssl x509 -in "$current" -noout 2>/dev/null && ! openssl x509 -in "$current" -noout -checkend 0 >/dev/null; then
        expired=yes
#token         otherwise="on the cluster: kubejoin token create --replace-node $node"
#machine         otherwise='do what the line leftovers says, and run this script again'
        report error kubelet-certificate "$current has expired, so the kubelet cannot renew it" "run 'kubejoin rejoin', or $otherwise"
    else
        report ok kubelet-certificate 'it has not expired, or there is none'
    fi
}

# check_leftovers reports whether this machine has joined, or what an earlier join left. It offers a reset only if no
# kubelet can use this machine: none listens, or its certificate has expired by the clock of the endpoint too.
check_leftovers() {
    left=
    [ "$kubeadm" = no ] || for file in "$bootstrap" $([ -n "$control_plane" ] || echo "$ca_file"); do
        [ ! -e "$file" ] || left="$left $file"
    done
    reset="no kubelet can use this machine: run 'kubeadm reset -f', which deletes the files of Kubernetes and stops its pods"
    if is_control_plane; then
        report ok leftovers 'this machine is a control plane' 'nothing to do'
    elif [ -z "$unready" ]; then
        report ok leftovers "this machine has joined as Node $own of $server" 'nothing to do'
    elif [ -e "$kubeconfig" ]; then
        [ -n "$expired" ] && [ -n "$timely" ] || reset='run: journalctl -u kubelet'
        report error leftovers "$kubeconfig exists, but no Ready Node of this machine is seen: $unready" "$reset"
    elif [ -z "$left" ]; then
        report ok leftovers 'none of an earlier join'
    else
        case "$taken " in
        *' 10250 '*) reset='see the line ports' ;;
        esac
        report error leftovers "of an earlier join:$left" "$reset"
    fi
}

# diagnose prints the lines of all checks. It takes the flags for kubeadm, and returns the exit code of kubejoin doctor.
diagnose() {
    errors=0 warnings=0 unknown=0 reported=' ' timely=
    find_node "$@"
    able=yes
    for program in $programs; do
        command -v "$program" >/dev/null || able=
    done
    if [ -n "$able" ]; then
        make_tmp
        mkdir "$tmp/none"
        find_own
        [ -n "$unready" ] || {
            check_leftovers
            return
        }
    fi
    check_programs
    if [ -n "$able" ]; then
        check_kubelet
        check_runtime
        check_cluster
        check_leftovers
    fi
    skipped=
    for check in $checks; do
        case $reported in
        *" $check "*) ;;
        *)
            skipped="$skipped, $check"
            unknown=$((unknown + 1))
            ;;
        esac
    done
    [ -z "$skipped" ] || printf '%-8s %s: not checked, because of an error above\n' unknown "${skipped#, }"
    printf 'checks: %d, errors: %d, warnings: %d, not checked: %d\n' "$(printf '%s\n' "$checks" | wc -w)" "$errors" "$warnings" "$unknown"
    [ "$((errors + warnings))" = 0 ] || return 1
    [ "$unknown" = 0 ] || return 2
}

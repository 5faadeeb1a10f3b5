# prove_machine makes the key of this machine if it does not exist, and a self-signed certificate. curl proves the key with
# this certificate. prove_machine sets words to the fingerprint of the key. It uses ln, which never replaces a key. The
# configuration lifts the limit of 64 characters for CN, because node names may be longer.
prove_machine() {
    case $node in
    '' | [!a-z0-9]* | *[!a-z0-9.-]*) die 1 'the host name is not a valid node name: run: hostnamectl set-hostname NAME' ;;
    esac
    if [ ! -e "$key" ]; then
        dir=$(dirname "$key")
        (umask 022 && mkdir -p "$(dirname "$dir")") && mkdir -p "$dir" && new=$(mktemp "$key.XXXXXX") &&
            openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -pkeyopt ec_param_enc:named_curve -out "$new" 2>/dev/null &&
            { sync "$new" 2>/dev/null || sync; } && ln "$new" "$key" || :
        rm -f "$new"
    fi
    case $(ls -ldL "$key") in
    -???------*) ;;
    '') die 1 "--key: cannot write $key" ;;
    *) die 1 "--key: $key is not a file that only its owner can read: if nobody else has read it, run: chmod 600 $key" ;;
    esac
    cat >"$tmp/openssl" <<'CONFIG'
openssl_conf = all
[all]
stbl_section = names
[names]
CN = max:300
[req]
distinguished_name = names
CONFIG
    openssl req -new -x509 -key "$key" -keyform PEM -passin pass: -config "$tmp/openssl" -subj "/O=system:nodes/CN=system:node:$node" \
        -days 1 -out "$tmp/machine.crt" 2>"$tmp/error" && words=$(pin_of "$tmp/machine.crt") ||
        die 1 "--key: $key is not a private key in PEM without a passphrase, or is unreadable: give another file"
    words=$(awk -v hex="${words#*:}" '
        function bits(i) { return index("123456789abcdef", substr(hex, i, 1)) }
        function consonant(n) { return substr("bdfghjklmnprstvz", n + 1, 1) }
        function vowel(n) { return substr("aiou", n + 1, 1) }
        BEGIN {
            for (i = 1; i < 17; i += 4) {
                b = bits(i + 1)
                c = bits(i + 2)
                printf "%s", (i > 1 ? "-" : "") consonant(bits(i)) vowel(int(b / 4)) consonant(b % 4 * 4 + int(c / 4)) vowel(c % 4) consonant(bits(i + 3))
            }
        }')
    say "this machine is $node, the fingerprint of its key is $words"
}

# request_join gets a JoinConfiguration from kubejoin and writes it to join.yaml. It sets token, control_plane and taint from
# this file. After a failure, it retries until the time end. It sets renew, the time to get the next token, and lasts, a
# minute before the present token expires. Before the time lasts, request_join does not retry: it returns after a failure,
# and noted is the reason. Many machines may wait, so each pause takes at least 10 s.
request_join() {
    while :; do
        if fetch "$tmp/join" "https://$endpoint/v1/machine/$node/join" --data '' --header 'Content-Type:' \
            --cert "$tmp/machine.crt" --key "$key" --cacert "$tmp/ca.crt" --capath "$tmp/none"; then
            given=$(sed -n "s/^ *token: [\"']*\([a-z0-9]\{6\}\.[a-z0-9]\{16\}\)[\"']*\$/\1/p" "$tmp/join")
            [ -z "$given" ] || break
        fi
        now=$(seconds)
        case $curl:$http in
        0:200) why="$endpoint returns no token" ;;
        0:401)
            why=$(detail "$tmp/join")
            why=${why:-kubejoin knows no machine $node with this key: on the cluster, run: kubejoin machine add $node --key $words}
            ;;
        0:404) why="$endpoint does not let machines join with keys (HTTP 404)" ;;
        0:*)
            why=$(detail "$tmp/join")
            why=${why:-$endpoint returns HTTP $http}
            [ "$http" != 400 ] || [ "$now" -lt "$lasts" ] || die 1 "$endpoint refuses this machine: $why"
            ;;
        esac
        left=$((end - now))
        [ "$left" -gt 0 ] || [ "$now" -lt "$lasts" ] || die 4 "waited $timeout s for a token from $endpoint: $why$clock"
        if [ "$why" != "$noted" ] || [ "$now" -ge "$repeat" ]; then
            say "waiting: $why$clock"
            noted=$why
            repeat=$((now + 60))
        fi
        [ "${after:-0}" -ge 10 ] || after=10
        if [ "$now" -lt "$lasts" ]; then
            renew=$((now + after))
            return
        fi
        [ "$after" -le "$left" ] || after=$left
        sleep "$after"
    done
    mv "$tmp/join" "$tmp/join.yaml"
    token=$given
    noted=
    now=$(seconds)
    renew=$((now + 300))
    lasts=$((now + 840))
    control_plane=$(sed -n 's/^controlPlane:.*/yes/p' "$tmp/join.yaml")
    taint=
    if grep -q '^ *key: kubejoin.io/joining$' "$tmp/join.yaml"; then
        taint=kubejoin.io/joining:NoSchedule
        sed '/^nodeRegistration:/,$d' "$tmp/join.yaml" >"$tmp/join" && mv "$tmp/join" "$tmp/join.yaml"
    fi
    [ -z "$control_plane" ] || [ "$kubeadm" = yes ] || die 1 'a control plane node can only join with kubeadm: install it'
}

# detail prints the detail of the problem in the file $1.
detail() { sed -n 's/.*"detail":"\([^"]*\)".*/\1/p' "$1" 2>/dev/null | tr -cd ' -~'; }

# request_turn sends the request $1 for the turn to join as a control plane: POST takes or renews it, and DELETE gives it
# back. The token is in no argument.
request_turn() {
    fetch "$tmp/turn" "https://$turns/v1/controlplane/turn" --request "$1" --header 'Content-Type: application/json' \
        --data '{"node":"'"$node"'","id":"'"$turn"'","address":"'"$local_ip"'"}' --max-time 8 --cacert "$tmp/ca.crt" --capath "$tmp/none" --config - <<TOKEN
header = "Authorization: Bearer $token"
TOKEN
}

# take_turn waits until this machine may join as a control plane, because etcd accepts one new member at a time. A
# server that is not kubejoin has no turns, and that of the join command may be out of reach here. Then kubeadm itself
# waits for etcd.
take_turn() {
    turns={{QUOTED_TURNS}}
    find_node "$@"
    node=$(printf '%s' "$node" | tr -cd 'a-z0-9.-')
    turn=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    local_ip=$(printf '%s' "$address" | tr -cd '0-9a-fA-F.:') # at which the endpoint sees this machine
    begin=$(seconds)
    end=$((begin + timeout))
    logged=
    reached=
    [ "$turns" != "$endpoint" ] || reached=yes
    until request_turn POST; do
#machine         # kubejoin deletes the present token before it makes the next one. So the present token may be gone, even if the last
#machine         # request for a token failed.
#machine         if [ "$http" = 401 ] && [ -n "$noted" ]; then
#machine             lasts=0
#machine             request_join
#machine             continue
#machine         fi
        case $http in
        000)
            if [ -z "$reached" ] && [ "$(seconds)" -ge "$((begin + 30))" ]; then
                say "$turns is out of reach: $why: joining without a turn"
                turn=
                return
            fi
            ;;
        *) reached=yes ;;
        esac
        case $http in
        000) ;;
        409)
            end=$(($(seconds) + timeout)) # kubejoin is there, and others may take any time
            why=$(detail "$tmp/turn")
            ;;
        401 | 403 | 404)
            say "$turns has no turns of control planes (HTTP $http): joining without one"
            turn=
            return
            ;;
        *) why="it returns HTTP $http" ;;
        esac
        if [ "$(seconds)" -ge "$end" ]; then
            say "no turn to join from $turns in $timeout s: $why: joining without one"
            turn=
            return
        fi
        [ "$why" = "$logged" ] || say "waiting for the turn to join: $why"
        logged=$why
        # The joins of other members may take longer than the lifetime of a machine's token.
#machine         [ "$(seconds)" -lt "$renew" ] || request_join
        sleep 5
    done
    say 'it is the turn of this machine to join'
}

# renew_turn renews the turn while kubeadm runs, also if this script was killed.
renew_turn() {
    count=0
    while sleep 1 && kill -0 "$pid"; do
        count=$((count + 1))
        [ "$((count % 10))" != 0 ] || request_turn POST || : # the next renewal may succeed
    done
}

# give_back_turn ends the turn, or the waiting for it. If it fails, the turn expires.
give_back_turn() {
    [ -z "$renewal" ] || wait "$renewal" || : # a late renewal would take the turn again
    request_turn DELETE || :
}

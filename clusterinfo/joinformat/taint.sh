# with_taint prints the file of --add-config with the taint of joining in its nodeRegistration, which it adds if there is
# none. It fails if it cannot add the taint, or if the file would replace it by a flag of the kubelet.
with_taint() {
    awk -v taint="{key: ${taint%:*}, effect: ${taint#*:}}" -v key="${taint%:*}" '
        { sub(/\r$/, ""); line[NR] = $0 }
        function value(text) { sub(/^[^:]*:[ \t]*/, "", text); sub(/^#.*/, "", text); return text }
        function spaces(text) { match(text, /^ */); return RLENGTH }
        END {
            for (last = 1; last <= NR && (last == 1 || line[last] !~ /^---/); last++) {
                text = line[last]
                sub(/^ *#.*/, "", text)
                if (text ~ /register-with-taints/) exit 1
                if (index(text, key)) given = 1
                if (!at && text ~ /^"?nodeRegistration"?[ \t]*:/) at = last
            }
            if (line[1] ~ /^---/) at = given = 0
            if (given) taint = ""
            else if (!at) print "nodeRegistration: {taints: [" taint "]}"
            else if (value(line[at]) ~ /^[{]/) {
                if (line[at] ~ /taints/ || line[at] !~ /}/) exit 1
                sub(/[{]/, "{taints: [" taint "], ", line[at])
            } else if (value(line[at]) != "") exit 1
            else {
                depth = 0
                for (i = at + 1; i < last && line[i] !~ /^[^ #]/; i++) {
                    if (line[i] ~ /^ *(#.*)?$/) continue
                    if (!depth) depth = spaces(line[i])
                    if (empty && line[i] ~ /^ *- /) item = spaces(line[i])
                    if (empty = spaces(line[i]) == depth && line[i] ~ /^ *"?taints"?[ \t]*:/) found = i
                }
                if (!depth) depth = 2
                if (!found) line[at] = line[at] "\n" sprintf("%" depth "s", "") "taints: [" taint "]"
                else if (value(line[found]) ~ /^\[/) sub(/\[/, "[" taint ", ", line[found])
                else if (value(line[found]) != "") exit 1
                else line[found] = line[found] "\n" sprintf("%" (item ? item : depth) "s", "") "- " taint
            }
            for (i = 1; i <= NR; i++) print line[i]
        }' "${add_config:-/dev/null}"
}


# with_taint prints the file of --add-config with the taint of joining in its nodeRegistration, which it adds if there is
# none. It fails if it cannot add the taint, if the file names the taint, or if a flag of the kubelet would replace it.
with_taint() {
    awk -v taint="{key: ${taint%:*}, effect: ${taint#*:}}" -v key="${taint%:*}" '
        { sub(/\r$/, ""); line[NR] = $0 }
        function value(text) { sub(/^[^:]*:[ \t]*/, "", text); sub(/^#.*/, "", text); return text }
        function spaces(text) { match(text, /^ */); return RLENGTH }
        END {
            for (last = 1; last <= NR && (last == 1 || line[last] !~ /^---/); last++) {
                text = line[last]
                sub(/^[ \t]*#.*|[ \t]#[^"\047]*$/, "", text)
                if (text ~ /register-with-taints/ || index(text, key)) exit 1
                if (text !~ /nodeRegistration/) continue
                if (at || text !~ /^["\047]?nodeRegistration["\047]?[ \t]*:/) exit 1
                at = last
            }
            if (line[1] ~ /^---/) at = 0
            if (!at) print "nodeRegistration: {taints: [" taint "]}"
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
                    if (spaces(line[i]) == depth && line[i] ~ /^ *[?!&<]/) exit 1
                    if (empty = spaces(line[i]) == depth && line[i] ~ /^ *["\047]?taints["\047]?[ \t]*:/) found = i
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


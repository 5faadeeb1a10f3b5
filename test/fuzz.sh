#!/bin/sh
# fuzz.sh TIME runs each fuzz target for TIME (such as 20s), and stops at the first that fails.
# GO is the go command.
set -eu
cd "$(dirname "$0")/.."
time=$1
go=${GO:-go}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Before Go 1.27 a target is at times said to fail because its time is up, with no input that fails
# (https://go.dev/issue/75804): these words are then all that is said. An input that fails is
# reported with its file, whatever its words. This goes when go.mod asks for Go 1.27.
only_time_is_up() {
  test "$(sed -n '/^--- FAIL: /,/^FAIL$/p' "$dir/output" | sed '1d;$d')" = '    context deadline exceeded'
}

for file in $(git grep -l '^func Fuzz' -- '*_test.go'); do
  for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$file"); do
    echo "== $file $target"
    { $go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x "./$(dirname "$file")" 2>&1 &&
      touch "$dir/passed"; } | tee "$dir/output"
    if test -e "$dir/passed"; then
      rm "$dir/passed"
    elif only_time_is_up; then
      echo "== no input of $target fails: its time is up (https://go.dev/issue/75804)"
    else
      exit 1
    fi
  done
done

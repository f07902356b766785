#!/bin/sh
# Each program in README.md (a ```c block with a main in it) compiles as C11 without a warning.
set -eu
CC=${CC:-cc}
if [ ! -f README.md ]; then
    echo "SKIP: readme: there is no README.md"
    exit 0
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$dir"' EXIT
awk -v dir="$dir" '
    /^```c$/ { inside = 1; text = ""; next }
    /^```/ {
        if (inside && text ~ /(^|\n)int main\(/) printf "%s", text > (dir "/" ++count ".c")
        inside = 0
        next
    }
    inside { text = text $0 "\n" }' README.md
count=0
for program in "$dir"/*.c; do
    [ -f "$program" ] || continue
    if ! $CC -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$program"; then
        echo "FAIL readme: program ${program##*/} does not compile"
        exit 1
    fi
    count=$((count + 1))
done
if [ $count -eq 0 ]; then
    echo "SKIP: readme: no program in README.md"
else
    echo "ok readme ($count programs)"
fi

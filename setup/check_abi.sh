#!/bin/sh
# What programs were compiled with stays where it is: offsets and sizes of fields, sizes of structs that cannot grow,
# numbers of enums, against tests/abi/layout.txt. What is new lies behind the end that structs had, not in the
# padding there, where older callers have anything; --write adds it.
set -eu
CC=${CC:-cc}
list=tests/abi/layout.txt
folder=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$folder"' EXIT

# layout FOLDER OUT: that of the headers in FOLDER.
layout() {
    awk -f setup/layout.awk "$1"/memtrain/*.h >"$folder/layout.c"
    $CC -I"$1" -o "$folder/layout" "$folder/layout.c"
    "$folder/layout" >"$2"
}

printf 'int lp64[sizeof(void *) == 8 && sizeof(long) == 8 ? 1 : -1];\n' >"$folder/lp64.c"
if ! $CC -c -o "$folder/lp64.o" "$folder/lp64.c" 2>/dev/null; then
    echo "SKIP: abi: $list is for 64-bit pointers and longs"
    exit 0
fi
layout include "$folder/now"
if [ "${1:-}" = --write ]; then
    cp "$folder/now" "$list"
    echo "$list: $(wc -l <"$list" | tr -d ' ') fields and numbers"
    exit 0
fi

# lost LIST: what is in it, and not as it is now. Where a struct ends may change.
lost() { grep -v ':' "$1" | grep -vxF -f "$folder/now" | cut -d ' ' -f 1 | tr '\n' ' ' || true; }

# padded LIST: new fields before the end that their struct has in it.
padded() {
    awk 'NR == FNR { known[$1] = 1; end[$1] = $2; next }
        $1 ~ /[.]/ && !($1 in known) {
            of = $1
            sub(/[.].*/, ":", of)
            if (of in end && $2 < end[of]) printf "%s ", $1
        }' "$1" "$folder/now"
}

failed=0
new=$(grep -cvxF -f "$list" "$folder/now" || true)
if [ -n "$(lost "$list")" ]; then
    echo "FAIL abi: not as programs were compiled with ($list): $(lost "$list")"
    failed=1
elif [ -n "$(padded "$list")" ]; then
    echo "FAIL abi: new fields where structs of older callers have padding: $(padded "$list")"
    failed=1
else
    echo "ok abi ($(wc -l <"$list" | tr -d ' ') fields and numbers as they were, $new new)"
fi

# Of the headers that older programs had; the size of a plan was another one then.
layout tests/abi/first "$folder/all"
grep '[.A-Z]' "$folder/all" >"$folder/first"
if [ -n "$(lost "$folder/first")" ]; then
    echo "FAIL abi first: not as in tests/abi/first: $(lost "$folder/first")"
    failed=1
else
    echo "ok abi first ($(wc -l <"$folder/first" | tr -d ' ') fields and numbers as they were)"
fi
exit $failed

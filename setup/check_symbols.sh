#!/bin/sh
# Compares what the shared libraries export with the lists in tests/symbols; --write writes them.
set -eu
LIB=${LIB:-build/lib}
lists=tests/symbols
failed=0

# exported FILE: the names without their version, one a line.
exported() {
    case $1 in
    *.dylib) nm -gU "$1" | awk 'NF == 3 { sub(/^_/, "", $3); print $3 }' ;;
    *) nm -D --defined-only "$1" | awk 'NF == 3 && $2 != "A" { sub(/@.*/, "", $3); print $3 }' ;;
    esac | LC_ALL=C sort
}

for name in libmemtrain libmemtrain_memory libmemtrain_torch; do
    list=$lists/$name.txt
    for file in "$LIB/$name.so" "$LIB/$name.dylib"; do
        [ ! -e "$file" ] || break
    done
    if [ ! -e "$file" ]; then
        echo "SKIP: symbols $name: the library is not built"
    elif [ "${1:-}" = --write ]; then
        mkdir -p "$lists"
        exported "$file" >"$list"
        echo "$list: $(wc -l <"$list" | tr -d ' ') symbols"
    elif [ ! -f "$list" ]; then
        echo "FAIL symbols $name: no $list (make symbols writes it)"
        failed=1
    elif exported "$file" | diff "$list" - >&2; then
        echo "ok symbols $name ($(wc -l <"$list" | tr -d ' ') exported)"
    else
        echo "FAIL symbols $name: not those in $list (make symbols writes it anew)"
        failed=1
    fi
done
exit $failed

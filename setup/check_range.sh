#!/bin/sh
# What is called supported is what `make check-versions` tries: every minor version of libtorch in the range has its
# files in the tables of each system, and the sources and the pages name that range.
set -eu
failed=0

verdict() {
    if [ "$2" = "$3" ]; then
        echo "ok range $1"
    else
        echo "FAIL range $1: it has '$2', setup/libtorch.sh '$3'"
        failed=1
    fi
}

set -- $(sed -n 's/^oldest=\([0-9]*\) newest=\([0-9]*\).*/\1 \2/p' setup/libtorch.sh)
oldest=$1 newest=$2
minors=$(awk -v first="$oldest" -v last="$newest" 'BEGIN { for (i = first; i <= last; i++) print "2." i }')

for file in setup/libtorch-*.txt; do
    system=${file#setup/libtorch-}
    found=$(cat "$file" "setup/versions-$system" |
        sed -n 's/.*torch==\([0-9]*\.[0-9]*\)\.[0-9]* --hash=sha256:[0-9a-f]\{64\}$/\1/p' | sort -t . -k 2,2n)
    verdict "${system%.txt}" "$(echo $found)" "$(echo $minors)"
done

for file in README.md docs/building.md shim/compat.hpp; do
    found=$(sed -n 's/.*libtorch \(2\.[0-9]* to 2\.[0-9]*\).*/\1/p' "$file" | sort -u)
    verdict "$file" "$(echo $found)" "2.$oldest to 2.$newest"
done
found=$(sed -n 's/^#if .*MINOR < \([0-9]*\) || TORCH_VERSION_MINOR > \([0-9]*\)$/2.\1 to 2.\2/p' shim/compat.hpp)
verdict "the compiler's" "$found" "2.$oldest to 2.$newest"
exit $failed

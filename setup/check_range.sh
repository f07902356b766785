#!/bin/sh
# What is called supported is what `make check-versions` tries. The range stands in setup/libtorch.txt alone: each
# minor version in it has its files there for each system, and the pages name that range and the default.
set -eu
table=setup/libtorch.txt
failed=0

verdict() {
    if [ "$2" = "$3" ]; then
        echo "ok range $1"
    else
        echo "FAIL range $1: it has '$2', $table '$3'"
        failed=1
    fi
}

# rows PATTERN: the minor versions of those rows, each once.
rows() { echo $(sed -n "s/^\(2\.[0-9]*\) $1\$/\1/p" $table | uniq); }

set -- $(rows '.*')
oldest=$1
shift $(($# - 1))
newest=$1
minors=$(echo $(awk -v first="${oldest#2.}" -v last="${newest#2.}" 'BEGIN { for (i = first; i <= last; i++) print "2." i }'))

for system in linux-x86_64 linux-aarch64 macos-arm64; do
    verdict "$system" "$(rows "$system torch==[0-9.]* --hash=sha256:[0-9a-f]\{64\}")" "$minors"
    verdict "sizes for $system" "$(rows "$system size [0-9]* [0-9]*")" "$minors"
done

default=$(sed -n 's/^default //p' $table)
full=$(sed -n "s/^$default linux-x86_64 torch==\([0-9.]*\) .*/\1/p" $table)
for file in README.md docs/building.md; do
    found=$(sed -n 's/.*libtorch \(2\.[0-9]* to 2\.[0-9]*\).*/\1/p' "$file" | sort -u)
    verdict "$file" "$(echo $found)" "$oldest to $newest"
    found=$(sed -n 's/.*fetched by default: \(2\.[0-9.]*[0-9]\).*/\1/p' "$file")
    verdict "the default in $file" "$found" "$full"
done

# What setup says to a libtorch of the version 2.MINOR, which is an empty one.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
answer() {
    mkdir -p "$made/include/ATen" "$made/include/torch/headeronly" "$made/lib"
    : >"$made/lib/libtorch_cpu.so"
    : >"$made/lib/libtorch_cpu.dylib"
    printf '#define TORCH_VERSION_%s\n' "MAJOR 2" "MINOR $1" "PATCH 0" >"$made/include/torch/headeronly/version.h"
    LIBTORCH=$made sh setup/libtorch.sh "$made/libtorch.mk" 2>&1 | sed "s|$made|DIR|g"
}
for minor in "${oldest#2.}" "${newest#2.}"; do
    verdict "2.$minor is accepted" "$(answer "$minor")" "setup: libtorch 2.$minor.0 in DIR/lib (LIBTORCH)"
done
for minor in $((${oldest#2.} - 1)) $((${newest#2.} + 1)); do
    verdict "2.$minor is refused" "$(answer "$minor")" \
        "setup: LIBTORCH=DIR has version 2.$minor.0; supported are $oldest to $newest"
done
exit $failed

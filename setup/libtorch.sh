#!/bin/sh
# Finds libtorch, or fetches it, and writes what the Makefile must know: sh setup/libtorch.sh OUT.mk
#
# Looked for in this order; the first with a supported version is taken:
#   1. LIBTORCH=DIR    a folder with include/ and lib/, or one that has such a folder torch/
#   2. the package torch of PYTHON (default python3)
#   3. the system's: /usr, /usr/local, /opt/libtorch, /opt/homebrew
#   4. build/libtorch, which setup/fetch.sh fills
# C++ standard: 17; 20 from 2.13 on. All versions in the range use the new string ABI of libstdc++.
set -eu
out=$1
# The range: from the first version in the table to the last.
minors=$(sed -n 's/^2\.\([0-9]*\) .*/\1/p' setup/libtorch.txt)
oldest=$(echo "$minors" | head -n 1) newest=$(echo "$minors" | tail -n 1)
PYTHON=${PYTHON:-python3}
case $(uname -s) in
Darwin) suffix=dylib ;;
*) suffix=so ;;
esac
multiarch=$(${CC:-cc} -print-multiarch 2>/dev/null || true)

say() { echo "setup: $*"; }
stop() {
    echo "setup: $*" >&2
    exit 1
}

# probe DIR: sets include, lib and version (empty when DIR is no libtorch).
probe() {
    include='' lib='' version='' version_file=''
    for dir in "$1" "$1/torch"; do
        [ -d "$dir/include/ATen" ] || continue
        for sub in lib lib64 "lib/$multiarch"; do
            [ -e "$dir/$sub/libtorch_cpu.$suffix" ] || continue
            include=$(cd "$dir/include" && pwd)
            lib=$(cd "$dir/$sub" && pwd)
            break 2
        done
    done
    [ -n "$lib" ] || return 0
    for file in torch/headeronly/version.h torch/csrc/api/include/torch/version.h; do
        major=$(number MAJOR "$include/$file")
        if [ -n "$major" ]; then
            version_file=$include/$file
            minor=$(number MINOR "$version_file")
            version=$major.$minor.$(number PATCH "$version_file")
            return 0
        fi
    done
}

number() {
    [ -r "$2" ] || return 0
    sed -n "s/^#define TORCH_VERSION_$1  *\\([0-9][0-9]*\\).*/\\1/p" "$2" | head -n 1
}

supported() { [ "$major" = 2 ] && [ "$minor" -ge $oldest ] && [ "$minor" -le $newest ]; }
range="2.$oldest to 2.$newest"

# try DIR WORDS: takes DIR if it will do, else says why not.
try() {
    probe "$1"
    [ -n "$lib" ] || return 1
    if [ -z "$version" ]; then
        say "$2: $lib is passed over: its headers tell no version"
    elif ! supported; then
        say "$2: $lib is passed over: version $version, supported are $range"
    else
        source=$2
        return 0
    fi
    return 1
}

python_torch() {
    command -v "$PYTHON" >/dev/null 2>&1 || return 0
    # Asks where the package is without importing it, which takes seconds.
    "$PYTHON" -c '
import importlib.util
spec = importlib.util.find_spec("torch")
if spec and spec.submodule_search_locations:
    print(list(spec.submodule_search_locations)[0])
' 2>/dev/null || true
}

find_libtorch() {
    if [ -n "${LIBTORCH:-}" ]; then
        [ -d "$LIBTORCH" ] || stop "LIBTORCH=$LIBTORCH is not a folder"
        probe "$LIBTORCH"
        [ -n "$lib" ] ||
            stop "LIBTORCH=$LIBTORCH: no include/ATen and lib/libtorch_cpu.$suffix there or in torch/"
        [ -n "$version" ] || stop "LIBTORCH=$LIBTORCH: its headers tell no version"
        supported || stop "LIBTORCH=$LIBTORCH has version $version; supported are $range"
        source=LIBTORCH
        return 0
    fi
    dir=$(python_torch)
    if [ -n "$dir" ] && try "$dir" "torch of $PYTHON"; then
        return 0
    fi
    for dir in /usr /usr/local /opt/libtorch /opt/homebrew; do
        try "$dir" "system" && return 0
    done
    sh setup/fetch.sh build/libtorch || exit 1
    try build/libtorch "fetched" || stop "build/libtorch is damaged: remove it and run make again"
}

find_libtorch
case $include$lib in
*[[:space:]]*) stop "the path of libtorch has a blank in it, which make cannot handle: $lib" ;;
esac

standard=c++17
[ "$minor" -lt 13 ] || standard=c++20

# The compiler's own folders must not be named again: that would change their order.
includes=$include/torch/csrc/api/include
case $include in
/usr/include | /usr/local/include) ;;
*) includes="$include $includes" ;;
esac

mkdir -p "$(dirname "$out")"
cat >"$out.new" <<MK
# Written by setup/libtorch.sh.
TORCH_VERSION := $version
TORCH_VERSION_FILE := $version_file
TORCH_INCLUDE := $includes
TORCH_LIB := $lib
TORCH_STD := $standard
TORCH_SOURCE := $source
MK
mv "$out.new" "$out"
say "libtorch $version in $lib ($source)"

#!/bin/sh
# The core is small and links the C library and libm alone, and libmemtrain_memory and the example without libtorch
# nothing but these and the core; the shim links neither libtorch.so nor CUDA, and the example in C neither libtorch
# nor C++.
set -eu
LIB=${LIB:-build/lib}
failed=0

# needed FILE: the libraries it asks for.
needed() {
    case $(uname -s) in
    Darwin) otool -L "$1" | awk 'NR > 1 { print $1 }' ;;
    *) readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' ;;
    esac
}

# built NAME: sets file, that of a library or of a program beside the libraries, or says that there is none.
built() {
    for file in "$LIB/$1.so" "$LIB/$1.dylib" "$LIB/../examples/$1"; do
        [ ! -e "$file" ] || return 0
    done
    echo "SKIP: links $1: it is not built"
    return 1
}

# judge NAME PATTERN WANT: the lines of needed that match (WANT=none) or do not (WANT=only).
judge() {
    built "$1" || return 0
    if [ "$3" = only ]; then
        bad=$(needed "$file" | grep -vE "$2" || true)
    else
        bad=$(needed "$file" | grep -E "$2" || true)
    fi
    if [ -n "$bad" ]; then
        echo "FAIL links $1: needs" $bad
        failed=1
    else
        echo "ok links $1"
    fi
}

# weigh NAME BYTES: at most so many without symbols and debug information.
weigh() {
    built "$1" || return 0
    flags=$(echo ${OTHER_FLAGS:-})
    if [ "$(uname -sm):$flags" != "Linux x86_64:" ]; then
        echo "SKIP: links size $1: the limit is for x86-64 Linux and the flags by default, here $(uname -sm) $flags"
        return 0
    fi
    stripped=$(mktemp "${TMPDIR:-/tmp}/memtrain.XXXXXX")
    strip -o "$stripped" "$file"
    size=$(wc -c <"$stripped" | tr -d ' ')
    rm -f "$stripped"
    if [ "$size" -le "$2" ]; then
        echo "ok links size $1 ($size bytes stripped, at most $2)"
    else
        echo "FAIL links size $1: $size bytes stripped, at most $2"
        failed=1
    fi
}

# The dynamic linker is named where there are thread-local variables; otool names the library itself.
core='^(libc\.|libm\.|ld-|libc\.musl|ld-musl|/usr/lib/libSystem|@rpath/libmemtrain\.)'
judge libmemtrain "$core" only
judge libmemtrain_memory "$core|^libmemtrain\." only
judge plain_c "$core|^libmemtrain\." only
judge memtrain-report "$core|(^|/)libjansson" only
judge libmemtrain_torch '(^|/)(libtorch\.|libtorch_cuda|libc10_cuda|libcuda)' none
# With a C++ runtime of its own it would see none of its caller's exceptions (mt_torch_exception).
if built libmemtrain_torch; then
    if needed "$file" | grep -qE '(^|/)(libstdc\+\+|libc\+\+)'; then
        echo "ok links libmemtrain_torch: the C++ runtime is shared"
    else
        echo "FAIL links libmemtrain_torch: has a C++ runtime of its own; accepted: the shared one, without -static-libstdc++"
        failed=1
    fi
fi
judge conv '(^|/)(libtorch|libc10|libstdc\+\+|libc\+\+)' none
# What it promises to those who link it (docs/packaging.md).
weigh libmemtrain 114688
exit $failed

#!/bin/sh
# The core links the C library and libm alone, and the example without libtorch nothing but these and
# the core; the shim links neither libtorch.so nor CUDA.
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

# judge NAME PATTERN WANT: the lines of needed that match (WANT=none) or do not (WANT=only). NAME is a
# library, or a program beside the libraries.
judge() {
    for file in "$LIB/$1.so" "$LIB/$1.dylib" "$LIB/../examples/$1"; do
        [ ! -e "$file" ] || break
    done
    if [ ! -e "$file" ]; then
        echo "SKIP: links $1: it is not built"
        return 0
    fi
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

# The dynamic linker is named where there are thread-local variables; otool names the library itself.
core='^(libc\.|libm\.|ld-|libc\.musl|ld-musl|/usr/lib/libSystem|@rpath/libmemtrain\.)'
judge libmemtrain "$core" only
judge plain_c "$core|^libmemtrain\." only
judge libmemtrain_torch '(^|/)(libtorch\.|libtorch_cuda|libc10_cuda|libcuda)' none
exit $failed

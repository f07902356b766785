#!/bin/sh
# Compiles each public header alone: the C headers as C99, C11, C++98 and C++17, the C++ header with
# libtorch's headers. Uses CC, CXX and TORCH_FLAGS.
set -eu
CC=${CC:-cc} CXX=${CXX:-c++}
failed=0

# compiles HEADER COMPILER...: whether a file that includes HEADER and nothing else compiles.
compiles() {
    header=$1
    shift
    printf '#include <memtrain/%s>\ntypedef int mt_alone;\n' "$header" |
        "$@" -Wall -Wextra -Werror -fsyntax-only -Iinclude -
}

for path in include/memtrain/*; do
    header=${path##*/}
    bad=
    case $header in
    *.h)
        for standard in c99 c11; do
            compiles "$header" $CC -std=$standard -pedantic -Wstrict-prototypes -x c ||
                bad="$bad $standard"
        done
        for standard in c++98 c++17; do
            compiles "$header" $CXX -std=$standard -pedantic -x c++ || bad="$bad $standard"
        done
        tried="C99, C11, C++98, C++17"
        ;;
    *.hpp)
        [ -n "${TORCH_FLAGS:-}" ] || {
            echo "SKIP: header $header: no libtorch"
            continue
        }
        compiles "$header" $CXX $TORCH_FLAGS -x c++ || bad="$bad libtorch"
        tried="C++ with libtorch"
        ;;
    *) continue ;;
    esac
    if [ -n "$bad" ]; then
        echo "FAIL header $header: does not compile alone as:$bad"
        failed=1
    else
        echo "ok header $header ($tried)"
    fi
done
exit $failed

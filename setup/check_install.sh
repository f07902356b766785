#!/bin/sh
# Installs into temporary folders, builds and runs the programs of tests/install against what lies there
# alone, uninstalls, and looks for what is left: sh setup/check_install.sh [core [torch]]
#
# Without arguments the core, as in make check. Expects what is installed to be built.
# Prints "ok install NAME", "FAIL install NAME: why" or "SKIP: install NAME: why". Uses MAKE, CC, CXX,
# SOVERSION, TORCH_STD and TORCH_LIB as make sets them.
set -eu
cd "$(dirname "$0")/.."
parts=${*:-core}
MAKE=${MAKE:-make} CC=${CC:-cc} CXX=${CXX:-c++}
unset LD_LIBRARY_PATH DYLD_LIBRARY_PATH PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR DESTDIR || :
dir=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
failed=0

ok() { echo "ok install $*"; }
skip() { echo "SKIP: install $1: $2"; }
fail() {
    echo "FAIL install $1: $2"
    failed=1
}

# attempt NAME COMMAND...: shows what the command printed where it fails.
attempt() {
    name=$1
    shift
    if "$@" >"$dir/log" 2>&1; then
        ok "$name"
    else
        cat "$dir/log" >&2
        fail "$name" "exit status of: $*"
    fi
}

# The order is that of the layout: DESTDIR, PREFIX, LIBDIR, INCLUDEDIR.
installing() {
    goal=$1
    shift
    $MAKE --no-print-directory "$goal" DESTDIR="$1" PREFIX="$2" LIBDIR="$3" INCLUDEDIR="$4" >"$dir/log" 2>&1 || {
        cat "$dir/log" >&2
        fail "$goal" "make $goal fails"
        exit 1
    }
}

# files ROOT: all that is no folder.
files() { find "$1" -type f -o -type l | sort; }

# A staged tree as a packager makes it, which is used where it lies: it was moved, in effect.
stage=$dir/stage prefix=/opt/memtrain
root=$stage$prefix
# A tree in its place, with folders of other names.
own=$dir/own lib=$dir/own/lib64/abi include=$dir/own/headers

case $parts in
*torch*) goal=install ;;
*) goal=install-core ;;
esac

# Files of the user's in the folders that are written to.
theirs="include/memtrain/theirs.h lib/libmemtrain-theirs.so lib/libmemtrain.so.9 lib/pkgconfig/theirs.pc
    lib/cmake/memtrain/theirs.cmake"
for file in $theirs; do
    mkdir -p "$root/$(dirname "$file")"
    : >"$root/$file"
done
# An odd umask must not show in what is installed.
(umask 077 && installing $goal "$stage" $prefix $prefix/lib $prefix/include) || exit 1
(umask 002 && installing install-core "" "$own" "$lib" "$include") || exit 1

# ---- what was written ------------------------------------------------------------------------

check_modes() {
    bad=$(find "$own" -type d ! -perm 755 -o -type f -name '*.so.*' ! -perm 755 \
        -o -type f -path '*/bin/*' ! -perm 755 \
        -o -type f ! -name '*.so.*' ! -name '*.dylib' ! -path '*/bin/*' ! -perm 644)
    bad=$bad$(find "$root" -newer "$root/lib/pkgconfig/theirs.pc" -type f ! -perm 755 ! -perm 644)
    if [ -z "$bad" ]; then ok modes; else fail modes "$bad"; fi
}

# Nothing tells of the folder in which a packager has put it together.
check_texts() {
    bad=$(grep -l "$stage\|@[A-Z]*@" "$root"/lib/pkgconfig/*.pc "$root"/lib/cmake/memtrain/*.cmake || :)
    if [ -z "$bad" ]; then ok texts; else fail texts "the stage, or what was not filled in: $bad"; fi
}

check_soname() {
    [ "$(uname -s)" != Darwin ] || return 0
    for file in "$root"/lib/libmemtrain*.so; do
        [ -s "$file" ] || continue
        name=$(basename "$file" .so)
        soname=$(readelf -d "$file" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')
        if [ "$soname" != "$name.so.$SOVERSION" ]; then
            fail "soname $name" "$soname instead of $name.so.$SOVERSION"
        elif [ ! -e "$root/lib/$soname" ]; then
            fail "soname $name" "nothing is called $soname"
        elif nm -D --defined-only "$file" | grep ' mt__' | grep -qv '@@MEMTRAIN_.*_PRIVATE$'; then
            fail "soname $name" "not all symbols of the inside have a version of their own"
        elif nm -D --defined-only "$file" | grep ' mt_[^_]' | grep -qv "@@MEMTRAIN_$SOVERSION\$"; then
            fail "soname $name" "not all symbols have the version MEMTRAIN_$SOVERSION"
        else
            ok "soname $name"
        fi
    done
}

# ---- programs by pkg-config ------------------------------------------------------------------

# flags [OPTION...] PACKAGE: of the staged tree, whose prefix is told to pkg-config.
flags() {
    PKG_CONFIG_PATH=$root/lib/pkgconfig pkg-config --define-variable=prefix="$root" --cflags --libs "$@"
}

# People copy these programs, so they have no warnings.
strict="-Wall -Wextra -Werror"

# builds OUTPUT COMMAND...: compiles, links, and runs what came out.
builds() {
    output=$1
    shift
    "$@" -o "$output" && "$output"
}

check_core() {
    attempt core builds "$dir/line" $CC -std=c11 $strict tests/install/core/main.c $(flags memtrain) "-Wl,-rpath,$root/lib"
    attempt "core in other folders" builds "$dir/line_own" $CC tests/install/core/main.c \
        $(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs memtrain) "-Wl,-rpath,$lib"
    attempt memory builds "$dir/card" $CC -std=c11 $strict tests/install/memory/card.c \
        $(flags memtrain-memory) "-Wl,-rpath,$root/lib"
}

# It has the core inside. Without jansson there is none.
check_report() {
    if ! pkg-config --exists jansson 2>/dev/null; then
        skip memtrain-report "jansson is not here"
    elif [ -f "$root/share/man/man1/memtrain-report.1" ]; then
        attempt memtrain-report "$root/bin/memtrain-report" --version
    else
        fail memtrain-report "it has no manual page"
    fi
}

# Libraries come after what needs them, so the flags come last.
check_static() {
    if ! echo 'int main(void) { return 0; }' | $CC -static -x c - -o "$dir/empty" 2>/dev/null; then
        skip "core static" "$CC -static links no empty program here"
        return 0
    fi
    attempt "core static" builds "$dir/line_static" $CC -static tests/install/core/main.c \
        $(flags --static memtrain)
    attempt "memory static" builds "$dir/card_static" $CC -static tests/install/memory/card.c \
        $(flags --static memtrain-memory)
}

check_torch() {
    attempt "torch in C" builds "$dir/device" $CC -std=c11 $strict tests/install/torch/device.c \
        $(flags memtrain-torch) "-Wl,-rpath,$root/lib"
    attempt "torch in C++" builds "$dir/net" $CXX "-std=$TORCH_STD" $strict tests/install/torch/net.cpp \
        $(flags memtrain-torch-cxx) "-Wl,-rpath,$root/lib" "-Wl,-rpath,$TORCH_LIB"
    sh setup/check_pages.sh --extract "$dir/snippets"
    installing install "" "$dir/home/.local" "$dir/home/.local/lib" "$dir/home/.local/include"
    attempt "docs/first-steps.md" build installed
}

# build NAME: runs the commands in build_NAME.sh of a page, at home.
build() { (cd "$dir/snippets" && HOME=$dir/home sh -eu "build_$1.sh"); }

check_pkg_config() {
    if ! command -v pkg-config >/dev/null 2>&1; then
        skip pkg-config "there is none"
        return 0
    fi
    check_core
    check_static
    case $parts in *torch*) check_torch ;; esac
}

# ---- programs by CMake -----------------------------------------------------------------------

# A tree of the usual names is found by its prefix, another one by the folder of the package.
by_prefix=-DCMAKE_PREFIX_PATH=$root
by_folder=-Dmemtrain_DIR=$lib/cmake/memtrain

# configures SOURCE BUILD [OPTION...]
configures() {
    source=$1 build=$2
    shift 2
    CC=$CC CXX=$CXX cmake -S "$source" -B "$build" "$@"
}

# project SOURCE BUILD WHERE PROGRAM...: configures, builds and runs. WHERE tells CMake of the tree.
project() {
    source=$1 build=$2 where=$3
    shift 3
    configures "$source" "$build" "$where" && cmake --build "$build" || return 1
    for program in "$@"; do
        "$build/$program" || return 1
    done
}

# refused NAME OPTION WORDS: who wants the shim is told why there is none. CMake breaks lines at blanks.
refused() {
    if configures tests/install/torch "$dir/refused $1" "$2" >"$dir/log" 2>&1; then
        fail "$1" "it finds a component that cannot be used"
    elif tr -s ' \n' '  ' <"$dir/log" | grep -q "$3"; then
        ok "$1"
    else
        cat "$dir/log" >&2
        fail "$1" "it does not say: $3"
    fi
}

# libtorch has gone from where it was, and is somewhere else.
check_moved_libtorch() {
    config=$root/lib/cmake/memtrain/memtrain-torch.cmake
    sed "s|$TORCH_LIB|/nonexistent|" "$config" >"$dir/moved.cmake"
    cp "$dir/moved.cmake" "$config"
    refused "cmake libtorch has gone" "$by_prefix" "set memtrain_LIBTORCH"
    libtorch=$(dirname "$TORCH_LIB")
    if [ -d "$libtorch/include/ATen" ] && [ "$libtorch/lib" = "$TORCH_LIB" ]; then
        attempt "cmake libtorch elsewhere" configures tests/install/torch "$dir/elsewhere" \
            "$by_prefix" -Dmemtrain_LIBTORCH="$libtorch"
    else
        skip "cmake libtorch elsewhere" "$TORCH_LIB has no include/ beside it"
    fi
}

check_cmake() {
    if ! command -v cmake >/dev/null 2>&1; then
        skip cmake "there is none"
        return 0
    fi
    attempt "cmake core" project tests/install/core "$dir/core" "$by_prefix" line line_static
    attempt "cmake memory" project tests/install/memory "$dir/memory" "$by_prefix" card card_static
    attempt "cmake core in other folders" project tests/install/core "$dir/core_own" "$by_folder" line
    attempt "cmake versions" cmake -DOUT="$dir" -P tests/install/versions.cmake
    # The project is in C and C++.
    if command -v "${CXX%% *}" >/dev/null 2>&1; then
        refused "cmake without torch" "$by_folder" "libmemtrain_torch is not installed"
    fi
    case $parts in
    *torch*)
        attempt "cmake torch" project tests/install/torch "$dir/torch" "$by_prefix" device net
        check_moved_libtorch
        ;;
    esac
}

# ---- and away again --------------------------------------------------------------------------

check_uninstall() {
    installing uninstall "$stage" $prefix $prefix/lib $prefix/include
    installing uninstall "" "$own" "$lib" "$include"
    left=$(files "$own"; find "$own" -depth -name memtrain; files "$root")
    wanted=$(for file in $theirs; do echo "$root/$file"; done | sort)
    if [ "$left" = "$wanted" ]; then
        ok uninstall
    else
        printf '%s\n' "$left" >&2
        fail uninstall "what is left is not what was there before"
    fi
}

check_modes
check_texts
check_soname
check_report
check_pkg_config
check_cmake
check_uninstall
exit $failed

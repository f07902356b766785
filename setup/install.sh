#!/bin/sh
# Installs below $DESTDIR: sh setup/install.sh core [memory] [torch]. --remove takes away what that writes.
#
# Both go by one list, packages() below, so that what is removed is what was written. The list needs
# nothing but the sources of the same version: no record of the installation is kept.
set -eu
umask 022

# checked NAME VALUE: the value with single slashes and without one at the end.
checked() {
    case $2 in
    *[[:space:]\"\'\\\|\&\$]* | [!/]* | '')
        echo "install: $1=$2: accepted is an absolute path without blanks, quotes, \\, |, & and \$" >&2
        exit 2
        ;;
    esac
    printf '%s\n' "$2" | sed -e 's|//*|/|g' -e 's|\(.\)/$|\1|'
}

PREFIX=$(checked PREFIX "$PREFIX")
LIBDIR=$(checked LIBDIR "$LIBDIR")
INCLUDEDIR=$(checked INCLUDEDIR "$INCLUDEDIR")
MANDIR=$(checked MANDIR "$MANDIR")
BINDIR=$(checked BINDIR "$BINDIR")
root=${DESTDIR:-}
standard=${TORCH_STD:-} standard=${standard#c++}
case $(uname -s) in
Darwin) suffix=dylib ;;
*) suffix=so ;;
esac

# so_file NAME, so_name NAME: the file itself, and what programs are linked to.
so_file() { [ $suffix = dylib ] && echo "$1.dylib" || echo "$1.so.$VERSION"; }
so_name() { [ $suffix = dylib ] && echo "@rpath/$1.dylib" || echo "$1.so.$SOVERSION"; }

# for_pc FOLDER: in terms of ${prefix} where it is below it, so that pkg-config can redefine that.
for_pc() {
    case $1 in
    "$PREFIX"/*) echo "\${prefix}${1#"$PREFIX"}" ;;
    *) echo "$1" ;;
    esac
}

# The include folder as seen from the folder of the libraries, where both are below PREFIX.
include_from_lib() {
    case $LIBDIR:$INCLUDEDIR in
    "$PREFIX"/*:"$PREFIX"/*)
        up=$(printf '%s\n' "${LIBDIR#"$PREFIX"/}" | sed 's|[^/][^/]*|..|g')
        echo "$up/${INCLUDEDIR#"$PREFIX"/}"
        ;;
    *) echo "$INCLUDEDIR" ;;
    esac
}

# filled TEMPLATE: on standard output.
filled() {
    sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@VERSION@|$VERSION|g" -e "s|@SOVERSION@|$SOVERSION|g" \
        -e "s|@PC_LIBDIR@|$(for_pc "$LIBDIR")|g" -e "s|@PC_INCLUDEDIR@|$(for_pc "$INCLUDEDIR")|g" \
        -e "s|@INCLUDE_FROM_LIB@|$(include_from_lib)|g" \
        -e "s|@CORE_FILE@|$(so_file libmemtrain)|g" -e "s|@CORE_NAME@|$(so_name libmemtrain)|g" \
        -e "s|@MEMORY_FILE@|$(so_file libmemtrain_memory)|g" -e "s|@MEMORY_NAME@|$(so_name libmemtrain_memory)|g" \
        -e "s|@SHIM_FILE@|$(so_file libmemtrain_torch)|g" \
        -e "s|@SHIM_NAME@|$(so_name libmemtrain_torch)|g" \
        -e "s|@TORCH_LIB@|${TORCH_LIB:-}|g" -e "s|@TORCH_INCLUDE@|${TORCH_INCLUDE:-}|g" \
        -e "s|@TORCH_ISYSTEM@|$(printf ' -isystem %s' ${TORCH_INCLUDE:-})|g" \
        -e "s|@TORCH_STANDARD@|$standard|g" -e "s|@SUFFIX@|$suffix|g" "$1"
}

# ---- what is installed: each of these writes one file, or removes it -----------------------------

# put MODE SOURCE FILE
put() {
    if [ "$remove" = 1 ]; then
        rm -f "$root$3"
    else
        mkdir -p "$root$(dirname "$3")"
        install -m "$1" "$2" "$root$3"
    fi
}

# fill TEMPLATE FOLDER
fill() {
    name=$(basename "$1" .in)
    if [ "$remove" = 0 ]; then filled "$1" >"$scratch/$name"; fi
    put 644 "$scratch/$name" "$2/$name"
}

# link TARGET FILE
link() {
    rm -f "$root$2"
    if [ "$remove" = 0 ]; then ln -s "$1" "$root$2"; fi
}

# shared NAME SOURCE: the library, and the names by which the loader and the linker ask for it.
shared() {
    put 755 "$2" "$LIBDIR/$(so_file "$1")"
    if [ $suffix = so ]; then
        link "$1.so.$VERSION" "$LIBDIR/$1.so.$SOVERSION"
        link "$1.so.$SOVERSION" "$LIBDIR/$1.so"
    fi
}

# headers_of core|memory|torch: those of libmemtrain_torch are its main one, its parts, and what includes them.
headers_of() {
    for header in include/memtrain/*; do
        part=core
        case ${header##*/} in
        arena.h | forecast.h | rehearsal.h | sim.h) part=memory ;;
        torch* | *.hpp) part=torch ;;
        *) grep -q '^#include <memtrain/torch' "$header" && part=torch ;;
        esac
        [ $part != "$1" ] || echo "$header"
    done
}

# headers core|memory|torch
headers() {
    for header in $(headers_of "$1"); do
        put 644 "$header" "$INCLUDEDIR/memtrain/${header##*/}"
    done
}

# pages HEADER...: of section 3.
pages() {
    for page in $(sh setup/man.sh --list "$@"); do
        put 644 "$scratch/man/man3/$page" "$MANDIR/man3/$page"
    done
}

# in_c PART LIBRARY PACKAGE: one of the libraries in C.
in_c() {
    headers "$1"
    pages $(headers_of "$1")
    shared "$2" "$LIB/$(so_file "$2")"
    put 644 "$LIB/$2.a" "$LIBDIR/$2.a"
    fill "setup/package/$3.pc.in" "$LIBDIR/pkgconfig"
}

core() {
    in_c core libmemtrain memtrain
    fill setup/package/memtrain-config.cmake.in "$LIBDIR/cmake/memtrain"
    fill setup/package/memtrain-config-version.cmake.in "$LIBDIR/cmake/memtrain"
    # What draws traces: there is none where jansson is not.
    if [ "$remove" = 1 ] || [ -n "$REPORT" ]; then
        put 755 "$REPORT" "$BINDIR/memtrain-report"
        put 644 "$scratch/man/man1/memtrain-report.1" "$MANDIR/man1/memtrain-report.1"
    else
        echo "install: without memtrain-report, since jansson was not found"
    fi
}

memory() {
    in_c memory libmemtrain_memory memtrain-memory
    fill setup/package/memtrain-memory.cmake.in "$LIBDIR/cmake/memtrain"
}

torch() {
    headers torch
    pages $(headers_of torch | grep '[.]h$')
    shared libmemtrain_torch "$SHIM"
    fill setup/package/memtrain-torch.pc.in "$LIBDIR/pkgconfig"
    fill setup/package/memtrain-torch-cxx.pc.in "$LIBDIR/pkgconfig"
    fill setup/package/memtrain-torch.cmake.in "$LIBDIR/cmake/memtrain"
}

scratch=
if [ "$1" = --remove ]; then
    remove=1
    core
    memory
    torch
    # Folders of ours, unless something else has been put into them.
    rmdir "$root$INCLUDEDIR/memtrain" "$root$LIBDIR/cmake/memtrain" 2>/dev/null || :
    exit 0
fi
remove=0
scratch=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
sh setup/man.sh "$scratch/man" $REPORT
for part in "$@"; do
    $part
    echo "  INSTALL  $root$LIBDIR ($part)"
done
case ${INSTALL_RPATH:-} in
"$PWD"/*)
    echo "install: libmemtrain_torch looks for libtorch in $INSTALL_RPATH, which make distclean" \
        "removes; INSTALL_RPATH=DIR names a lasting place"
    ;;
esac

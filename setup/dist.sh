#!/bin/sh
# Makes build/memtrain-VERSION.tar.gz from the last commit: names, order, times and modes come from git
# alone, so that the same commit gives the same bytes. --check makes it twice and tries what it holds.
set -eu
stop() {
    echo "dist: $*" >&2
    exit 2
}
[ -e .git ] && git rev-parse --verify --quiet HEAD >/dev/null ||
    stop "a tarball is made from a commit, and this folder is no git repository with one"

number() {
    git show HEAD:include/memtrain/status.h | sed -n "s/^#define MT_VERSION_$1 *\([0-9][0-9]*\).*/\1/p"
}
name=memtrain-$(number MAJOR).$(number MINOR).$(number PATCH)
tarball=build/$name.tar.gz

# pack FILE
pack() {
    git -c tar.umask=0022 -c core.autocrlf=false -c core.attributesFile=/dev/null \
        archive --format=tar --prefix="$name/" HEAD >"$1.tar"
    gzip -n -9 <"$1.tar" >"$1.new"
    rm -f "$1.tar"
    mv -f "$1.new" "$1"
}

mkdir -p build
pack "$tarball"
[ -z "$(git status --porcelain --untracked-files=no)" ] ||
    echo "dist: changes that are not committed are not in it" >&2
echo "  DIST  $tarball ($(wc -c <"$tarball" | tr -d ' ') bytes)"
[ "${1:-}" = --check ] || exit 0

dir=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
failed=0

# verdict NAME STATUS WHY
verdict() {
    if [ "$2" -eq 0 ]; then
        echo "ok dist $1"
    else
        echo "FAIL dist $1: $3"
        failed=1
    fi
}

(umask 077 && pack "$dir/again")
rc=0 && cmp -s "$tarball" "$dir/again" || rc=$?
verdict same $rc "made twice, it has two contents"

gzip -dc "$tarball" | tar -xf - -C "$dir"
(cd "$dir/$name" && find . -type f -o -type l) | sed 's|^\./||' | LC_ALL=C sort >"$dir/held"
git ls-tree -r --name-only HEAD | LC_ALL=C sort >"$dir/tracked"
rc=0 && diff "$dir/tracked" "$dir/held" >&2 || rc=$?
verdict files $rc "it does not hold what git has"

# LIBTORCH leads nowhere: whoever asked for libtorch would fail.
rc=0 && ${MAKE:-make} -C "$dir/$name" --no-print-directory BUILD=build LIBTORCH=/nonexistent \
    core >"$dir/log" 2>&1 || rc=$?
[ $rc -eq 0 ] || cat "$dir/log" >&2
verdict core $rc "make core fails in it"
[ $rc -eq 0 ] || exit 1
${MAKE:-make} -C "$dir/$name" --no-print-directory BUILD=build LIBTORCH=/nonexistent installcheck-core ||
    failed=1
exit $failed

#!/bin/sh
# Builds and runs the quick suites with each libtorch that is supported, one after the other, each in
# build/versions/MINOR: sh setup/check_versions.sh, from `make check-versions`.
#
# VERSIONS="core 2.9" chooses: "core" are the suites of the core, which does not see libtorch. A libtorch is
# fetched (WHEELS=DIR: taken from there), and removed again when its suites have run, unless KEEP is set; what
# was compiled stays. Prints "ok versions 2.9: ..." or "FAIL versions 2.9: why" for each.
set -eu
cd "$(dirname "$0")/.."
MAKE=${MAKE:-make} KEEP=${KEEP:-}
set -- ${MAKEFLAGS:-}
case ${1:-} in
-* | *=*) ;;
*n*) exit 0 ;; # make -n shows commands, and fetches nothing
esac
table=$(sh setup/fetch.sh --list)
known="core $(echo $(echo "$table" | sed 's/ .*//'))"
chosen=${VERSIONS:-$known}
failed=0 fetched=

for minor in $chosen; do
    case " $known " in
    *" $minor "*) ;;
    *)
        echo "check-versions: VERSIONS names $minor; accepted: $known" >&2
        exit 2
        ;;
    esac
done

# row MINOR: sets version, fetch_mb, keep_mb, and target, the folder that holds it or will.
row() {
    set -- "$1" $(echo "$table" | awk -v minor="$1" '$1 "" == minor { print $2, $3, $4 }')
    version=$2 fetch_mb=$3 keep_mb=$4
    target=build/libtorch
    [ -d "$target/torch-$version.dist-info" ] || target=build/versions/$1/libtorch
}

# Of what a log ends with: the checks that failed, or what the compiler said first.
why() {
    if grep -qE '^[0-9]+ passed, [0-9]+ failed' "$1"; then
        grep -E '^FAIL|:[FE]:[^:]*:[^:]*:[0-9]+:' "$1" | sort -u | sed 's/^/    /'
        echo "    $(grep -E '^[0-9]+ passed, ' "$1" | tail -n 1) ($1)"
    else
        grep -E 'error:|undefined reference|^setup:|\*\*\*' "$1" | head -n 5 | sed 's/^/    /'
        echo "    it is not built ($1)"
    fi
}

# run NAME LOG COMMAND...: the line of one version.
run() {
    name=$1 log=$2
    shift 2
    start=$(date +%s)
    if "$@" >>"$log" 2>&1; then
        echo "ok versions $name: $(tail -n 1 "$log"), $(($(date +%s) - start)) s"
    else
        echo "FAIL versions $name:"
        why "$log"
        failed=1
    fi
}

with() {
    sh setup/fetch.sh "$target" "$minor" &&
        $MAKE --no-print-directory BUILD="build/versions/$minor" NOTES="build/versions/$minor" \
            LIBTORCH="$target" MODEL_SRC= CFLAGS="${QUICK_CFLAGS--O0}" \
            CXXFLAGS="${QUICK_CXXFLAGS--O0}" check-quick
}

forget() {
    [ -z "$fetched" ] || rm -rf "$fetched"
    fetched=
}
trap forget EXIT
trap 'exit 130' INT TERM

for minor in $chosen; do
    [ "$minor" != core ] || continue
    row "$minor"
    if [ -d "$target/torch/lib" ]; then
        echo "libtorch $version is in $target"
    else
        echo "libtorch $version: fetches $fetch_mb MB; $keep_mb MB on disk${KEEP:+, kept}"
    fi
done

for minor in $chosen; do
    log=build/versions/$minor/log
    mkdir -p "build/versions/$minor"
    : >"$log"
    if [ "$minor" = core ]; then
        run core "$log" $MAKE --no-print-directory check-core
        continue
    fi
    row "$minor"
    [ -n "$KEEP" ] || [ -d "$target/torch/lib" ] || fetched=$target
    run "$minor (libtorch $version)" "$log" with
    forget
done
exit $failed

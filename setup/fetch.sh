#!/bin/sh
# Fetches libtorch as Python packages and unpacks them: sh setup/fetch.sh DIR [MINOR]
#
# MINOR (2.9) is one of the versions in setup/libtorch.txt, whose default it is where none is given. --list prints all
# of them, oldest first, each with its full version, the MB to fetch and those on disk.
# Nothing is installed and nothing of Python is used but pip and zipfile: the packages are archives
# with headers and libraries in them. The table says which, with their SHA-256.
# Archives that are already there are taken first: from WHEELS=DIR, build/wheels, wheels.
# DIR appears when it is complete and not before.
set -eu
target=$1 minor=${2:-}
PYTHON=${PYTHON:-python3}

say() { echo "setup: $*"; }
stop() {
    for line in "$@"; do
        echo "setup: $line" >&2
    done
    exit 1
}

case $(uname -s)-$(uname -m) in
Linux-x86_64)
    system=linux-x86_64
    platforms="manylinux_2_28_x86_64 manylinux_2_25_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64"
    ;;
Linux-aarch64)
    system=linux-aarch64
    platforms="manylinux_2_28_aarch64 manylinux_2_25_aarch64 manylinux_2_17_aarch64
        manylinux2014_aarch64"
    ;;
Darwin-arm64)
    system=macos-arm64
    platforms="macosx_11_0_arm64 macosx_14_0_arm64"
    ;;
*) stop "there is no libtorch to fetch for $(uname -s) on $(uname -m)" \
    "set LIBTORCH=DIR to one of your own" ;;
esac
table=setup/libtorch.txt

# rows MINOR: of this system. Compared as text: as numbers, 2.1 and 2.10 are equal.
rows() { awk -v minor="$1" -v system_name=$system '$1 "" == minor && $2 == system_name { print $3, $4, $5 }' $table; }

if [ "$target" = --list ]; then
    for minor in $(sed -n 's/^\(2\.[0-9]*\) .*/\1/p' $table | uniq); do
        sizes=$(rows "$minor" | sed -n 's/^size //p')
        echo "$minor $(rows "$minor" | sed -n 's/^torch==\([0-9.]*\) .*/\1/p') $sizes"
    done
    exit 0
fi
number=${minor:-$(sed -n 's/^default //p' $table)}
set -- $(rows "$number" | sed -n 's/^size //p')
[ $# -eq 2 ] || stop "there is no libtorch $number for $system in $table"
fetch_mb=$1 keep_mb=$2

# Lines of the table: NAME==VERSION --hash=sha256:HASH
locked() { rows "$number" | grep -e --hash=; }

# stem NAME==VERSION: how file names start, nvidia_cuda_runtime-13.0.96
stem() { echo "$1" | sed 's/==/ /; s/-/_/g; s/ /-/'; }

is_complete() {
    [ -d "$target/torch/lib" ] || return 1
    for name in $(locked | sed 's/ .*//'); do
        [ -f "$target/$(stem "$name").dist-info/RECORD" ] || return 1
    done
}

if is_complete; then
    exit 0
fi

# ---- Python and pip ------------------------------------------------------------------------------

apt_as_root() {
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" -eq 0 ]; then
        as_root="env"
    elif sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        return 1
    fi
    say "apt-get install $*"
    run="$as_root DEBIAN_FRONTEND=noninteractive apt-get"
    $run install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
        { $run update -q && $run install -y --no-install-recommends "$@"; }
}

if ! command -v "$PYTHON" >/dev/null 2>&1; then
    { [ "$PYTHON" = python3 ] && apt_as_root python3 python3-pip; } ||
        stop "fetching libtorch needs $PYTHON with pip, which is not there" \
            "install it (Debian: sudo apt-get install python3 python3-pip; macOS: brew install python)" \
            "or set LIBTORCH=DIR to a libtorch that you have"
fi

find_pip() {
    if "$PYTHON" -m pip --version >/dev/null 2>&1; then
        pip="$PYTHON -m pip"
    elif "$PYTHON" -m venv build/pip >/dev/null 2>&1; then
        pip="build/pip/bin/python -m pip"
    elif apt_as_root python3-pip && "$PYTHON" -m pip --version >/dev/null 2>&1; then
        pip="$PYTHON -m pip"
    else
        rm -rf build/pip
        stop "fetching libtorch needs pip for $PYTHON, which is not there" \
            "install it (Debian: sudo apt-get install python3-pip; elsewhere: $PYTHON -m ensurepip)" \
            "or set LIBTORCH=DIR to a libtorch that you have"
    fi
}

# ---- archives ------------------------------------------------------------------------------------

sha256() {
    "$PYTHON" -c '
import hashlib, sys
digest = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    for block in iter(lambda: file.read(1 << 20), b""):
        digest.update(block)
print(digest.hexdigest())' "$1"
}

mkdir -p build
part=build/wheels.part
unpacked=build/libtorch.part
rm -rf "$part" "$unpacked"
mkdir "$part"
trap 'rm -rf "$part" "$unpacked" build/pip' EXIT
trap 'exit 130' INT TERM

# search NAME==VERSION HASH: prints the archive if it is there with that hash.
search() {
    for folder in ${WHEELS:+"$WHEELS"} build/wheels wheels "$part"; do
        for file in "$folder/$(stem "$1")"-*.whl; do
            [ -f "$file" ] || continue
            if [ "$(sha256 "$file")" = "$2" ]; then
                echo "$file"
                return 0
            fi
            echo "setup: $file is passed over: its SHA-256 is not the one in $table" >&2
        done
    done
}

# collect: sets archives to the files that are there, wanted to the lines of those that are not.
collect() {
    archives='' wanted=''
    while read -r name hash; do
        file=$(search "$name" "${hash#--hash=sha256:}")
        if [ -n "$file" ]; then
            # A newline between names: folders may have blanks.
            archives="$archives$file
"
        else
            wanted="$wanted$name $hash
"
        fi
    done <<LOCK
$(locked)
LOCK
}

collect
room_mb=$(($(df -Pk build | awk 'NR == 2 { print $4 }') / 1024))
[ -z "$wanted" ] || need_mb=$((keep_mb + fetch_mb))
[ "$room_mb" -ge "${need_mb:-$keep_mb}" ] ||
    stop "libtorch needs ${need_mb:-$keep_mb} MB in build/ for a while, and there are $room_mb MB"

if [ -n "$wanted" ]; then
    find_pip
    if [ -n "$minor" ]; then
        say "fetching libtorch $number from PyPI, about $fetch_mb MB;"
        say "$target will hold $keep_mb MB"
    else
        say "no libtorch was found: fetching it from PyPI, about $fetch_mb MB;"
        say "$target will hold $keep_mb MB (LIBTORCH=DIR uses one that you have)"
    fi
    for platform in $platforms; do
        options="${options:-} --platform $platform"
    done
    printf '%s' "$wanted" >"$part/wanted.txt"
    # The C++ libraries do not depend on the version of Python: 3.11 is as good as any.
    $pip --disable-pip-version-check download --no-deps --require-hashes --only-binary=:all: \
        --implementation cp --python-version 3.11 $options -d "$part" -r "$part/wanted.txt" ||
        stop "the download failed; pip's message is above" \
            "behind a proxy set https_proxy; without a network put the files that" \
            "$table names for $number and $system into a folder and say WHEELS=FOLDER"
    collect
    [ -z "$wanted" ] || stop "still missing: $wanted"
fi

# ---- unpacking -----------------------------------------------------------------------------------

say "unpacking to $target"
mkdir "$unpacked"
printf '%s' "$archives" | while IFS= read -r file; do
    "$PYTHON" -m zipfile -e "$file" "$unpacked"
done
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$unpacked" "$target"
is_complete || stop "$target is not complete after unpacking"

#!/bin/sh
# What README.md and the pages in docs/ show works: each snippet of C and C++ is included by a suite (tests/*/*snippets.c,
# .cpp), or is a program that the commands on its page build and run, here in a folder of its own; links lead to
# something. sh setup/check_pages.sh --extract DIR writes the snippets into DIR, each file only where it changes.
# Uses T, the folder of libtorch, or TORCH_LIB.
set -eu
root=$(pwd)
LIB=${LIB:-build/lib}
pages="README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md $(ls docs/*.md)"
dir=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/new"
wrong=$(awk -v dir="$dir/new" -f setup/snippets.awk $pages)
failed=0

# write_to FOLDER: the snippets; a file that is the same already stays as it is.
write_to() {
    mkdir -p "$1"
    for file in "$1"/*; do
        [ ! -f "$file" ] || [ -x "$file" ] || [ -e "$dir/new/${file##*/}" ] || rm -f "$file"
    done
    for file in "$dir/new"/*; do
        cmp -s "$file" "$1/${file##*/}" || cp "$file" "$1/"
    done
}

if [ "${1:-}" = --extract ]; then
    write_to "$2"
    exit 0
fi

fail() {
    echo "FAIL pages $1: $2"
    failed=1
}

# ---- what snippets there are -------------------------------------------------------------------

# used NAME: whether a suite includes it, commands build it, or a check runs these commands.
used() {
    name=${1%.sh}
    case $1 in
    *.py) grep -qsw "$1" tests/python/*.py ;;
    build_*.sh) grep -qw "build ${name#build_}" setup/check_pages.sh setup/check_install.sh ;;
    *) grep -qs "^ *#include \"$1\"" tests/*/*snippets.c tests/*/*snippets.cpp || grep -qsw "$1" "$dir/new"/*.sh ;;
    esac
}

for snippet in $(cat "$dir/new/names"); do
    used "$snippet" || wrong="$wrong
$snippet is compiled by nothing"
done
if [ -n "$wrong" ]; then
    printf '%s\n' "$wrong" | sed '/^$/d'
    fail snippets "above"
else
    echo "ok pages snippets ($(wc -l <"$dir/new/names" | tr -d ' '))"
fi

# ---- programs, as their page says ---------------------------------------------------------------

# Programs of a page are for people to copy: no warnings, but of parameters that C cannot leave unnamed.
strict='-Wall -Wextra -Werror -Wno-unused-parameter'

# build NAME: runs the commands in build_NAME.sh, in a folder where include/ and build/ are this tree's. Where the program
# is newer than its source and all headers it is run alone.
build() {
    commands="sh -eu build_$1.sh"
    how=
    if [ -x "$work/$1" ] && [ -z "$(find "$work/$1".c* "$work/build_$1.sh" include/memtrain -newer "$work/$1")" ]; then
        commands=./$1
        how=" (built before)"
    fi
    if (cd "$work" && PATH=$dir/bin:$PATH $commands) >"$dir/log" 2>&1; then
        echo "ok pages build_$1$how"
    else
        cat "$dir/log"
        fail "build_$1" "its commands end with an error"
    fi
}

# compiler NAME COMMAND: the page's cc or c++ is that of this build.
compiler() {
    printf '#!/bin/sh\nPATH=%s\nexec %s %s "$@"\n' "'$PATH'" "$2" "$strict" >"$dir/bin/$1"
    chmod +x "$dir/bin/$1"
}

bad=
for file in $(grep -l '^int main(' "$dir/new"/*.c); do
    ${CC:-cc} -std=c11 $strict -Iinclude -fsyntax-only "$file" || bad="$bad ${file##*/}"
done
if [ -n "$bad" ]; then
    fail "programs in C" "they do not compile:$bad"
else
    echo "ok pages programs in C"
fi

mkdir "$dir/bin"
compiler cc "${CC:-cc}"
compiler c++ "${CXX:-c++}"
built=$root/$(dirname "$LIB") work=$root/$(dirname "$LIB")/pages
T=${T:-$(dirname "${TORCH_LIB:-none/lib}")}
export T
if [ ! -e "$LIB/libmemtrain_torch.so" ] && [ ! -e "$LIB/libmemtrain_torch.dylib" ]; then
    echo "SKIP: pages programs: libmemtrain_torch is not built"
else
    write_to "$work"
    ln -sfn "$root/include" "$work/include"
    ln -sfn "$built" "$work/build"
    build tied
    if [ -d "$T/include/ATen" ]; then
        build inside
        build small
    else
        echo "SKIP: pages build_inside, build_small: there is no include/ beside $T/lib"
    fi
fi

# ---- links ---------------------------------------------------------------------------------------

# anchors PAGE: those of its headings, as they are made on the web.
anchors() {
    awk '/^```/ { inside = !inside } !inside && /^#+ / {
        sub(/^#+ /, "")
        $0 = tolower($0)
        gsub(/[^a-z0-9 _-]/, "")
        gsub(/ /, "-")
        print
    }' "$1"
}

# targets PAGE: what it links to, but on the web.
targets() {
    awk '/^```/ { inside = !inside } !inside' "$1" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//' |
        grep -v '^http' || :
}

broken=
links=0
for page in $pages; do
    for target in $(targets "$page"); do
        file=${target%%#*}
        path=$(dirname "$page")/$file
        [ -n "$file" ] || path=$page
        links=$((links + 1))
        case $target in
        *'#'*) [ -f "$path" ] && anchors "$path" | grep -qxF "${target#*#}" ;;
        *) [ -e "$path" ] ;;
        esac || broken="$broken $page:$target"
    done
done
if [ -n "$broken" ]; then
    fail links "nothing is there:$broken"
else
    echo "ok pages links ($links)"
fi
exit $failed

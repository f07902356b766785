#!/bin/sh
# Writes the manual pages: sh setup/man.sh FOLDER [PROGRAM...]. Section 3 is made of the public headers (man.awk),
# section 1 of what the programs print for --help. sh setup/man.sh --list HEADER... prints names of pages.
set -eu
version=$(awk '$2 == "MT_VERSION_STRING" { gsub(/"/, "", $3); print $3 }' include/memtrain/status.h)

if [ "${1:-}" = --list ]; then
    shift
    for header in "$@"; do awk -v list=1 -f setup/man.awk "$header"; done
    exit 0
fi

folder=$1
shift
mkdir -p "$folder/man1" "$folder/man3"
for header in include/memtrain/*.h; do
    awk -v dir="$folder/man3" -v version="$version" -f setup/man.awk "$header"
done

# The first line of the help is "NAME: what it is".
for program in "$@"; do
    name=$(basename "$program")
    usage=$("$program" --help | sed -n 's/^Usage: [^ ]* *//p' | head -n 1)
    "$program" --help | awk -v name="$name" -v version="$version" -v usage="${usage:-[--FLAG VALUE]...}" '
        { gsub(/\\/, "\\e"); gsub(/-/, "\\-"); sub(/^[.\047]/, "\\\\\\&&") }
        NR == 1 {
            sub(/^[^:]*: */, "")
            printf ".TH %s 1 \"\" \"memtrain %s\" \"memtrain\"\n.SH NAME\n%s \\- %s\n", name, version, name, $0
            gsub(/-/, "\\-", usage)
            printf ".SH SYNOPSIS\n.B %s\n%s\n.SH DESCRIPTION\n.nf\n", name, usage
            next
        }
        /^Usage: / { getline; next } # stands above, and so does the blank line behind it
        { print }
        END { print ".fi" }' >"$folder/man1/$name.1"
done

#!/bin/sh
# Prints the share of lines that ran, for each source of libmemtrain: sh setup/coverage.sh OBJ_DIR
set -eu
objects=$1
# Whatever gcov prints comes in pairs: File 'x.c', Lines executed:90.00% of 120.
for source in libmemtrain/*.c; do
    gcov -n -o "$objects/${source##*/}.o" "$source" 2>/dev/null | awk -v source="$source" '
        /^File / { wanted = index($0, source "\x27") > 0 }
        wanted && /^Lines executed:/ {
            split($0, part, /[:% ]+/)
            printf "%7.2f %% of %5d lines  %s\n", part[3], part[5], source
            wanted = 0
        }'
done | awk '
    { print; lines += $4; ran += $1 * $4 / 100 }
    END { if (lines) printf "%7.2f %% of %5d lines  in all\n", 100 * ran / lines, lines }'

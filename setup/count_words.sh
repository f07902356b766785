#!/bin/sh
# How long the sentences of the pages are: sh setup/count_words.sh [PAGE...]. For each page: sentences, words of the
# median sentence, words of the sentence that 90 % do not exceed, share of sentences above 24 words. The aim is a
# median of at most 12 and 90 % below 24; nothing fails. "-l N PAGE..." prints the sentences above N words instead.
# Left out: fences, indented code, tables, headings, comments. A span of code and a link's address count as one word
# and none. A sentence ends at ". ", "? ", "! ", at a colon before a list or code, and with its paragraph or item.
set -eu
limit=0
if [ "${1:-}" = -l ]; then
    limit=$2
    shift 2
fi
[ $# -gt 0 ] || set -- README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md

sentences() {
    awk '
        function flush(  n, i, part) {
            gsub(/<!--[^>]*-->/, "", text)
            gsub(/`[^`]*`/, "CODE", text)
            gsub(/!\[[^]]*\]\([^)]*\)/, "", text)
            gsub(/\]\([^)]*\)/, "", text)
            gsub(/[][*]/, "", text)
            gsub(/(et al|e\.g|i\.e|vs|cf)\./, "ABBR", text)
            gsub(/[.?!][)"]* +/, "&\n", text)
            n = split(text, part, "\n")
            for (i = 1; i <= n; i++) {
                sub(/^ +/, "", part[i])
                sub(/ +$/, "", part[i])
                if (part[i] ~ /[A-Za-z]/) print words(part[i]) "\t" part[i]
            }
            text = ""
        }
        function words(s,  n, i, count, part) {
            n = split(s, part, " ")
            count = 0
            for (i = 1; i <= n; i++) if (part[i] ~ /[A-Za-z0-9]/) count++
            return count
        }
        /^ *```/ { flush(); inside = !inside; next }
        inside { next }
        /^#/ || /^ *\|/ || /^<!--/ || /^ *$/ { flush(); item = item && /^ *$/; next }
        /^    / && text == "" && !item { next }
        /^ *([-*]|[0-9]+\.) / { flush(); item = 1; sub(/^ *([-*]|[0-9]+\.) +/, "") }
        !/^ / && text == "" { item = 0 }
        { text = text " " $0 }
        END { flush() }' "$1"
}

[ "$limit" -gt 0 ] || printf '%-24s %9s %6s %4s %8s\n' page sentences median 90% above24
for page in "$@"; do
    if [ "$limit" -gt 0 ]; then
        sentences "$page" | awk -v page="$page" -v limit="$limit" '$1 + 0 > limit { print page ": " $0 }'
    else
        sentences "$page" | sort -n | awk -v page="$page" '
            { words[NR] = $1; above += $1 > 24 }
            END {
                if (!NR) exit
                printf "%-24s %9d %6d %4d %7d%%\n", page, NR, words[int((NR + 1) / 2)],
                    words[int(NR * 0.9 + 0.999)], 100 * above / NR + 0.5
            }'
    fi
done

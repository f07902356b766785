#!/bin/sh
# docs/adopt.md shows, line for line, what differs between examples/adopt_before.cpp and examples/adopt.cpp,
# and that is at most 24 lines: each one that goes and each one that comes, counted by its - or +.
set -eu
most=24
page=docs/adopt.md
dir=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$dir"' EXIT

# Without the two names and their dates; no line of the page ends with a blank.
diff -u examples/adopt_before.cpp examples/adopt.cpp | sed -e 1,2d -e 's/ $//' >"$dir/differs"
awk '/^```diff$/ { inside = 1; next } /^```/ { inside = 0 } inside' $page >"$dir/shown"

gone=$(grep -c '^-' "$dir/differs" || :)
new=$(grep -c '^+' "$dir/differs" || :)
count=$((gone + new))
words="$gone lines go and $new come"
if [ $count -eq 0 ] || [ $count -gt $most ]; then
    echo "FAIL adopt: $words: $count instead of 1 to $most"
    exit 1
fi
if ! diff "$dir/shown" "$dir/differs"; then
    echo "FAIL adopt: $page shows another difference (<) than the two programs have (>)"
    exit 1
fi
if ! grep -q "$words" $page; then
    echo "FAIL adopt: $page does not say '$words'"
    exit 1
fi
echo "ok adopt ($words)"

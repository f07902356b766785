#!/bin/sh
# Every exported function has a manual page that says something, and groff has nothing to say against any. Names with
# mt__ are for our own libraries alone.
set -eu
folder=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$folder"' EXIT
sh setup/man.sh "$folder"

bad=
for name in $(cat tests/symbols/*.txt | grep -v '^mt__'); do
    page=$folder/man3/$name.3
    if [ ! -f "$page" ] || ! grep -q '^\.SH \(DESCRIPTION\|PARAMETERS\|RETURN VALUE\)' "$page"; then
        bad="$bad $name"
    fi
done
if [ -n "$bad" ]; then
    echo "FAIL man pages: the header says nothing of$bad"
    exit 1
fi
if command -v groff >/dev/null 2>&1; then
    said=$(for page in "$folder"/man3/*.3; do groff -man -Tutf8 -ww -z "$page" 2>&1; done | head -5)
    if [ -n "$said" ]; then
        echo "FAIL man pages: $said"
        exit 1
    fi
fi
echo "ok man pages ($(ls "$folder/man3" | wc -l | tr -d ' '))"

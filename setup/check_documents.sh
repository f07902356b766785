#!/bin/sh
# The rows of setup/documents.txt have flags that their programs accept, and setup/documents.sh prints what a run's trace says:
# tried with small pictures. Uses LIB. Prints "ok documents NAME" or "FAIL documents NAME: why".
set -eu
built=$(dirname "${LIB:-build/lib}")
notes=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$notes"' EXIT
failed=0

fail() {
    echo "FAIL documents $1: $2"
    failed=1
}

if [ ! -x "$built/examples/food101" ]; then
    echo "SKIP: documents: there is no $built/examples/food101"
    exit 0
fi

# --version comes after the flags were read.
rows=0
while IFS='|' read -r name limit theirs command; do
    name=$(echo "$name" | tr -d ' ')
    case $name in '' | '#'*) continue ;; esac
    rows=$((rows + 1))
    [ "$limit" -gt 0 ] 2>/dev/null || fail "$name" "its limit is '$limit', not a number of seconds"
    [ -n "$theirs" ] || fail "$name" "it does not say what the document has"
    # shellcheck disable=SC2086 # the flags of a row are words
    set -- $command
    program=$1
    shift
    "$built/examples/$program" "$@" --version >"$notes/out" 2>&1 </dev/null ||
        fail "$name" "$(head -n 1 "$notes/out")"
done <setup/documents.txt
[ $rows -ge 10 ] || fail rows "$rows of them"

small="food101 --device cpu --image-size 32 --threads 1 --workers 0 --dev-samples 40 --batch 4 --no-validation"
cat >"$notes/list" <<END
# One that goes through, one that does not fit, one that is not wanted, and three with weights: two that are made, the first in
# place of a damaged file, and one that cannot be.
fits | 600 | a figure | $small --steps 2 --budget 1GiB --micro-batch 2
large | 600 | another | $small --steps 2 --budget 100MiB
other | 600 | a third | $small --steps 2
fitter | 600 | a sixth | prsmed --device cpu --threads 1 --workers 0 --steps 1 --batch 2 --scenes 4 --no-validation --text-model=tiny --text-weights=WEIGHTS/tiny.safetensors
fitted | 600 | a fourth | prsmed --device cpu --threads 1 --workers 0 --steps 1 --batch 2 --scenes 4 --no-validation --text-model tiny --text-weights WEIGHTS/tiny.safetensors
largest | 600 | a fifth | prsmed --text-model tiny --text-weights $notes/list/tiny.safetensors
END
status=0 weights="$notes/a & b|c"
mkdir "$weights"
printf '\003\0\0\0\0\0\0\0{}' >"$weights/tiny.safetensors"
DOCUMENTS=$notes/list WEIGHTS=$weights sh setup/documents.sh "$built" fit large >"$notes/out" 2>&1 </dev/null || status=$?
[ $status -eq 1 ] || fail status "$status, and two of five rows do not go through"
expect() {
    grep -q "$2" "$notes/out" || fail "$1" "no line with '$2' in: $(tr '\n' ' ' <"$notes/out")"
}
expect theirs '^    theirs: a figure$'
expect ours '^    ours: budget 1024.0 MiB, peak [0-9.]* MiB, [0-9.]* MiB of the last step, chunks of 2, [0-9.]* s a step at the end, 2 steps, 0 OOMs, resident '
# The same run anew, and what its last step says.
# shellcheck disable=SC2086 # flags are words
"$built/examples/"$small --steps 2 --budget 1GiB --micro-batch 2 --trace "$notes/trace" >/dev/null 2>&1 </dev/null || true
last=$(sed -n 's/^{"event":"step".*"peak_bytes":\([0-9]*\).*/\1/p' "$notes/trace" | tail -n 1)
expect "last step" "MiB, $(awk "BEGIN { printf \"%.1f\", ${last:-0} / 1048576 }") MiB of the last step, chunks"
if grep -q '^VmHWM' /proc/self/status 2>/dev/null; then expect resident 'OOMs, resident [1-9][0-9.]* MiB$'; fi
[ "$(wc -c <"$weights/tiny.safetensors" 2>/dev/null || echo 0)" -gt 1000 ] || fail weights "the file of a row's weights was not made"
[ "$(grep -c ' 1 steps, 0 OOMs, ' "$notes/out")" -eq 2 ] || fail weights "not both of their rows made a step"
expect "no weights" '^    ours: its weights could not be written: prsmed: '
expect large '^    ours: does not fit: no step$'
expect command "^    command: $small --steps 2 --budget 1GiB"
! grep -q '^other' "$notes/out" || fail other "it was not asked for"
[ $failed -ne 0 ] || echo "ok documents ($rows rows)"
exit $failed

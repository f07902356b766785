#!/bin/sh
# Runs each benchmark on one core with one thread: ratios measured otherwise are not to be trusted.
set -eu
pin=
if command -v taskset >/dev/null 2>&1; then
    pin="taskset -c 0"
fi
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
[ $# -gt 0 ] || echo "no benchmarks"
failed=
for program in "$@"; do
    echo "== ${program##*/}"
    $pin "$program" || failed="$failed ${program##*/}"
done
[ -z "$failed" ] || {
    echo "above their limits, or failed:$failed"
    exit 1
}

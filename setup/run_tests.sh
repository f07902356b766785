#!/bin/sh
# Runs static checks (*.sh) and test programs, from the project's root, and adds up:
#
#     sh setup/run_tests.sh setup/check_links.sh build/tests/check_policy_oom ...
#
# The last line is "N passed, N failed, N skipped". A test program is one of Check's: its line
# "100%: Checks: 12, Failures: 0, Errors: 0" is read; a line that starts with "SKIP:" is one skipped.
# A static check prints "ok NAME", "FAIL NAME: why" or "SKIP: NAME: why". Fails when anything failed,
# and when nothing passed. WRAP is put before each test program (valgrind).
set -eu
cd "$(dirname "$0")/.."

log=$(mktemp "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -f "$log" "$log.rc"' EXIT
trap 'exit 130' INT TERM

passed=0 failed=0 skipped=0
for item in "$@"; do
    case $item in
    *.sh) static=1 command="sh $item" ;;
    *) static=0 command="${WRAP:-} $item" ;;
    esac
    {
        rc=0
        $command 2>&1 || rc=$?
        echo "$rc" >"$log.rc"
    } | tee "$log"
    rc=$(cat "$log.rc")
    counts=$(awk -v static="$static" '
        !static && match($0, /[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
            $0 = substr($0, RSTART)
            bad = $5 + $7
            passed += $3 - bad
            failed += bad
            summary = 1
        }
        static && /^ok / { passed++ }
        static && /^FAIL / { failed++ }
        /^SKIP:/ { skipped++ }
        END { print passed + 0, failed + 0, skipped + 0, summary + static + (skipped > 0) }
    ' "$log")
    read -r p f s summary <<COUNTS
$counts
COUNTS
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        echo "FAIL $item: exit status $rc"
        f=1
    elif [ "$summary" -eq 0 ]; then
        echo "FAIL $item: printed no summary"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

[ $((passed + failed)) -gt 0 ] || echo "FAIL: no check was run"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

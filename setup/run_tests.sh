#!/bin/sh
# Runs static checks (*.sh) and test programs, from the project's root, and adds up:
#
#     sh setup/run_tests.sh setup/check_links.sh build/tests/check_policy_oom ...
#
# JOBS of them run at a time (2 where there are so many cores); what one prints is shown when it has
# ended, with its seconds, and what failed is repeated before the last line, which is
# "N passed, N failed, N skipped". A test program is one of Check's: its line
# "100%: Checks: 12, Failures: 0, Errors: 0" is read; a line that starts with "SKIP:" is one skipped.
# A static check prints "ok NAME", "FAIL NAME: why" or "SKIP: NAME: why". Fails when anything failed,
# and when nothing passed. PROGRAM:CASE runs that case of the program alone. PROGRAM@KIND runs it on the test device, as a card
# of that kind. WRAP is put before each test program (valgrind). A test has three times its seconds (CK_TIMEOUT_MULTIPLIER): on a
# busy machine one that takes 20 s has taken 60, and one that hangs is seen as well after three minutes.
set -eu
: "${CK_TIMEOUT_MULTIPLIER:=3}"
export CK_TIMEOUT_MULTIPLIER
cd "$(dirname "$0")/.."

# run_one ITEM: shows what it printed; keeps its counts, and what failed, in $results.
run_one() {
    log=$results/$(basename "$1")
    start=$(date +%s)
    rc=0
    case $1 in
    *.sh) static=1 && sh "$1" >"$log.log" 2>&1 || rc=$? ;;
    *@*)
        static=0 kind=${1#*@} program=${1%@*}
        MT_TEST_DEVICE=$kind ${WRAP:-} env LD_PRELOAD="$PWD/${program%/*}/libcard_$kind.so" "$program" \
            >"$log.log" 2>&1 || rc=$?
        ;;
    *:*) static=0 && CK_RUN_CASE=${1#*:} ${WRAP:-} "${1%:*}" >"$log.log" 2>&1 || rc=$? ;;
    *) static=0 && ${WRAP:-} "$1" >"$log.log" 2>&1 || rc=$? ;;
    esac
    awk -v static="$static" -v rc="$rc" -v item="$1" -v seconds="$(($(date +%s) - start))" \
        -v bad_log="$log.failed" '
        { print }
        !static && match($0, /[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
            split(substr($0, RSTART), word, /[ ,]+/)
            passed += word[3] - word[5] - word[7]
            failed += word[5] + word[7]
            summary = 1
        }
        static && /^ok / { passed++ }
        static && /^FAIL / { failed++ }
        /^SKIP:/ { skipped++ }
        (static && /^FAIL /) || (!static && /:[FE]:[^:]*:[^:]*:[0-9]+:/) { print > bad_log }
        END {
            if (rc != 0 && failed == 0)
                why = "exit status " rc
            else if (!static && !summary && !skipped)
                why = "printed no summary"
            if (why) {
                failed++
                print "FAIL " item ": " why
                print "FAIL " item ": " why > bad_log
            }
            if (seconds >= 5)
                print item " took " seconds " s"
            print passed + 0, failed + 0, skipped + 0 > (bad_log ".counts")
        }
    ' "$log.log" >"$log.shown"
    cat "$log.shown"
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi

results=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
export results
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM

jobs=${JOBS:-$(sh setup/jobs.sh)}
[ -n "${JOBS:-}" ] || [ "$jobs" -le 2 ] || jobs=2
[ $# -eq 0 ] || printf '%s\n' "$@" | xargs -n 1 -P "$jobs" sh setup/run_tests.sh --one

cat "$results"/*.failed 2>/dev/null || :
cat /dev/null "$results"/*.counts 2>/dev/null | awk -v items=$# '
    { passed += $1; failed += $2; skipped += $3 }
    END {
        if (NR < items) {
            print "FAIL: " items - NR " of " items " were not run to their end"
            failed += items - NR
        }
        if (passed + failed == 0)
            print "FAIL: no check was run"
        print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"
        exit(failed > 0 || passed == 0)
    }'

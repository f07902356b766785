#!/bin/sh
# The most telling suites on a real card, and one table of what came out:
#
#     make check-card                     builds them, and runs them here
#     make card-bundle                    packs them as build/card.tar.gz, for another machine, on which nothing is built:
#     tar xzf card.tar.gz && sh card/setup/card.sh
#
# There it needs python3 with a torch of the version that the bundle was built for, or TORCH_LIB, the folder of libtorch.so.
# DEVICE (cuda) is the device, SECONDS_MOST (450) the time for all, JOBS (4) how many run at a time, SUITES which ones, in this
# order; what they print is in OUT (build/card-logs). The status is 0 where all of them ran and nothing failed. Without a card
# one line says so, and nothing runs; --ask is that alone, and with ASKED it has been asked.
set -eu
cd "$(dirname "$0")/.."
tests=build/tests logs=${OUT:-build/card-logs}
most_telling='check_ex_card check_shim_card_memory check_shim_step check_shim_hold check_shim_errors check_shim_told
check_shim_segments check_model_prsmed check_shim_convolution check_shim_processes check_shim_ladder check_shim_offload
check_shim_offload_torch check_shim_offload_rung check_shim_checkpointing check_shim_channels_last check_shim_groups
check_shim_amp check_shim_scaler check_torch_trainer check_shim_sizes check_shim_kept check_shim_units
check_shim_script check_shim_state check_shim_fit check_shim_tensor check_shim_threads check_shim_contrastive
check_shim_contrastive_memory check_shim_call check_shim_check check_shim_check_clean'
suites=${SUITES:-$most_telling}
if [ "${1:-}" = --list ]; then
    echo $suites
    exit 0
fi
export MT_TEST_DEVICE="${DEVICE:-cuda}" OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=2 NVIDIA_TF32_OVERRIDE=0
mkdir -p "$logs"

# Where the programs look for libtorch.
if [ ! -e build/libtorch/torch/lib ] && [ ! -f Makefile ]; then
    mkdir -p build/libtorch/torch
    ln -sfn "${TORCH_LIB:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__) + "/lib")')}" \
        build/libtorch/torch/lib
fi
if [ -z "${ASKED:-}" ]; then
    there=0
    ${WRAP:-} build/examples/doctor --device "$MT_TEST_DEVICE" >"$logs/doctor.log" 2>&1 || there=$?
    cat "$logs/doctor.log"
    [ "$there" = 0 ] || exit "$there"
fi
[ "${1:-}" != --ask ] || exit 0

begin=$(date +%s)
SECONDS_MOST=${SECONDS_MOST:-450}
export begin logs tests SECONDS_MOST
printf '%s\n' $suites | xargs -n 1 -P "${JOBS:-4}" sh -c '
    left=$((SECONDS_MOST - ($(date +%s) - begin)))
    [ -x "$tests/$1" ] || { echo "not built" >"$logs/$1.log"; exit 0; }
    [ "$left" -gt 0 ] || { echo "out of time" >"$logs/$1.log"; exit 0; }
    rc=0 start=$(date +%s)
    timeout "$left" ${WRAP:-} "$tests/$1" >"$logs/$1.log" 2>&1 </dev/null || rc=$?
    echo "card: status $rc, $(($(date +%s) - start)) s" >>"$logs/$1.log"' sh

failed=0
printf '%-28s %7s %7s %7s %8s\n' suite passed failed skipped seconds
for suite in $suites; do
    awk -v suite="$suite" '
        match($0, /[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
            split(substr($0, RSTART), word, /[ ,]+/)
            passed += word[3] - word[5] - word[7]
            failed += word[5] + word[7]
            told = 1
        }
        /^SKIP:/ { skipped++ }
        /^card: status/ { seconds = $4; status = $3 + 0 }
        { last = $0 }
        END {
            if (!told && !(skipped && status == 0)) why = last ~ /^card:/ ? "ended early, status " status : last
            printf "%-28s %7d %7d %7d %8s %s\n", suite, passed, failed, skipped, seconds, why
            exit(failed > 0 || why != "")
        }' "$logs/$suite.log" || failed=1
done
echo
grep -hE ':[FE]:[^:]*:[^:]*:[0-9]+:' "$logs"/check_*.log | cut -c 1-300 || :
exit $failed

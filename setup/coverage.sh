#!/bin/sh
# Prints the shares of lines that ran and of branches that were taken, for each source of the libraries in C,
# and fails where a branch of what decides, or does a step, was not taken: sh setup/coverage.sh OBJ_DIR
set -eu
objects=$1
decides="policy.c policy_state.c options.c report.c split.c answer.c kind.c sizes.c lengths.c rungs.c clear.c plan.c memory_model.c recording.c blocks.c segments.c host.c"
does="trainer.c attempt.c retry.c trace.c json.c schedule.c size.c handle.c status.c"
whole=" $decides $does "
# What gcov prints of a file: File 'x.c', Lines executed:90.00% of 120, Branches executed:...,
# Taken at least once:80.00% of 60 (or No branches).
for source in libmemtrain/*.c libmemtrain_memory/*.c; do
    gcov -b -n -o "$objects/$source.o" "$source" 2>/dev/null | awk -v source="$source" '
        /^File / { wanted = index($0, source "\x27") > 0 }
        wanted && /^Lines executed:/ { split($0, lines, /[:% ]+/) }
        wanted && /^Taken at least once:/ { split($0, taken, /[:% ]+/) }
        wanted && /^(Calls executed|No calls)/ {
            printf "%7.2f %% of %5d lines %7.2f %% of %5d branches  %s\n", \
                lines[3], lines[5], taken[5], taken[7], source
            wanted = 0
        }'
done | awk -v whole="$whole" '
    {
        print
        lines += $4; ran += $1 * $4 / 100
        branches += $9; taken += $6 * $9 / 100
        name = $NF
        sub(/.*\//, "", name)
        if (index(whole, " " name " ")) {
            seen++
            if ($6 < 100) missing = missing " " name
        }
    }
    END {
        if (lines)
            printf "%7.2f %% of %5d lines %7.2f %% of %5d branches  in all\n", \
                100 * ran / lines, lines, 100 * taken / branches, branches
        if (missing) print "FAIL coverage: branches that no suite of the core takes in" missing
        if (seen != split(whole, all, / +/) - 2) {
            print "FAIL coverage: no figures for one of" whole
            missing = 1
        }
        exit missing != ""
    }'

#!/bin/sh
# Every command that README.md gives is run: here as it stands (make run for one epoch), or by what each() names. A
# command is a line that is indented by four blanks, or a span of code, that begins with "make" or "build/".
# Uses MAKE and LIB. Prints "ok readme COMMAND" or "FAIL readme COMMAND: why".
set -eu
built=$(dirname "${LIB:-build/lib}")
log=$(mktemp "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -f "$log" "$log.commands"' EXIT
failed=0

commands() {
    awk '
        /^    (make|build\/)/ { sub(/^ +/, ""); sub(/   .*/, ""); print }
        /^```/ { inside = !inside }
        !inside && !/^    / {
            for (n = split($0, part, "`"); n > 1; n--)
                if (n % 2 == 0 && part[n] ~ /^(make |build\/examples\/)/)
                    print part[n]
        }' README.md | sort -u
}

# gives STRING COMMAND: the command ends well and prints the string.
gives() {
    string=$1
    shift
    "$@" >"$log" 2>&1 || return 1
    grep -q -- "$string" "$log"
}

# each COMMAND: runs it, or looks whether what runs it does.
each() {
    set -f
    case $1 in
    "make check") return 0 ;; # by which this is run
    "make run") gives "^validation accuracy" "${MAKE:-make}" --no-print-directory run RUN_FLAGS="--epochs 1" ;;
    "make "*) gives . "${MAKE:-make}" --no-print-directory ${1#make } ;;
    build/examples/train_script*) gives . grep 'cli_program = "train_script"' tests/programs/check_ex_script.cpp ;;
    *) gives . "$built"/${1#build/} ;;
    esac
}

commands >"$log.commands"
while IFS= read -r command; do
    if each "$command" </dev/null; then
        echo "ok readme $command"
    else
        tail -n 20 "$log"
        echo "FAIL readme $command: it ends with an error, or without what it should print"
        failed=1
    fi
done <"$log.commands"
for must in "make run" "make check"; do
    grep -qxF "$must" "$log.commands" || {
        echo "FAIL readme $must: README.md does not give it"
        failed=1
    }
done
exit $failed

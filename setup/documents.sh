#!/bin/sh
# Runs the configurations of the five documents at their own size and prints theirs beside ours:
#
#     sh setup/documents.sh BUILD [NAME...]       rows of setup/documents.txt by the beginnings of their names
#
# Each row is a run of its own with a time limit. What is printed comes from its trace. The first steps may have the highest
# peak: the last step has that of the chunks which the run has come to. The resident bytes are the most that
# the kernel has seen of the process (Linux). A row that does not fit, fails or is out of time says so, and the next one runs.
# WEIGHTS is the folder for files of random weights (BUILD/weights), which are made for rows that name one, and stay. One whose
# size is not what its header says is made again.
set -eu
build=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
list=${DOCUMENTS:-$here/documents.txt}
weights=${WEIGHTS:-$build/weights}
notes=$(mktemp -d)
process='' watcher='' clock=''

# What still runs ends with the script: nothing of it is to be kept.
end_all() {
    for one in $process $watcher $clock; do kill -KILL "$one" 2>/dev/null || true; done
    rm -rf "$notes"
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

wanted() {
    name=$1
    shift
    [ $# -gt 0 ] || return 0
    for begin in "$@"; do
        case $name in "$begin"*) return 0 ;; esac
    done
    return 1
}

trim() { printf '%s' "$1" | sed 's/^ *//; s/ *$//'; }

# The most resident bytes of a process, in KiB, noted once a second while it runs, and more often in its first seconds.
watch_memory() {
    looks=0
    while kill -0 "$1" 2>/dev/null; do
        sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$1/status" 2>/dev/null >"$notes/now" || true
        if [ -s "$notes/now" ]; then mv "$notes/now" "$notes/resident"; fi
        looks=$((looks + 1))
        if [ $looks -gt 50 ] || ! sleep 0.1 2>/dev/null; then sleep 1; fi
    done
}

# The figures of a trace, as far as it goes.
figures() {
    awk -v resident="$2" '
        function value(key,    at) {
            if (!(at = index($0, "\"" key "\":"))) return ""
            rest = substr($0, at + length(key) + 3)
            sub(/[,}].*/, "", rest)
            return rest
        }
        function mib(bytes) { return bytes + 0 > 0 ? sprintf("%.1f MiB", bytes / 1048576) : "-" }
        /^{"event":"step"/ {
            seconds[++steps] = value("seconds") + 0
            list = $0
            sub(/.*"chunks":\[/, "", list)
            sub(/\].*/, "", list)
            n = split(list, chunk, ",")
            for (i = 1; i <= n; i++) {
                if (!least || chunk[i] + 0 < least) least = chunk[i] + 0
                if (chunk[i] + 0 > most) most = chunk[i] + 0
            }
            last = value("peak_bytes") + 0
            if (last > peak) peak = last
            if (value("budget_bytes") + 0) budget = value("budget_bytes") + 0
        }
        /^{"event":"oom"/ { ooms++ }
        END {
            if (!steps) { print "no step"; exit }
            chunks = least == most ? least : least " to " most
            printf "budget %s, peak %s, %s of the last step, chunks of %s, ", mib(budget), mib(peak), mib(last), chunks
            printf "%.3g s a step at the end, %d steps, %d OOMs, ", seconds[steps], steps, ooms
            printf "resident %s\n", mib(resident * 1024)
        }' "$1"
}

# Run NAME LIMIT COMMAND...
run() {
    name=$1 limit=$2
    shift 2
    trace=$notes/trace.jsonl
    rm -f "$trace" "$notes/resident" "$notes/now"
    program=$1
    shift
    "$build/examples/$program" "$@" --trace "$trace" --progress off >"$notes/out" 2>&1 </dev/null &
    process=$!
    watch_memory $process &
    watcher=$!
    (
        passed=0
        while [ $passed -lt "$limit" ] && kill -0 $process 2>/dev/null; do
            sleep 1
            passed=$((passed + 1))
        done
        kill -TERM $process 2>/dev/null || true
    ) &
    clock=$!
    status=0
    wait $process || status=$?
    wait $watcher $clock 2>/dev/null || true
    process='' watcher='' clock=''
    resident=0
    if [ -s "$notes/resident" ]; then resident=$(cat "$notes/resident"); fi
    case $status in
    0) end= ;;
    3) end='does not fit: ' ;;
    130 | 143) end='out of time: ' ;;
    *) end="failed with status $status: " ;;
    esac
    if [ -s "$trace" ]; then ours=$(figures "$trace" "$resident"); else ours='no step'; fi
    echo "    ours: $end$ours"
    if [ $status -ne 0 ] && [ "$end" != "out of time: " ]; then
        sed -n '1,2s/^/    | /p' "$notes/out"
        failed=1
    fi
}

# is_whole FILE: whether a safetensors file has as many bytes as its header says. A header begins with its length.
is_whole() {
    [ -f "$1" ] || return 1
    length=$(od -An -tu8 -N 8 "$1" | tr -d ' ')
    [ "${length:-0}" -gt 0 ] 2>/dev/null && [ "$length" -lt 100000000 ] || return 1
    ends=$(head -c $((8 + length)) "$1" | tail -c "$length" | tr '{' '\n' | awk -v header="$length" '
        sub(/.*"data_offsets":\[[0-9]+,/, "") && $0 + 0 > end { end = $0 + 0 }
        END { printf "%.0f", 8 + header + end }')
    [ "$ends" -eq "$(wc -c <"$1")" ]
}

# write_weights COMMAND...: the file of random weights that a command names, unless it is there.
write_weights() {
    model='' file=''
    while [ $# -gt 0 ]; do
        case $1 in
        --text-model) model=${2:-} ;;
        --text-weights) file=${2:-} ;;
        --text-model=*) model=${1#*=} ;;
        --text-weights=*) file=${1#*=} ;;
        esac
        shift
    done
    if [ -z "$file" ]; then return 0; fi
    case $file in
    "$weights"/*.safetensors) if is_whole "$file"; then return 0; fi ;;
    *) if [ -e "$file" ]; then return 0; fi ;; # another's: it is not replaced
    esac
    mkdir -p "$(dirname "$file")"
    if [ -f "$file" ]; then rm "$file"; fi
    "$build/examples/prsmed" --text-model "$model" --write-text-weights "$file" >"$notes/out" 2>&1 </dev/null
}

# take_row NAME LIMIT COMMAND...: a word that names a file in WEIGHTS/ gets the folder, which may have blanks in its name.
take_row() {
    name=$1 limit=$2
    shift 2
    left=$#
    while [ "$left" -gt 0 ]; do
        word=$1
        shift
        case $word in
        WEIGHTS/*) word=$weights/${word#WEIGHTS/} ;;
        --*=WEIGHTS/*) word=${word%%=*}=$weights/${word#*=WEIGHTS/} ;;
        esac
        set -- "$@" "$word"
        left=$((left - 1))
    done
    if write_weights "$@"; then
        run "$name" "$limit" "$@"
    else
        echo "    ours: its weights could not be written: $(tail -n 1 "$notes/out")"
        failed=1
    fi
}

failed=0 rows=0
while IFS='|' read -r name limit theirs command; do
    name=$(trim "$name")
    case $name in '' | '#'*) continue ;; esac
    wanted "$name" "$@" || continue
    rows=$((rows + 1))
    command=$(trim "$command")
    echo "$name"
    echo "    theirs: $(trim "$theirs")"
    # shellcheck disable=SC2086 # the flags of a row are words
    take_row "$name" "$(trim "$limit")" $command
    echo "    command: $command"
done <"$list"
if [ $rows -eq 0 ]; then
    echo "documents: no row of $list begins with: $*" >&2
    exit 2
fi
exit $failed

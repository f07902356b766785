#!/bin/sh
# Who includes what: only the shim, the example models, examples in C++, memtrain/torch.hpp and tests see libtorch; the
# core sees neither libmemtrain_memory nor the shim, libmemtrain_memory three headers of the core's inside and none of the
# shim's; plain_c sees the core's public headers and C11 alone. The folders of shim/ and of examples/documents/ have an order.
set -eu
CC=${CC:-cc}
include='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
found=$(find include libmemtrain libmemtrain_memory shim examples tests -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null |
    grep -vE '^(shim|examples/documents/models|tests)/|^examples/[^/]*\.cpp$|^include/memtrain/torch\.hpp$' |
    while IFS= read -r file; do
        grep -HnE "$include[<\"](torch|ATen|c10|caffe2)/" "$file" || true
    done)
if [ -n "$found" ]; then
    echo "$found"
    echo "FAIL layers: libtorch's headers are included outside the shim"
    exit 1
fi
echo "ok layers"

# judge NAME LINES: lines that are not to be there.
judge() {
    if [ -n "$2" ]; then
        echo "$2"
        echo "FAIL layers $1: it includes what is not below it"
        exit 1
    fi
    echo "ok layers $1"
}

memory='(arena|sim|rehearsal|forecast)\.'
# Public headers of the shim include its main one.
over_torch='torch|call|tensor|script|processes|trainer\.hpp'
core_headers=$(grep -LE "$include<memtrain/torch" include/memtrain/*.h |
    grep -vE '/(arena|sim|rehearsal|forecast|torch[a-z_]*)\.h$' || true)
judge core "$(grep -HnE "$include([<\"]memtrain/($memory|$over_torch)|\".*/)" $core_headers libmemtrain/*.[ch] || true)"
# The policy's files in their order: each includes headers of files before it alone. None of these knows the driver.
below='internal|handle|tuned|new_file|json'
for file in recording memory_model sizes kind split policy_state lengths; do
    [ "$file" != memory_model ] || below="$below|recording"
    below="$below|$file"
    judge "policy $file" "$(grep -HnE "$include\"" libmemtrain/$file.[ch] | grep -vE "\"($below)\.h\"" || true)"
done
# Calls go one way too: what the driver and the answers define is not called from below them.
judge "policy calls" "$(grep -HnE 'mt_policy_(plan|extend|oom|observe|clear|cleared|begin|describe|recording)\(' \
    libmemtrain/policy_state.c libmemtrain/rungs.c libmemtrain/split.c libmemtrain/kind.c libmemtrain/lengths.c || true)"
own=$(cd libmemtrain_memory && echo *.h | tr ' ' '|')
judge memory "$(grep -HnE "$include(\"|<memtrain/($over_torch))" libmemtrain_memory/*.[ch] \
    include/memtrain/arena.h include/memtrain/forecast.h include/memtrain/rehearsal.h include/memtrain/sim.h |
    grep -vE "\"($own|internal\.h|handle\.h|recording\.h)\"" || true)"

# rooms FOLDER ROOM...: in their order, lowest first. Prints files and lines of each, and what includes a header of a room above
# its own. Headers are told by their names. A header whose functions are defined further up says so: shim/base/init.hpp.
rooms() {
    folder=$1
    shift
    number=0
    for room in "$@"; do
        number=$((number + 1))
        wc -l "$folder/$room"/*.[ch]* | awk -v room="$folder/$room" '
            $2 != "total" { files++; lines += $1 } END { printf "%-32s %3d files %6d lines\n", room, files, lines }'
        for file in "$folder/$room"/*.[ch]*; do
            case $file in *.h | *.hpp) echo "header $number ${file##*/}" >>"$above" ;; esac
            sed -nE "s|$include\"([^\"]*)\".*|include $number $file \1|p" "$file" >>"$above"
        done
    done
    for file in "$folder"/*/*; do
        case " $* gloo " in
        *" $(basename "$(dirname "$file")") "*) ;;
        *) echo "homeless 0 $file" >>"$above" ;;
        esac
    done
    found=$(awk '
        $1 == "header" { room[$3] = $2 }
        $1 == "include" { n++; of[n] = $2; text[n] = $3 " includes " $4; header[n] = $4 }
        $1 == "homeless" { homeless = homeless $3 " is in a folder without a place in the order\n" }
        END {
            printf "%s", homeless
            for (i = 1; i <= n; i++)
                if (room[header[i]] + 0 > of[i] + 0) print text[i]
        }' "$above")
    : >"$above"
    judge "$folder" "$found"
}
above=$(mktemp "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -f "$above"' EXIT
rooms shim base memory tensors call model savers update step check
rooms examples/documents image cli draw data memory record report models run programs

for file in examples/plain_*.c examples/plain/*.c; do
    if ! $CC -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$file" ||
        grep -HnE "$include[<\"]memtrain/($memory|$over_torch)" "$file"; then
        echo "FAIL layers plain: $file needs more than C11 and the headers of libmemtrain"
        exit 1
    fi
done
echo "ok layers plain"

#!/bin/sh
# Only the shim, the example models, examples in C++, memtrain/torch.hpp and tests see libtorch; plain_c sees the core's
# public headers and C11 alone.
set -eu
CC=${CC:-cc}
found=$(find include libmemtrain shim examples tests -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null |
    grep -vE '^(shim|examples/models|tests)/|^examples/[^/]*\.cpp$|^include/memtrain/torch\.hpp$' |
    while IFS= read -r file; do
        grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"](torch|ATen|c10|caffe2)/' "$file" || true
    done)
if [ -n "$found" ]; then
    echo "$found"
    echo "FAIL layers: libtorch's headers are included outside the shim"
    exit 1
fi
echo "ok layers"
for file in examples/plain_*.c examples/plain/*.c; do
    if ! $CC -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only "$file" ||
        grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]memtrain/(torch|sim)' "$file"; then
        echo "FAIL layers plain: $file needs more than C11 and the headers of libmemtrain"
        exit 1
    fi
done
echo "ok layers plain"

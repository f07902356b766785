#!/bin/sh
# Only the shim, the example models, memtrain/torch.hpp and tests see libtorch.
set -eu
found=$(find include libmemtrain shim examples tests -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null |
    grep -vE '^(shim|examples/models|tests)/|^include/memtrain/torch\.hpp$' |
    while IFS= read -r file; do
        grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"](torch|ATen|c10|caffe2)/' "$file" || true
    done)
if [ -n "$found" ]; then
    echo "$found"
    echo "FAIL layers: libtorch's headers are included outside the shim"
    exit 1
fi
echo "ok layers"

#!/bin/sh
# Verifies the format of the sources with clang-format; --write rewrites them.
#
# Versions of clang-format differ in small things. The sources are formatted by version 14; what a
# later one would do otherwise is told, and is no failure.
set -eu
reference=14
format=${CLANG_FORMAT:-clang-format}
if ! command -v "$format" >/dev/null 2>&1; then
    echo "SKIP: format: no clang-format"
    exit 0
fi
version=$("$format" --version | sed 's/.*version \([0-9]*\).*/\1/')

sources() {
    find include libmemtrain libmemtrain_memory shim examples tests python/src -type f \
        \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.hpp' \) 2>/dev/null | LC_ALL=C sort
}

if [ -z "$(sources)" ]; then
    echo "SKIP: format: no sources"
    exit 0
fi
if [ "${1:-}" = --write ]; then
    sources | xargs "$format" -i
    exit 0
fi

differ=$(sources | while IFS= read -r file; do
    "$format" "$file" | cmp -s - "$file" || echo "$file"
done)
if [ -z "$differ" ]; then
    echo "ok format"
elif [ "$version" = $reference ]; then
    echo "$differ"
    echo "FAIL format: not as clang-format $reference writes them (make format does)"
    exit 1
else
    echo "SKIP: format: clang-format $version formats otherwise; the sources follow version $reference"
fi

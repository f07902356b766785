#!/bin/sh
# Prints the suites that `make check DEVICE=...` runs: those that ask which device is meant (suite_device and its
# neighbours in tests/support/suite.h), themselves or in a header that they include. The others name the CPU, or no
# device at all, so that a device would change nothing.
set -eu
cd "$(dirname "$0")/.."
# These include such a header too, and name the CPU.
on_cpu='check_(ex_doctor|mistral|snippets|recipe_snippets|shim_(arena|callbacks|dlpack|dry|follow|foreign|habits|large|map|metrics|resident|sim|trainer))'
words='suite_(device|on_|has_)'

# Files of the suites, suite.h apart, in which the pattern is found.
files_with() {
    grep -rlE "$1" tests --include='*.[ch]' --include='*.[ch]pp' | grep -v '^tests/support/suite\.h$' | sort
}

found=$(files_with "$words")
while :; do
    headers=$(printf '%s\n' "$found" | sed -n 's|.*/\([a-z_]*\)\.\(hp*\)$|\1\\.\2|p' | paste -s -d '|' -)
    more=$(files_with "$words|#include \"([a-z_]*/)*($headers)\"")
    [ "$more" != "$found" ] || break
    found=$more
done
printf '%s\n' "$found" | sed -n 's|.*/\(check_[a-z0-9_]*\)\.cp*$|\1|p' | grep -vxE "$on_cpu"

#!/bin/sh
# Prints how many compilers to run at once: one a core, as far as memory goes. A file that includes
# libtorch takes up to 1.2 GB.
set -eu
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
if [ -r /proc/meminfo ]; then
    free_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
else
    free_kib=$(($(sysctl -n hw.memsize 2>/dev/null || echo 4294967296) / 2048))
fi
jobs=$((${free_kib:-2097152} / 1300000))
[ "$jobs" -le "$cores" ] || jobs=$cores
[ "$jobs" -ge 1 ] || jobs=1
echo "$jobs"

#!/bin/sh
# The libraries from Python's ctypes, and tensors from and to NumPy: what tests/python/check_ctypes.py prints.
# A Python without NumPy gets one into build/numpy, once; where that cannot be, its tests are skipped.
set -eu
PYTHON=${PYTHON:-python3} LIB=${LIB:-build/lib}
if ! command -v "$PYTHON" >/dev/null 2>&1; then
    echo "SKIP: python: there is no $PYTHON"
    exit 0
fi

if ! "$PYTHON" -c 'import numpy' 2>/dev/null; then
    if [ ! -e build/numpy ] && "$PYTHON" -m pip --version >/dev/null 2>&1; then
        rm -rf build/numpy.part
        "$PYTHON" -m pip --disable-pip-version-check --retries 1 --timeout 10 install --quiet --no-deps \
            --only-binary=:all: --target build/numpy.part numpy >/dev/null 2>&1 &&
            mv build/numpy.part build/numpy || rm -rf build/numpy.part
    fi
    PYTHONPATH=$PWD/build/numpy${PYTHONPATH:+:$PYTHONPATH}
    export PYTHONPATH
fi
PYTHONDONTWRITEBYTECODE=1 exec "$PYTHON" tests/python/check_ctypes.py "$LIB"

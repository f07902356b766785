#!/bin/sh
# The libraries from Python's ctypes, tensors from and to NumPy, and in a process with Python's torch: what
# tests/python/check_*.py print.
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

stub=$(mktemp -d "${TMPDIR:-/tmp}/memtrain.XXXXXX")
trap 'rm -rf "$stub"' EXIT
SNIPPETS=$stub/snippets
sh setup/check_pages.sh --extract "$SNIPPETS"
export PYTHONDONTWRITEBYTECODE=1 SNIPPETS
failed=0
"$PYTHON" tests/python/check_ctypes.py "$LIB" || failed=1
"$PYTHON" tests/python/check_inside_torch.py "$LIB" || failed=1

# The same where Python has no torch: what tells that it is loaded is a library of that name.
case $(uname -s) in
Darwin) name=libtorch_python.dylib options=-dynamiclib ;;
*) name=libtorch_python.so options="-shared -fPIC -Wl,-soname,libtorch_python.so" ;;
esac
echo 'int nothing;' >"$stub/stub.c"
${CC:-cc} $options -o "$stub/$name" "$stub/stub.c"
"$PYTHON" tests/python/check_inside_torch.py "$LIB" "$stub/$name" || failed=1
exit $failed

#!/bin/sh
# The package memtrain (python/): a wheel built against Python's own torch, installed into build/python, and its tests.
# MT_TEST_SLOW=1 has every request of each step fail, PYTHON_TESTS="test_trainer test_memory" runs these alone. test_devices wants
# the test device, which make check builds, or make build/tests/libcard_cuda.so. A Python without torch gets the one in
# build/libtorch (setup/python_torch.sh), and a few suites alone. Skipped where its torch is of no version that is supported,
# or there is nothing to build with.
set -eu
PYTHON=${PYTHON:-python3} OUT=build/python

skip() {
    echo "SKIP: python package: $1"
    exit 0
}

command -v "$PYTHON" >/dev/null 2>&1 || skip "there is no $PYTHON"
# A path of one's own stays one's own when the folder changes.
PYTHON=$(command -v "$PYTHON")
case $PYTHON in
/*) ;;
*) PYTHON=$PWD/$PYTHON ;;
esac
# What Python compiles is kept, and not beside its source.
PYTHONPYCACHEPREFIX=$PWD/build/pycache
export PYTHONPYCACHEPREFIX
if ! "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
    settings=$(PYTHON=$PYTHON sh setup/python_torch.sh) || skip "${settings:-$PYTHON has no torch}"
    eval "$settings"
    PYTHON_TESTS=${PYTHON_TESTS:-test_bad_input test_check test_trainer}
fi
version=$("$PYTHON" -c 'import torch; print(torch.__version__)' 2>/dev/null) ||
    skip "the torch of $PYTHON cannot be loaded"
minor=$(echo "$version" | sed -n 's/^\(2\.[0-9]*\)\..*/\1/p')
sed -n 's/^\(2\.[0-9]*\) .*/\1/p' setup/libtorch.txt | grep -qx "$minor" ||
    skip "torch $version is none of those that are supported (setup/libtorch.txt)"
"$PYTHON" -c 'import setuptools, pip' 2>/dev/null || skip "$PYTHON has no pip, or no setuptools"

# make wheel, and what it made is installed.
rm -rf $OUT.new $OUT.wheel
mkdir -p build
if ! { CFLAGS="${CFLAGS:-} -Werror" CXXFLAGS="${CXXFLAGS:-} -Werror" ${MAKE:-make} --no-print-directory wheel \
    PYTHON="$PYTHON" WHEEL_DIR=$OUT.wheel && "$PYTHON" -m pip --disable-pip-version-check install --quiet --no-index \
    --no-deps --target $OUT.new $OUT.wheel/memtrain-*.whl; } >build/python.log 2>&1; then
    tail -n 30 build/python.log
    echo "FAIL python package: no wheel of it can be built against torch $version, or installed (build/python.log)"
    exit 1
fi
rm -rf $OUT
mv $OUT.new $OUT

# Threads of OpenMP's that spin wait for each other where other programs run.
OMP_WAIT_POLICY=PASSIVE PYTHONPATH=$PWD/$OUT${PYTHONPATH:+:$PYTHONPATH}
export OMP_WAIT_POLICY PYTHONPATH
cd python/tests
failed=0
for test in ${PYTHON_TESTS:-$(ls test_*.py | sed 's/\.py$//')}; do
    if "$PYTHON" -m unittest "$test" >"../../build/python_$test.log" 2>&1; then
        echo "ok python package $test (torch $version): $(grep '^Ran' "../../build/python_$test.log")"
    else
        cat "../../build/python_$test.log"
        echo "FAIL python package $test (torch $version)"
        failed=1
    fi
done
exit $failed

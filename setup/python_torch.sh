#!/bin/sh
# Makes the libtorch in build/libtorch the torch of PYTHON, for the tests of the package, and prints what the environment must
# have for it: eval "$(sh setup/python_torch.sh)". Where it cannot be, the status is 1 and the line says why.
#
# That wheel is a Python package, for one version of Python. Beside it import needs packages of Python's, which are fetched
# into build/python-torch (setup/python_torch.txt), and libraries of CUDA, which would be 2.4 GB more. Nothing on the CPU calls
# these, so libraries of the same names take their place: whoever calls one of their functions is ended by a trap.
set -eu
PYTHON=${PYTHON:-python3} torch=build/libtorch own=build/python-torch log=build/python-torch.log

stop() {
    echo "$1"
    exit 1
}

ask() { "$PYTHON" -c "import sysconfig; print(sysconfig.$1)" 2>/dev/null || true; }

[ -d "$torch/torch/lib" ] || stop "$PYTHON has no torch"
[ -e "$torch/torch/_C$(ask 'get_config_var("EXT_SUFFIX")')" ] ||
    stop "$PYTHON has no torch, and the one in build/libtorch is for another Python"
[ -e "$(ask 'get_path("include")')/Python.h" ] || stop "$PYTHON has no torch, nor Python.h to build against that in build/libtorch"
"$PYTHON" -m pip --version >/dev/null 2>&1 || stop "$PYTHON has neither torch nor pip"

# needed: the libraries of CUDA that are not there, by the names that the loader looks for.
needed() {
    for file in "$torch"/torch/lib/*.so; do
        readelf -d "$file"
    done | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nccl\|nv\).*\)\]/\1/p' | sort -u | while read -r name; do
        ls "$torch"/nvidia/*/lib/"$name" >/dev/null 2>&1 || echo "$name"
    done
}

# functions: FUNCTION or FUNCTION@VERSION of what those libraries have, for each that libtorch names.
functions() {
    for file in "$torch"/torch/lib/lib*.so; do
        nm -D --undefined-only "$file"
    done | awk '$2 ~ /^(cu|nccl|nv)/ && $2 !~ /@lib(cudart|cupti)/ { print $2 }' | sort -u
}

make_stand_ins() {
    mkdir "$1"
    needed >"$1/needed"
    [ -s "$1/needed" ] || return 0
    functions >"$1/functions"
    awk -F @ 'NF > 1 { of[$NF] = of[$NF] " " $1 ";" } END { for (name in of) print name " {" of[name] " };" }' \
        "$1/functions" >"$1/versions"
    echo 'void nothing(void) { __builtin_trap(); }' >"$1/nothing.c"
    sed 's/@.*//; s/.*/-Wl,--defsym=&=nothing/' "$1/functions" >"$1/options"
    ${CC:-cc} -shared -fPIC -o "$1/libnothing.so" "$1/nothing.c" "-Wl,--version-script=$1/versions" "@$1/options"
    while read -r name; do
        ln -s libnothing.so "$1/$name"
    done <"$1/needed"
}

if [ ! -e "$own" ]; then
    rm -rf "$own.part"
    "$PYTHON" -m pip --disable-pip-version-check --retries 1 --timeout 10 install --quiet --no-deps --no-compile \
        --require-hashes --only-binary=:all: --target "$own.part" -r setup/python_torch.txt >"$log" 2>&1 ||
        stop "$PYTHON has no torch, and what that in build/libtorch needs cannot be fetched (build/python-torch.log)"
    make_stand_ins "$own.part/lib" >>"$log" 2>&1 || true # what is missing, import will miss
    mv "$own.part" "$own"
fi

PYTHONPATH=$PWD/$torch:$PWD/$own${PYTHONPATH:+:$PYTHONPATH} LD_LIBRARY_PATH=$PWD/$own/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH LD_LIBRARY_PATH
"$PYTHON" -c 'import torch' >>"$log" 2>&1 || {
    rm -rf "$own"
    stop "$PYTHON has no torch, and that in build/libtorch cannot be loaded (build/python-torch.log)"
}
echo "PYTHONPATH='$PYTHONPATH' LD_LIBRARY_PATH='$LD_LIBRARY_PATH'; export PYTHONPATH LD_LIBRARY_PATH"

#!/bin/sh
# What accelerate, transformers and Lightning do with a batch that does not fit, beside memtrain: a table.
# For each network of NETWORKS="classifier:300MiB ..." (kinds.py) all tensors of the process may take so much.
# PEERS="memtrain lightning" runs these alone. The peers come from PyPI into build/peers, beside the torch of PYTHON;
# build/python has the package (make check-python).
set -eu
PYTHON=${PYTHON:-python3} VENV=build/peers
[ -e build/python/memtrain ] || {
    echo "bench-peers: build/python has no memtrain: run make check-python first" >&2
    exit 1
}
site=$("$PYTHON" -c 'import sysconfig, torch; print(sysconfig.get_path("purelib"))')

if [ ! -e $VENV/complete ]; then
    echo "bench-peers: fetching accelerate, transformers and lightning from PyPI, about 40 MB; $VENV will hold 150 MB at most" >&2
    rm -rf $VENV
    "$PYTHON" -m venv $VENV
    echo "$site" >"$($VENV/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
    $VENV/bin/python -m pip --disable-pip-version-check install --quiet accelerate transformers lightning
    touch $VENV/complete
fi

OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/build/python
export OMP_WAIT_POLICY PYTHONDONTWRITEBYTECODE PYTHONPATH
$VENV/bin/python tests/bench/peers/peers.py --versions
for network in ${NETWORKS:-classifier:300MiB texts:200MiB lora:160MiB}; do
    echo
    echo "| ${network%:*}, ${network#*:} | end | samples an update | refused requests | samples in vain | processor seconds | seconds |"
    echo "|---|---|---|---|---|---|---|"
    for peer in ${PEERS:-plain accelerate accelerate-accumulating transformers lightning memtrain}; do
        $VENV/bin/python tests/bench/peers/peers.py "$peer" "${network%:*}" "${network#*:}" 2>build/peers.log || {
            cat build/peers.log >&2
            echo "bench-peers: $peer failed" >&2
        }
    done
done

#!/bin/sh
# What accelerate, transformers and Lightning do with a batch that does not fit, beside memtrain: a table.
# For each network of NETWORKS="classifier:300:32:128 ..." (kinds.py) all tensors of the process may take 300 MiB, in batches of
# 32, 128 samples in all. Each row is a process in a control group of 800 MiB more. PEERS="memtrain lightning" runs these alone.
# OMP_NUM_THREADS=1 makes it one thread, and the seconds of the processor comparable on a machine that others use. The peers
# come from PyPI into build/peers, beside the torch of PYTHON; build/python has the package (make check-python).
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
for network in ${NETWORKS:-classifier:300:32:128 texts:240:64:384 lora:160:32:128}; do
    IFS=: read -r name limit BATCH SAMPLES <<EOF
$network
EOF
    export BATCH SAMPLES
    echo
    echo "$name: $SAMPLES samples, batches of $BATCH, $limit MiB"
    echo
    echo "| loop | end | samples an update | refused | in vain | loss | processor seconds | seconds | highest, MiB |"
    echo "|---|---|---|---|---|---|---|---|---|"
    for peer in ${PEERS:-whole plain half quarter eighth accelerate accelerate-accumulating transformers lightning memtrain}; do
        room=$((limit + 800))
        [ "$peer" != whole ] || room=65536
        $VENV/bin/python tests/bench/peers/in_group.py $room $VENV/bin/python tests/bench/peers/peers.py "$peer" "$name" \
            "${limit}MiB" 2>build/peers.log || {
            cat build/peers.log >&2
            echo "bench-peers: $peer failed" >&2
        }
    done
done

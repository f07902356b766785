#!/bin/sh
# Installs headers, libraries and pkg-config files below $DESTDIR$PREFIX; --remove takes them away.
set -eu
root=${DESTDIR:-}$PREFIX

if [ "${1:-}" = --remove ]; then
    rm -rf "$root/include/memtrain"
    rm -f "$root"/lib/libmemtrain.* "$root"/lib/libmemtrain_torch.*
    rm -f "$root/lib/pkgconfig/memtrain.pc" "$root/lib/pkgconfig/memtrain-torch.pc"
    exit 0
fi

mkdir -p "$root/include/memtrain" "$root/lib/pkgconfig"
cp include/memtrain/* "$root/include/memtrain/"
cp -R -P "$LIB"/libmemtrain* "$root/lib/"

cat >"$root/lib/pkgconfig/memtrain.pc" <<PC
prefix=$PREFIX
Name: memtrain
Description: Trains neural networks inside a memory budget
Version: $VERSION
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -lmemtrain
Libs.private: -lm
PC

flags=
for dir in $TORCH_INCLUDE; do
    flags="$flags -isystem $dir"
done
cat >"$root/lib/pkgconfig/memtrain-torch.pc" <<PC
prefix=$PREFIX
torch_lib=$TORCH_LIB
# memtrain/torch.hpp needs libtorch's headers:
torch_cflags=$flags
Name: memtrain-torch
Description: memtrain's backend over libtorch
Version: $VERSION
Requires: memtrain
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -lmemtrain_torch
Libs.private: -L\${torch_lib} -ltorch_cpu -lc10 -lstdc++
PC

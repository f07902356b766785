#!/bin/sh
# Packs the suites of setup/card.sh and what they need as build/card.tar.gz: libraries, suites, programs, pictures, the script.
# Without symbols, so that it is small.
set -eu
cd "$(dirname "$0")/.."
folder=build/card
rm -rf "$folder"
mkdir -p "$folder/setup" "$folder/build/tests" "$folder/build/lib" "$folder/build/examples" "$folder/examples"
cp setup/card.sh "$folder/setup/"
cp -R examples/data "$folder/examples/"
cp -P build/lib/libmemtrain*.so* "$folder/build/lib/"
cp "$@" "$folder/build/tests/"
cp setup/documents.sh setup/documents_card.txt "$folder/setup/"
for program in doctor food101 smartcash prsmed car_clip profoct; do
    cp "build/examples/$program" "$folder/build/examples/"
done
mkdir -p "$folder/tests/golden"
cp tests/golden/*.bin "$folder/tests/golden/"
# Libraries that such a machine lacks.
ldd "$1" build/examples/food101 | sed -nE 's#.* => (/[^ ]*lib(check|subunit|jpeg|png16|jansson)\.so[^ ]*) .*#\1#p' |
    sort -u | while read -r library; do
    cp -L "$library" "$folder/build/lib/"
done
find "$folder/build" -type f -exec strip {} + 2>/dev/null || :
tar czf build/card.tar.gz -C build card
echo "build/card.tar.gz: $(wc -c <build/card.tar.gz | awk '{ printf "%.1f", $1 / 1048576 }') MiB"

#!/bin/sh
# Fetches the pictures that those in examples/data were taken from: the package openclipart-png of Debian
# and Ubuntu (130 MB, 8,100 PNGs in folders by subject, public domain). It is installed as root (or with
# sudo that asks for no password); elsewhere the command is printed. Then its folders that have at least 20
# pictures are linked in build/data/classes, one folder of class folders, and it is said what --data takes.
set -eu
package=openclipart-png
folder=${OPENCLIPART:-/usr/share/openclipart/png}
classes=build/data/classes

stop() {
    for line in "$@"; do
        echo "data: $line" >&2
    done
    exit 1
}

install() {
    command="apt-get install -y --no-install-recommends $package"
    command -v apt-get >/dev/null 2>&1 ||
        stop "$package is a package of Debian and Ubuntu, and there is no apt-get here" \
            "its archive can be unpacked on any system; --data takes a folder of it" \
            "all programs run without it, on examples/data"
    if [ "$(id -u)" -eq 0 ]; then
        run="env DEBIAN_FRONTEND=noninteractive"
    elif sudo -n true 2>/dev/null; then
        run="sudo -n env DEBIAN_FRONTEND=noninteractive"
    else
        stop "install with:  sudo $command"
    fi
    echo "data: $command"
    $run $command >/dev/null 2>&1 || { $run apt-get update -q && $run $command; } ||
        stop "sudo apt-get update && sudo $command"
}

link_classes() {
    rm -rf "$classes"
    mkdir -p "$classes"
    find "$folder" -type d | while IFS= read -r one; do
        count=$(find "$one" -maxdepth 1 -name '*.png' | wc -l)
        [ "$count" -lt 20 ] || ln -s "$one" "$classes/$(echo "${one#"$folder"/}" | tr '/ ' '__')"
    done
}

[ -d "$folder" ] || install
[ -d "$folder" ] || stop "$package is installed, but there is no $folder"
link_classes
cat <<END
data: $(find "$folder" -name '*.png' | wc -l | tr -d ' ') pictures in $folder,
data: $(find "$classes" -type l | wc -l | tr -d ' ') folders of them linked in $classes; for instance
  build/examples/food101 --data $folder/food
  build/examples/profoct --data $classes
END

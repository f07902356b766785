#!/bin/sh
# Fetches the pictures that those in examples/data were taken from: the package openclipart-png of Debian
# and Ubuntu (130 MB, 8,100 PNGs in folders by subject, public domain). It is installed as root (or with
# sudo that asks for no password); elsewhere the command is printed. Then it says which folder of it each
# program takes.
set -eu
package=openclipart-png
folder=/usr/share/openclipart/png

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

[ -d "$folder" ] || install
[ -d "$folder" ] || stop "$package is installed, but there is no $folder"
cat <<END
data: $(find "$folder" -name '*.png' | wc -l | tr -d ' ') pictures in $folder; for instance
  build/examples/food101 --data $folder/food
  build/examples/profoct --data $folder/animals
END

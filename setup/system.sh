#!/bin/sh
# Looks for compilers and packages, and installs what is missing where that needs no question:
# as root (or with sudo that asks for no password) on apt systems, with brew on macOS. Elsewhere
# it prints the command. What was found goes into STAMP.
#
#     sh setup/system.sh all|core|cc STAMP   (core: what libmemtrain and its tests need; cc: no tests)
set -eu
what=$1 stamp=$2
CC=${CC:-cc} CXX=${CXX:-c++}
os=$(uname -s)

# The wanted things are named by what is looked for: a command, or a module of pkg-config.
wanted="$CC"
[ "$what" = cc ] || wanted="$wanted pkg-config check jansson"
if [ "$what" = all ]; then
    wanted="$wanted $CXX libjpeg libpng"
    [ "$os" = Darwin ] || wanted="$wanted libcrypto"
fi

present() {
    case $1 in
    check | libjpeg | libpng | jansson | libcrypto) pkg-config --exists "$1" 2>/dev/null ;;
    *) command -v "${1%% *}" >/dev/null 2>&1 ;;
    esac
}

look() {
    missing=
    for thing in $wanted; do
        case $thing in
        -*) continue ;; # CC="ccache cc -m64": options are not looked for
        esac
        present "$thing" || missing="$missing $thing"
    done
}

# $(package SYSTEM THING): what the package is called there.
package() {
    case $1:$2 in
    apt:pkg-config) echo pkg-config ;;
    apt:check) echo check ;;
    apt:libjpeg) echo libjpeg-dev ;;
    apt:libpng) echo libpng-dev ;;
    apt:jansson) echo libjansson-dev ;;
    apt:libcrypto) echo libssl-dev ;;
    apt:cc) echo gcc libc6-dev ;;
    apt:c++) echo g++ ;;
    dnf:pkg-config) echo pkgconf-pkg-config ;;
    dnf:check) echo check-devel ;;
    dnf:libjpeg) echo libjpeg-turbo-devel ;;
    dnf:libpng) echo libpng-devel ;;
    dnf:jansson) echo jansson-devel ;;
    dnf:libcrypto) echo openssl-devel ;;
    dnf:cc) echo gcc ;;
    dnf:c++) echo gcc-c++ ;;
    pacman:pkg-config) echo pkgconf ;;
    pacman:libjpeg) echo libjpeg-turbo ;;
    pacman:libcrypto) echo openssl ;;
    pacman:cc | pacman:c++) echo gcc ;;
    brew:pkg-config) echo pkgconf ;;
    brew:libjpeg) echo jpeg-turbo ;;
    brew:cc | brew:c++) ;; # xcode-select --install brings them
    *) echo "$2" ;;
    esac
}

packages() {
    names=
    for thing in $missing; do
        names="$names $(package "$1" "$thing")"
    done
    echo $names # unquoted: one blank between two names
}

stop() {
    echo "setup: missing:$missing" >&2
    if [ $# -gt 0 ]; then
        echo "setup: install with:  $*" >&2
        echo "setup: then run make again" >&2
    fi
    exit 1
}

apt_install() {
    command="apt-get install -y --no-install-recommends $(packages apt)"
    if [ "$(id -u)" -eq 0 ]; then
        as_root="env"
    elif sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        stop "sudo $command"
    fi
    echo "setup: missing:$missing"
    echo "setup: $command"
    run="$as_root DEBIAN_FRONTEND=noninteractive"
    # The lists may be absent or old: only then are they fetched.
    $run $command >/dev/null 2>&1 || { $run apt-get update -q && $run $command; } ||
        stop "sudo apt-get update && sudo $command"
}

look
if [ -n "$missing" ]; then
    if [ "$os" = Darwin ]; then
        case "$missing " in
        *" $CC "* | *" $CXX "*) stop "xcode-select --install" ;;
        esac
        command -v brew >/dev/null 2>&1 || stop "brew install $(packages brew)"
        echo "setup: brew install $(packages brew)"
        brew install $(packages brew) || stop "brew install $(packages brew)"
    elif command -v apt-get >/dev/null 2>&1; then
        apt_install
    elif command -v dnf >/dev/null 2>&1; then
        stop "sudo dnf install $(packages dnf)"
    elif command -v pacman >/dev/null 2>&1; then
        stop "sudo pacman -S $(packages pacman)"
    else
        stop "your system's package manager (check, libjpeg, libpng, jansson, openssl with headers)"
    fi
    look
    [ -z "$missing" ] || stop
fi

mkdir -p "$(dirname "$stamp")"
{
    command -v "${CC%% *}"
    for module in $wanted; do
        case $module in
        check | libjpeg | libpng | jansson | libcrypto)
            echo "$module $(pkg-config --modversion "$module")"
            ;;
        esac
    done
} >"$stamp"

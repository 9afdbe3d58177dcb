#!/bin/sh
# Builds shardinit and installs it.
#
#   sh src/install.sh [--prefix DIR]      default: /usr/local
#
# On Debian and Ubuntu the packages it needs are installed first; those that
# are there already are left alone, and then no network is needed.
set -eu

# Everything is linked dynamically, and not as SHARDINIT_STATIC would have it: Debian has no archive of
# Highway, and those of GMP, MPFR and yaml-cpp are not position-independent, as libshardinit must be.
# src/wheel.sh builds these four for wheels, which takes more packages and minutes.
packages='cmake g++ libcli11-dev libcurl4-openssl-dev libdeflate-dev libfmt-dev libhdf5-dev libhwy-dev
  libmpfr-dev libssl-dev libyaml-cpp-dev libzstd-dev ninja-build nlohmann-json3-dev pkg-config'

prefix=/usr/local
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -ge 2 ] || { echo 'install.sh: --prefix needs a folder' >&2; exit 2; }
              prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#--prefix=}; shift ;;
    -h|--help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install.sh: unknown argument \`$1\`; usage: sh src/install.sh [--prefix DIR]" >&2; exit 2 ;;
  esac
done
case $prefix in
  '') echo 'install.sh: --prefix needs a folder' >&2; exit 2 ;;
  /*) ;;
  *) prefix=$PWD/$prefix ;;
esac

cd "$(dirname "$0")/.."
build=build/release
. src/steps.sh

InstallPackages $packages

Step configure cmake --preset default -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX="$prefix"
Step build cmake --build "$build" --parallel "$(nproc)"

# Root's help only where the folder itself cannot be written.
existing=$prefix
while [ ! -e "$existing" ]; do existing=$(dirname "$existing"); done
as=
[ -w "$existing" ] || [ "$(id -u)" -eq 0 ] || as=AsRoot
Step install $as cmake --install "$build"

# Where the loader looks, it knows a new library when its cache does.
PATH=$PATH:/usr/sbin:/sbin
case $prefix in
  /usr|/usr/local) [ "$(id -u)" -ne 0 ] && [ -z "$as" ] || Step 'loader cache' $as ldconfig ;;
esac

echo "installed $prefix/bin/shardinit"
case :$PATH: in
  *":$prefix/bin:"*) ;;
  *) echo "note: $prefix/bin is not in PATH" ;;
esac

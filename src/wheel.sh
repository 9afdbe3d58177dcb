#!/bin/sh
# Writes the wheel of shardinit for one kind of machine: program, libshardinit, Python package,
# configs and man pages, which need nothing but glibc 2.17 and Python.
#
#   sh src/wheel.sh DIR [x86_64|aarch64]      default: the kind of this machine
#
# This runs on Debian 12. zig's clang compiles for either kind of machine, against the oldest glibc of
# `manylinux2014`. Debian's archives of C libraries are linked as they are; what Debian has only as
# shared libraries, or not position-independent, is built from Debian's sources. All of it stays in
# build/wheel, so that a second run compiles only what changed.
set -eu

usage='usage: sh src/wheel.sh DIR [x86_64|aarch64]'
here=$(uname -m)
out= arch=$here
case ${1:-} in
  -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  ''|-*) echo "wheel.sh: where should the wheel go? $usage" >&2; exit 2 ;;
  *) out=$1 ;;
esac
[ $# -le 2 ] || { echo "wheel.sh: too many arguments; $usage" >&2; exit 2; }
[ $# -lt 2 ] || arch=$2
case $arch in
  x86_64) debian=amd64 ;;
  aarch64) debian=arm64 ;;
  *) echo "wheel.sh: there is no wheel for \`$arch\`; $usage" >&2; exit 2 ;;
esac
mkdir -p "$out"
out=$(cd "$out" && pwd)

cd "$(dirname "$0")/.."
. src/steps.sh
debian_release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
[ "$debian_release" = bookworm ] || {
  echo "wheel.sh: this system is \`${debian_release:-unknown}\`; the wheel is made of packages of Debian 12" >&2
  echo '  hint: run it in a container of debian:12; \`pip install ./src/python\` builds for this system' >&2
  exit 2
}
root=$PWD/build/wheel/$arch tools=$PWD/build/wheel/tools
triplet=$arch-linux-gnu
jobs=$(nproc)

# For both kinds of machine at once, too: the first one installs packages and tools.
mkdir -p build/wheel
exec 9> build/wheel/lock && flock 9
InstallPackages ca-certificates clang cmake dpkg-dev g++ m4 make ninja-build python3 python3-venv xz-utils \
  $([ "$arch" = "$here" ] || echo qemu-user-static)

requirements=src/wheel-requirements.txt
pins=$(cat "$requirements")

# Tells whether what FILE stands for was made by these versions.
IsComplete() { [ "$(cat "$1" 2>/dev/null)" = "$pins" ]; }

Tools() {
  ! IsComplete "$tools/complete" || return 0
  rm -rf "$tools" && python3 -m venv "$tools" &&
  "$tools/bin/pip" install --disable-pip-version-check --require-hashes -r "$requirements" &&
  echo "$pins" > "$tools/complete"
}

# Of libcurl only the headers are taken: it is loaded where it is needed.
debian_packages='libaec-dev libcli11-dev libcurl4-openssl-dev libdeflate-dev libfmt-dev libfmt9 libhdf5-dev libssl-dev libzstd-dev nlohmann-json3-dev zlib1g-dev'

# Debian's packages for that kind of machine, unpacked in $root/debian without what they depend on:
# headers of another libc must not be among them. And the sources, in $root/source.
Packages() {
  [ "$(cat "$root/packages-complete" 2>/dev/null)" != "$debian_packages" ] || return 0
  rm -rf "$root" && mkdir -p "$root/debian" "$root/source" "$root/packages" || return
  DebianApt "$root/apt" "$debian" || return
  (cd "$root/packages" && $apt download $debian_packages) || return
  for package in "$root"/packages/*.deb; do
    dpkg-deb -x "$package" "$root/debian" || return
  done
  # The libc of that kind of machine, for a program that runs here under qemu.
  [ "$arch" = "$here" ] || {
    mkdir "$root/libc" && (cd "$root/libc" && $apt download libc6 && dpkg-deb -x libc6_*.deb .)
  } || return
  (cd "$root/source" && $apt source gmp highway mpfr4 yaml-cpp) || return
  for name in gmp highway mpfr4 yaml-cpp; do
    ln -s "$(cd "$root/source/" && ls -d "${name%4}"*/ | head -n 1)" "$root/source/$name" || return
  done
  rm -r "$root/apt" "$root/packages" && echo "$debian_packages" > "$root/packages-complete"
}

# Writes FILE from standard input unless it says so already: CMake and ccache look at its time.
Write() {
  cat > "$1.new"
  if cmp -s "$1.new" "$1"; then rm "$1.new"; else mv "$1.new" "$1"; fi
}

# Writes bin/NAME: zig's TOOL with options.
Zig() {
  name=$1; shift
  printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$tools"/lib/python3*/site-packages/ziglang/zig "$*" |
    Write "$root/bin/$name" && chmod +x "$root/bin/$name"
}

# zig under the names of a compiler and its tools, and a description of them for CMake. For what is linked
# without an optimizer, as configure does, zig would first compile its own libraries in that way too.
Compiler() {
  mkdir -p "$root/bin"
  Zig cc cc -O2 -target "$arch-linux-gnu.2.17"
  Zig c++ c++ -O2 -target "$arch-linux-gnu.2.17"
  Zig ar ar
  Zig ranlib ranlib
  Zig cc-here cc -O2
  emulator=/usr/bin/env
  [ "$arch" = "$here" ] || emulator="/usr/bin/qemu-$arch-static;-L;$root/libc"
  Write "$root/zig.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $arch)
set(CMAKE_C_COMPILER $root/bin/cc)
set(CMAKE_CXX_COMPILER $root/bin/c++)
set(CMAKE_AR $root/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB $root/bin/ranlib CACHE FILEPATH "")
set(CMAKE_C_FLAGS_INIT "-g0 -ffile-prefix-map=$PWD/=")
set(CMAKE_CXX_FLAGS_INIT "-g0 -ffile-prefix-map=$PWD/= -U_LIBCPP_HARDENING_MODE -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST")
set(CMAKE_LIBRARY_ARCHITECTURE $triplet)
set(CMAKE_FIND_ROOT_PATH $root/built $root/debian)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
include_directories(SYSTEM $root/built/include $root/debian/usr/include $root/debian/usr/include/$triplet)
set(CMAKE_CROSSCOMPILING_EMULATOR "$emulator")
END
}

# Configures and makes a library with OPTIONS for its configure, without its rules that make that and
# manuals again.
Autotools() {
  name=$1 options=$2; shift 2
  mkdir -p "$root/build/$name" && cd "$root/build/$name" &&
  "$root/source/$name/configure" --prefix="$root/built" --host=$arch-pc-linux-gnu --disable-shared --with-pic \
    --disable-float128 $options CC="$root/bin/cc" CC_FOR_BUILD="$root/bin/cc-here" \
    AR="$root/bin/ar" RANLIB="$root/bin/ranlib" NM=nm \
    CFLAGS="-O2 -fPIC -g0 -ffile-prefix-map=$root/=" CPPFLAGS="-I$root/built/include" LDFLAGS="-L$root/built/lib" &&
  make -j "$jobs" ACLOCAL=: AUTOCONF=: AUTOMAKE=: AUTOHEADER=: MAKEINFO=: "$@"
}

Gmp() {
  mkdir -p "$root/source/gmp/doc" && : > "$root/source/gmp/doc/Makefile.in" &&  # Debian leaves it out.
  (Autotools gmp '' SUBDIRS='mpn mpz mpq mpf printf scanf rand') &&
  mkdir -p "$root/built/include" "$root/built/lib" &&
  cp "$root/build/gmp/gmp.h" "$root/built/include/" && cp "$root/build/gmp/.libs/libgmp.a" "$root/built/lib/"
}

# Where configure cannot run what it compiled, it leaves out that each thread has its own range and caches.
Mpfr() {
  (Autotools mpfr4 --enable-thread-safe SUBDIRS=src) &&
  cp "$root/source/mpfr4/src/mpfr.h" "$root/built/include/" &&
  cp "$root/build/mpfr4/src/.libs/libmpfr.a" "$root/built/lib/"
}

CMakeLibrary() {
  name=$1; shift
  rm -rf "$root/build/$name" &&
  cmake -S "$root/source/$name" -B "$root/build/$name" -G Ninja --toolchain "$root/zig.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$root/built" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF "$@" &&
  cmake --build "$root/build/$name" --parallel "$jobs" && cmake --install "$root/build/$name"
}

# The scripts that configure GMP and MPFR take most of the time and one core: the rest is built beside them.
Libraries() {
  ! IsComplete "$root/libraries-complete" || return 0
  rm -rf "$root/build" "$root/built" || return
  { Gmp && Mpfr; } & numbers=$!
  CMakeLibrary yaml-cpp -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF -DYAML_CPP_BUILD_CONTRIB=OFF \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 &&
  CMakeLibrary highway -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
  others=$?
  wait "$numbers" && [ "$others" -eq 0 ] && echo "$pins" > "$root/libraries-complete"
}

# Libraries that are linked in, NAME:PACKAGE: Debian's archives, and those that are made from Debian's sources.
archives='HDF5:libhdf5-dev libaec:libaec-dev zlib:zlib1g-dev OpenSSL:libssl-dev libdeflate:libdeflate-dev
  zstd:libzstd-dev fmt:libfmt-dev nlohmann-json:nlohmann-json3-dev CLI11:libcli11-dev'
sources='GMP:gmp MPFR:mpfr4 Highway:highway yaml-cpp:yaml-cpp'

# Collects the texts that src/python/licenses/NOTICE promises.
Licences() {
  rm -rf "$root/licences" && mkdir "$root/licences" &&
  cp /usr/share/common-licenses/LGPL-3 /usr/share/common-licenses/GPL-3 "$root/licences/" || return
  for name in $archives; do
    cp "$root/debian/usr/share/doc/${name#*:}/copyright" "$root/licences/${name%:*}" || return
  done
  for name in $sources; do
    cp "$root/source/${name#*:}/debian/copyright" "$root/licences/${name%:*}" || return
  done
  cp "$tools"/lib/python3*/site-packages/ziglang/lib/libcxx/LICENSE.TXT "$root/licences/libc++"
}

# Writes the first line of a Debian changelog, `SOURCE (VERSION) …`, behind NAME.
Origin() {
  [ -f "$2" ] || { echo "wheel.sh: there is no $2, which says the version of $1" >&2; return 1; }
  printf '%s %s\n' "$1" "$(if [ "${2%.gz}" = "$2" ]; then cat "$2"; else zcat "$2"; fi | head -n 1)"
}

# Writes what is linked in, with versions and where they are from, as CycloneDX has it.
BillOfMaterials() {
  mkdir -p "$root/sboms" && : > "$root/origins" || return
  for name in $archives; do
    Origin "${name%:*}" "$root/debian/usr/share/doc/${name#*:}/changelog.Debian.gz" >> "$root/origins" || return
  done
  for name in $sources; do
    Origin "${name%:*}" "$root/source/${name#*:}/debian/changelog" >> "$root/origins" || return
  done
  "$tools/bin/python" src/bill_of_materials.py "$root/origins" > "$root/sboms/shardinit.cdx.json"
}

Wheel() {
  rm -rf "$root/wheel" && mkdir "$root/wheel" &&
  CMAKE_TOOLCHAIN_FILE="$root/zig.cmake" SHARDINIT_STATIC=ON SHARDINIT_LICENCES="$root/licences" \
    SHARDINIT_SBOMS="$root/sboms" CMAKE_BUILD_PARALLEL_LEVEL="$jobs" \
    "$tools/bin/pip" wheel --disable-pip-version-check --no-build-isolation --no-deps -w "$root/wheel" \
    -C build-dir="$root/build/shardinit" src/python &&
  "$tools/bin/python" -m wheel tags --remove --platform-tag "linux_$arch" "$root"/wheel/*.whl
}

# Looks at every symbol, and names the wheel for the oldest systems that have all of them: those of glibc
# 2.17, or there is no such file.
Repair() {
  rm -rf "$root/named" && PATH=$tools/bin:$PATH "$tools/bin/python" -m auditwheel repair --plat auto \
    -w "$root/named" "$root"/wheel/*.whl &&
  mv "$root/named"/shardinit-*.manylinux_2_17_"$arch".whl "$out"
}

# The times in a wheel are that of the commit, so that one made again has the same bytes.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1577836800)}"
export ZIG_GLOBAL_CACHE_DIR="$PWD/build/wheel/zig" ZIG_LOCAL_CACHE_DIR="$PWD/build/wheel/zig"
step_hint="the tools come from the registry that pip uses; $requirements has their versions and digests"
Step 'tools' Tools
exec 9>&-
step_hint='packages and sources come from where /etc/apt/sources.list.d says, also those for other machines'
Step "packages for $arch" Packages
Compiler
step_hint="remove build/wheel/$arch, and the next run begins anew"
Step "libraries for $arch" Libraries
Step "licences for $arch" Licences
Step "bill of materials for $arch" BillOfMaterials
Step "wheel for $arch" Wheel
step_hint='a symbol or library that the log names is newer than glibc 2.17: the program must do without it'
Step "check of the wheel for $arch" Repair
ls "$out"/shardinit-*"$arch".whl

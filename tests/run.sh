#!/bin/sh
# Everything that CI checks, from a bare Debian system:
#
#   sh tests/run.sh              all phases below but `fast` and `record`, one after another
#   sh tests/run.sh PHASE…       these alone; each needs `packages` once, and what it names
#   sh tests/run.sh --list       the phases
#
# The last line counts the tests of all phases: `N passed, N failed`.
#
#   packages   packages of Debian, and of Python in build/venv and build/moto
#   format     clang-format agrees with every file of C++
#   build      the program, the library and the tests, in build/release
#   unit       the unit tests (needs build)
#   fast       what most mistakes break: the unit tests and the quick command tests (needs build)
#   asan       a build with clang without its optimizer but for the kernels, with the sanitizers of addresses, of leaks
#              and of undefined behaviour, its unit tests, and command tests of what reads input
#   tsan       a build with the sanitizer of threads, and its unit tests of threads; `commands` runs more with it
#   pip        `pip install` of this clone, of what `build` compiled
#   aarch64    a build for aarch64, which runs here under qemu
#   wheel      the wheels for x86_64 and aarch64, and bare systems of Debian to install one in
#   commands   all command tests (needs build; compares with the builds named before it)
#   record     writes what the commands print now to golden/ (needs build); review it by `git diff golden`
set -eu
cd "$(dirname "$0")/.."
. src/steps.sh

all='packages format build unit asan tsan pip aarch64 wheel commands'
[ "${1:-}" != --list ] || { sed -n 's/^#   \([a-zO0-9]*   .*\)/\1/p' tests/run.sh; exit; }
for phase in "$@"; do
  case " $all fast record " in *" $phase "*) ;;
    *) echo "run.sh: there is no phase \`$phase\`; sh tests/run.sh --list" >&2; exit 2 ;; esac
done

build_packages='cmake g++ libcli11-dev libcurl4-openssl-dev libdeflate-dev libfmt-dev libhdf5-dev libhwy-dev
  libmpfr-dev libssl-dev libyaml-cpp-dev libzstd-dev ninja-build nlohmann-json3-dev pkg-config'
# chromium, the largest of them, is what `plan --html` is looked at with.
test_packages='bindfs chromium clang clang-format debootstrap dpkg-dev fish g++-aarch64-linux-gnu hdf5-tools
  libbenchmark-dev libclang-rt-14-dev libgtest-dev mandoc openssh-client openssl qemu-user-static rclone shellcheck
  strace zsh'
# Of another machine's Debian: what build_packages has of libraries.
arm64_packages='libcli11-dev libcurl4-openssl-dev libdeflate-dev libfmt-dev libhdf5-dev libhwy-dev libmpfr-dev libssl-dev
  libstdc++-12-dev libyaml-cpp-dev libzstd-dev nlohmann-json3-dev'

python_packages=
python3 -c 'import ensurepip, venv' 2>/dev/null || python_packages='python3 python3-venv'

jobs=$(nproc)
rm -rf build/results
mkdir -p build/results
failed_phases=

# A step that runs tests: its failures are counted, and the next phases still run.
Tests() {
  tests_name=$1; shift
  mkdir -p build/log
  tests_log=build/log/$(printf %s "$tests_name" | tr -c 'A-Za-z0-9.-' _).log
  tests_start=$(date +%s)
  printf '%s … ' "$tests_name"
  if "$@" >"$tests_log" 2>&1; then
    echo "passed ($(($(date +%s) - tests_start)) s)"
  else
    echo "FAILED (status $?, $(($(date +%s) - tests_start)) s)"
    cat "$tests_log"
    failed_phases="$failed_phases $tests_name;"
  fi
}

# cmake's preset NAME in build/NAME (default: build/release), the given targets.
Build() {
  cmake --preset "$1" -DBUILD_TESTING=ON || return
  preset=$1; shift
  cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
}

# What `pip install` of a clone installs, in build/clone: of the files that the phase `build` compiled, whose
# folder is then configured as it was.
Clone() {
  rm -rf build/clone && CMAKE_BUILD_PARALLEL_LEVEL=$jobs build/venv/bin/python -m pip install --no-deps \
    --disable-pip-version-check -C build-dir="$PWD/build/release" -C cmake.define.BUILD_TESTING=ON \
    --target build/clone src/python
  clone_status=$?
  cmake --fresh --preset default -DBUILD_TESTING=ON && return "$clone_status"
}

# The libraries of Debian for arm64, unpacked into build/arm64: this machine's dpkg knows nothing of
# them, for many of their packages could not stand beside its own.
Arm64Libraries() {
  [ "$(cat build/arm64/complete 2>/dev/null)" != "$arm64_packages" ] || return 0
  rm -rf build/arm64 && DebianApt "$PWD/build/arm64/apt" arm64 || return
  $apt install -y --no-install-recommends --download-only $arm64_packages || return
  for package in build/arm64/apt/archives/*.deb; do
    dpkg-deb -x "$package" build/arm64 || return
  done
  rm -r build/arm64/apt && echo "$arm64_packages" > build/arm64/complete
}

# The program for aarch64, and as build/aarch64/run/shardinit what runs it here. That of the wheel cannot
# stand for it: Highway has its kernels for SVE with GCC alone. Without an optimizer it compiles in half the time.
Aarch64() {
  Arm64Libraries || return
  cmake -S . -B build/aarch64 -G Ninja --toolchain "$PWD/tests/aarch64.cmake" -DBUILD_TESTING=OFF \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS='-O0 -Werror' -DSHARDINIT_KERNEL_OPTIONS=-O1 -DCMAKE_UNITY_BUILD=ON || return
  cmake --build build/aarch64 --parallel "$jobs" --target shardinit || return
  mkdir -p build/aarch64/run
  printf '#!/bin/sh\nexec qemu-aarch64-static -L "%s" "%s" "$@"\n' "$PWD/build/arm64" \
    "$PWD/build/aarch64/src/shardinit" > build/aarch64/run/shardinit
  chmod +x build/aarch64/run/shardinit
}

# Waits for all processes that are named; fails if one of them did.
All() {
  all_status=0
  for process in "$@"; do wait "$process" || all_status=1; done
  return "$all_status"
}

# Both wheels, in build/wheels, and the bare systems, all at once: making those uses the network and the
# disk, and what configures a wheel's libraries one core.
Wheels() {
  rm -rf build/wheels
  BareSystems & processes=$!
  for kind in x86_64 aarch64; do
    sh src/wheel.sh build/wheels "$kind" & processes="$processes $!"
  done
  All $processes
}

BareSystems() {
  BareSystem bookworm python3,python3-pip && BareSystem bullseye python3 && BareWheels
}

# Debian RELEASE with the named packages and nothing else, in build/bare/RELEASE.
BareSystem() {
  [ ! -f "build/bare/$1.complete" ] || return 0
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
  mkdir -p build/bare && AsRoot rm -rf "build/bare/$1" &&
  AsRoot debootstrap --variant=minbase --include="$2" "$1" "$PWD/build/bare/$1" "${mirror:-http://deb.debian.org/debian}" &&
  touch "build/bare/$1.complete"
}

# What the wheel needs and h5py, for the Python of Debian 12: the bare system has no network.
BareWheels() {
  sed -E -n '/^(numpy|h5py)==/,/[^\\]$/p' tests/locked.txt > build/bare/requirements.txt &&
  build/venv/bin/python -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --platform "manylinux_2_28_$(uname -m)" --platform "manylinux_2_27_$(uname -m)" \
    --platform "manylinux2014_$(uname -m)" -d build/bare/wheels -r build/bare/requirements.txt
}

# The unit tests of build/NAME, or those of its other program: as many processes as cores, each in a folder of its own.
UnitTests() {
  folder=$PWD/build/$1/tests/scratch report=$PWD/build/results/unit-$1 program=${2:-shardinit_tests}
  processes=
  rm -rf "$folder"
  for shard in $(seq 0 $((jobs - 1))); do
    mkdir -p "$folder/$shard" || return
    (cd "$folder/$shard" && GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$shard \
      timeout 600 "../../$program" --gtest_brief=1 --gtest_output=xml:"$report-$shard.xml") &
    processes="$processes $!"
  done
  All $processes
}

# The packages of tests/FILE in build/ENVIRONMENT: the files whose digests stand there, and no others. Each package is
# in the list, setuptools too, which builds some, so pip looks for nothing else. Some packages have files that are for
# another Python, and MaxText wants Python 3.12, for a kernel of TPUs.
Locked() {
  [ -x "build/$1/bin/python" ] || python3 -m venv "build/$1" || return
  build/"$1"/bin/python -m pip install --disable-pip-version-check --no-compile --no-deps --no-build-isolation \
    --require-hashes --ignore-requires-python -r "tests/$2"
}

# Tests start Python some hundred times, and an environment may forbid it to keep what it compiled
# (PYTHONDONTWRITEBYTECODE): importing PyTorch then takes 3.2 s of a processor instead of 1.5 s. pip compiles in one
# process, and also the packages' own tests.
Venv() {
  # PyTorch for processors alone, if pip is told of a place that has it; else PyTorch comes with the libraries of CUDA,
  # whose versions it names itself.
  Locked venv locked-cpu.txt || torch=$(sed -n 's/^torch=/torch=/p' tests/requirements-clients.txt)
  # Of trainers only their modules: what they need for anything else has hundreds of MB.
  Locked venv locked.txt && Locked venv locked-no-deps.txt || return
  [ -z "${torch:-}" ] || build/venv/bin/python -m pip install --disable-pip-version-check --no-compile "$torch" || return
  build/venv/bin/python -m compileall -qq -j "$jobs" -x '/tests?/' build/venv/lib || :
}

# Debian's packages and Python's, at once once there is Python: each waits for the network, and unpacks on
# one core. Python's may go on while C++ is compiled.
Packages() {
  [ -z "$python_packages" ] || InstallPackages $python_packages
  mkdir -p build/log
  { Venv && Locked moto locked-moto.txt; } > build/log/pip.log 2>&1 & venv=$!
  InstallPackages $build_packages $test_packages
}

# What is left of Packages().
PythonPackages() {
  [ -z "$venv" ] || Step 'python packages' eval 'wait "$venv" || { cat build/log/pip.log; false; }'
  venv=
}

# Wheels wait for the network, and for scripts that configure libraries on one core: other phases compile meanwhile.
BeginWheels() {
  case " $* " in *' wheel '*) ;; *) return 0 ;; esac
  [ -z "$wheels" ] || return 0
  mkdir -p build/log
  Wheels > build/log/wheels.log 2>&1 & wheels=$!
}

Format() {
  find src tests \( -name '*.cc' -o -name '*.cu' -o -name '*.h' \) -exec clang-format --dry-run -Werror {} +
}

# pytest with these arguments, whose results go to build/results/NAME.xml. `worksteal` leaves the tests
# of a file together, which share what they made. There are more processes than cores, for many tests wait: for
# a store's retries, or for disks: with 3 processes, 2 cores have work for 57% of the time.
Pytest() {
  results=$1; shift
  SHARDINIT_OTHERS=$others build/venv/bin/python -m pytest -q -ra --durations=10 -n "$((2 * jobs + 1))" \
    --dist worksteal -p no:cacheprovider --junitxml="build/results/$results.xml" "$@"
}

# The command tests, or with arguments those that pytest then takes.
CommandTests() { Pytest pytest tests/python "$@"; }

Record() {
  (export UPDATE_GOLDEN=1; Pytest pytest-record tests/python/test_recorded.py tests/python/test_recorded_leaves.py)
}

# Command tests by the program with sanitizers, which is slow: those whose inputs are of the most kinds.
sanitized='diff graph known_answers layouts norms reassembly recorded schema sources ties'
SanitizedTests() {
  SHARDINIT=$PWD/build/asan/src/shardinit Pytest pytest-asan $(printf 'tests/python/test_%s.py ' $sanitized) \
    -k 'not recorded or bad_ or warn_'
}

others=  # What was built beside build/release; the command tests compare with it.
venv=    # The process that installs Python's packages.
wheels=  # The process that makes wheels.
for phase in ${*:-$all}; do
  case $phase in packages|format|build|unit) ;; *) PythonPackages; BeginWheels ${*:-$all} ;; esac
  case $phase in
    packages) Packages ;;
    format) Tests 'format' Format ;;
    build) Step 'build' Build default ;;
    unit) Tests 'unit tests' UnitTests release ;;
    fast) Tests 'unit tests' UnitTests release
          Tests 'fast command tests' CommandTests -m 'quick or not slow and not faults and not clients' ;;
    asan) Step 'build with clang and sanitizers' Build asan shardinit shardinit_tests
          others="$others build/asan/src/shardinit"
          Tests 'unit tests with sanitizers' UnitTests asan
          Tests 'command tests with sanitizers' SanitizedTests ;;
    tsan) Step 'build with the sanitizer of threads' Build tsan shardinit thread_tests
          Tests 'unit tests with the sanitizer of threads' UnitTests tsan thread_tests ;;
    pip) Step 'pip install of a clone' Clone ;;
    aarch64) Step 'build for aarch64' Aarch64
             others="$others build/aarch64/run/shardinit" ;;
    wheel) Step 'wheels and bare systems' eval 'wait "$wheels" || { cat build/log/wheels.log; false; }'
           # The optimizer of clang is tried with this one.
           others="$others build/wheel/$(uname -m)/build/shardinit/src/shardinit" ;;
    commands) Tests 'command tests' CommandTests ;;
    record) Tests 'recorded output' Record ;;
  esac
done

PythonPackages
[ -z "$failed_phases" ] || echo "failed:$failed_phases"
case " ${*:-$all} " in
  *' unit '*|*' fast '*|*' asan '*|*' tsan '*|*' commands '*|*' record '*) ;;
  *) [ -z "$failed_phases" ] || exit 1; exit 0 ;;  # No tests to count.
esac
exec build/venv/bin/python tests/summary.py build/results "$failed_phases"

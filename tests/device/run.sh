#!/bin/sh
# Checks on a machine with a CUDA device that it makes the bits that processors make, and measures how fast.
#
#   sh tests/device/run.sh [FOLDER]
#
# It needs a Python with PyTorch and JAX for CUDA; without one of them, it says what it could not test.
# FOLDER is what `python tests/device/prepare.py FOLDER` has made where shardinit is built; if it is not
# given, it is made here, by the build in build/release (`sh tests/run.sh packages build`). Of the package
# and the library, those that are installed are taken, else those of this clone. PYTHON is the Python,
# default python3. The status is 1 if anything differs.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3} folder=${1:-build/device} status=0

"$python" -c 'import shardinit; shardinit.open_spec(text="shardinit: 1\nname: x\ndtype: f32\nmodules: {a: {shape: [1], init: zeros}}")' \
    2>/dev/null || {
  export PYTHONPATH="$PWD/src/python${PYTHONPATH:+:$PYTHONPATH}" \
    SHARDINIT_LIBRARY="${SHARDINIT_LIBRARY:-$PWD/build/release/src/libshardinit.so.1}"
}
[ -e "$folder/cases.json" ] || build/venv/bin/python tests/device/prepare.py "$folder" ||
  { echo 'run.sh: nothing is prepared, so programs and single words are NOT TESTED' >&2; status=1; }

if "$python" -c 'import torch' 2>/dev/null; then
  "$python" tests/device/fills.py --prepared "$folder" || status=1
else
  echo 'run.sh: kernels and PyTorch are NOT TESTED, since torch is missing' >&2; status=1
fi
if "$python" -c 'import jax' 2>/dev/null; then
  XLA_PYTHON_CLIENT_PREALLOCATE=false "$python" tests/device/program.py "$folder" ${SECONDS_FOR_PROGRAMS:+--seconds "$SECONDS_FOR_PROGRAMS"} || status=1
else
  echo 'run.sh: programs are NOT TESTED, since jax is missing' >&2; status=1
fi
exit $status

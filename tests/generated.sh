#!/bin/sh
# Draws new cases for the tests over generated inputs (tests/python/generated.py) and faults
# (tests/python/test_every_fault.py), one seed after another, until the time is over or a case fails,
# which it prints as small as it can be:
#
#   sh tests/generated.sh SECONDS [PATTERN]      PATTERN: as of pytest's -k
#
# SHARDINIT_GENERATED_SEED is the first seed; default: the time. Run tests/run.sh before: it installs
# and builds what this needs.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in ''|*[!0-9]*) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
end=$(($(date +%s) + $1))
seed=${SHARDINIT_GENERATED_SEED:-$(date +%s)}
rounds=0
while [ "$(date +%s)" -lt "$end" ]; do
  echo "seed $seed, $((end - $(date +%s))) s are left"
  SHARDINIT_GENERATED_SEED=$seed build/venv/bin/python -m pytest -q -p no:cacheprovider --no-header \
    tests/python/test_generated_*.py tests/python/test_every_fault.py ${2:+-k "$2"} || { echo "seed $seed failed"; exit 1; }
  seed=$((seed + 1)) rounds=$((rounds + 1))
done
echo "$rounds rounds, 0 failed"

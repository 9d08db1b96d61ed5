#!/usr/bin/env bash
# Real training steps under each mode's plans, on 4 gloo processes of the CPU; training.py says how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
for argument in "$@"; do
  case $argument in -h | --help) exec python3 tests/bench/training.py --help ;; esac
done
[ -x build/venv/bin/torchrun ] || { echo "no build/venv/bin/torchrun: run deploy/setup.sh first" >&2; exit 1; }
export BUCKETD_BINARY="$PWD/build/bin/bucketd" OMP_NUM_THREADS=1
exec build/venv/bin/torchrun --nproc-per-node 4 tests/bench/training.py "$@"

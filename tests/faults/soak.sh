#!/usr/bin/env bash
# tests/faults/soak.sh [SEED] [--minutes M]: soak.py says what that is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${BUCKETD_PYTHON:-build/venv/bin/python}"
[ -x "$python" ] || { echo "no $python: run deploy/setup.sh first" >&2; exit 1; }
export BUCKETD_BINARY="${BUCKETD_BINARY:-$PWD/build/bin/bucketd}"
exec "$python" tests/faults/soak.py "$@"

#!/usr/bin/env bash
# Faults against real processes: tests/faults/run.sh [SEED] [ROUNDS] [--only SCENARIO] [--round N]. Everything random is drawn
# from the seed, which is printed; a failure says how to repeat it. BUCKETD_BINARY names another server, e.g. a sanitized one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python="${BUCKETD_PYTHON:-build/venv/bin/python}"
[ -x "$python" ] || { echo "no $python: run deploy/setup.sh first" >&2; exit 1; }
export BUCKETD_BINARY="${BUCKETD_BINARY:-$PWD/build/bin/bucketd}"
exec "$python" tests/faults/driver.py "$@"

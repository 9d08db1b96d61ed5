#!/usr/bin/env bash
# PyTorch's bucketing and overlap passes against bucketd's, on one graph and one core; overlap_vs_torch.py says how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=build/venv/bin/python
[ -x "$python" ] || { echo "no $python: run deploy/setup.sh first" >&2; exit 1; }
exec "$python" tests/bench/overlap_vs_torch.py "$@"

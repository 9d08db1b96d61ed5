#!/usr/bin/env bash
# How good mode auto's plans are, against PyTorch's passes and by the referee; quality.py says how. One core.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -x build/bin/plan_quality ] || { echo "no build/bin/plan_quality: build it first" >&2; exit 1; }
exec python3 tests/bench/quality.py "$@"

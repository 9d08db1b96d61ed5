#!/usr/bin/env bash
# How good mode auto's plans are, against PyTorch's passes and by the referee; quality.py says how. One core.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 tests/bench/quality.py "$@"

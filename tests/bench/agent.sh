#!/usr/bin/env bash
# The measured loop: this machine is calibrated, a step is planned with what was measured, and replayed. agent.py says how.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 tests/bench/agent.py "$@"

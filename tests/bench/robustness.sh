#!/usr/bin/env bash
# What wrong costs cost mode auto's plans, a line a graph and profile; exit code 1 if more than 1 % of the sets of costs make a step
# more than 3 % longer than that of the plan that knew the true costs, or the mean loss is above 0.5 %. robustness.cc says how. One core.
#   robustness.sh [--distribution uniform|lognormal|grouped|compute|wires|all] [--seeds N] [--first-seed N] [--graphs PATTERN]
#                 [--options NAME=VALUE,...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seeds=5 first=1 pattern='*' options=mode=auto,numerics=free distributions=uniform
while [ $# -gt 0 ]; do
  case "$1" in
    --distribution) distributions=$2 ;;
    --seeds) seeds=$2 ;;
    --first-seed) first=$2 ;;
    --graphs) pattern=$2 ;;
    --options) options=$options,$2 ;;
    *) sed -n '2,5s/^# *//p' "$0"; [ "$1" = --help ]; exit ;;
  esac
  shift 2
done
[ "$distributions" != all ] || distributions="uniform lognormal grouped compute wires"
[ -x build/bin/robustness ] || { echo "no build/bin/robustness: cmake --build build --target robustness" >&2; exit 1; }
status=0
for distribution in $distributions; do
  # The pattern is meant to name several files.
  # shellcheck disable=SC2086
  build/bin/robustness "$distribution" "$first" "$seeds" "$options" tests/data/graphs/$pattern.json.gz || status=1
done
exit $status

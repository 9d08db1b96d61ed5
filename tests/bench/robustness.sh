#!/usr/bin/env bash
# What wrong costs cost mode auto's plans, a line a graph and profile; exit code 1 if more than 1 % of the sets of costs make a step
# more than 3 % longer than that of the plan that knew the true costs, or the mean loss is above 0.5 %. robustness.cc says how. One core.
#   robustness.sh [--distribution uniform|lognormal|grouped|compute|wires|all] [--seeds N] [--first-seed N] [--graphs PATTERN]
#                 [--generated SEED] [--generated-large SEED] [--options NAME=VALUE,...]
# With --generated a step of every kind of tests/passes/generated_steps.h, of that seed, instead of captured graphs; with
# --generated-large one of at least 8,000 nodes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seeds=5 first=1 pattern='*' generated=() options=mode=auto,numerics=free distributions=uniform
while [ $# -gt 0 ]; do
  case "$1" in
    --distribution) distributions=$2 ;;
    --seeds) seeds=$2 ;;
    --first-seed) first=$2 ;;
    --graphs) pattern=$2 ;;
    --generated | --generated-large) generated+=("${1#--}:$2") ;;
    --options) options=$options,$2 ;;
    *) sed -n '2,7s/^# *//p' "$0"; [ "$1" = --help ]; exit ;;
  esac
  shift 2
done
[ "$distributions" != all ] || distributions="uniform lognormal grouped compute wires"
[ -x build/bin/robustness ] || { echo "no build/bin/robustness: cmake --build build --target robustness" >&2; exit 1; }
status=0
# The pattern is meant to name several files.
# shellcheck disable=SC2206
graphs=(tests/data/graphs/$pattern.json.gz)
[ ${#generated[@]} = 0 ] || graphs=("${generated[@]}")
for distribution in $distributions; do
  build/bin/robustness "$distribution" "$first" "$seeds" "$options" "${graphs[@]}" || status=1
done
exit $status

#!/usr/bin/env bash
# What wrong costs cost mode auto's plans, a line a graph and profile; exit code 1 if a step is 3 % above that of the plan that
# knew the true costs. robustness.cc says how. One core.
#   robustness.sh [--seeds N] [--graphs PATTERN] [--options NAME=VALUE,...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seeds=5 pattern='*' options=mode=auto,numerics=free
while [ $# -gt 0 ]; do
  case "$1" in
    --seeds) seeds=$2 ;;
    --graphs) pattern=$2 ;;
    --options) options=$options,$2 ;;
    *) sed -n '2,4s/^# *//p' "$0"; [ "$1" = --help ]; exit ;;
  esac
  shift 2
done
[ -x build/bin/robustness ] || { echo "no build/bin/robustness: build it first" >&2; exit 1; }
# The pattern is meant to name several files.
# shellcheck disable=SC2086
exec build/bin/robustness "$seeds" "$options" tests/data/graphs/$pattern.json.gz

#!/usr/bin/env bash
# Builds the fuzz targets (clang, address and undefined-behaviour sanitizers) and runs each one for a while.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  cat <<'HELP'
usage: tests/fuzz/run.sh [SECONDS [TARGET...]]

Runs the targets text, json, graph, plan, encoding and trace (or those that are named) SECONDS each, default 5, from the inputs in
tests/fuzz/corpus and the suite's own. A crash, a hang or too much memory fails it; the input is then in build/fuzz/found, and
build/asan/bin/fuzz_TARGET INPUT runs it again. Keep it in tests/fuzz/corpus/TARGET once it is repaired. New inputs that reach
more code are collected in build/fuzz/corpus.
HELP
  exit 0
fi
seconds=${1:-5}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(text json graph plan encoding trace)

mkdir -p build
[ -f build/asan/build.ninja ] || cmake --preset asan > build/asan.log 2>&1 || { cat build/asan.log; exit 1; }
cmake --build build/asan --target "${targets[@]/#/fuzz_}" -- --quiet
mkdir -p build/fuzz/found
for target in "${targets[@]}"; do
  seeds=("tests/fuzz/corpus/$target")
  [ "$target" = text ] && seeds+=(tests/passes/golden)
  [ "$target" = json ] && seeds+=(tests/data/vectors)
  [ "$target" = trace ] && seeds+=(tests/data/traces)
  mkdir -p "build/fuzz/corpus/$target"
  log="build/fuzz/$target.log"
  if ! UBSAN_OPTIONS=print_stacktrace=1 "build/asan/bin/fuzz_$target" "build/fuzz/corpus/$target" "${seeds[@]}" \
      -max_total_time="$seconds" -max_len=16384 -rss_limit_mb=2048 -malloc_limit_mb=1024 -timeout=10 -seed=1 \
      -artifact_prefix=build/fuzz/found/ -print_final_stats=1 > "$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz_$target failed: see $log and build/fuzz/found"
    exit 1
  fi
  echo "fuzz_$target: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs, none bad"
done

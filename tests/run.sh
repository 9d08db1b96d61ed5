#!/usr/bin/env bash
# Installs, builds and passes the suite: C++ tests, layers, formatting, Python tests with real gloo processes, sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  cat <<'HELP'
usage: tests/run.sh [--fast | --full]

Everything a change must pass, on a machine with two cores in about 30 minutes with a warm ccache, and in 50 where nothing was
compiled before.
  --fast   without training, sanitizers and fuzzing: about five minutes on a built tree
  --full   also the whole proof of bits (every parallelism, mode, numerics and reduce dtype, on 4 and 6 processes;
           build/proof.txt is its table), every large graph under every profile, the server and the clients under
           sanitizers (threads too), a minute of each fuzz target, the C++ tests once more while threads and sockets are late,
           the benchmark programs built, and every mutation of tests/mutations.json seen to fail: hours, of which a thousand
           seeds of the simulation take four

The last lines are seconds by step and what passed; build/checks has the reports.
HELP
  exit 0
fi
. deploy/lib.sh
cores=$(env -u OMP_NUM_THREADS nproc)  # nproc itself takes that variable, which is 1 below, for the answer
jobs=$((cores + 2))  # of tests: some wait more than they compute

kind=${1:-}
case $kind in
  "") about="about 30 minutes on two cores with a warm ccache, 50 where nothing was compiled before" steps=7 ;;
  --fast) about="5 minutes on a built tree; what must be compiled comes on top" steps=4 ;;
  --full) about="hours: a thousand seeds of the simulation take four" steps=11 ;;
  *) die "what is $kind? tests/run.sh --help" ;;
esac
full=
[ "$kind" != --full ] || full=1
reports=build/checks
rm -rf "$reports" && mkdir -p "$reports"
say "This takes $about."

# part NAME: ends the step before, and begins the next one. Its seconds go into the table at the end.
number=0
begun=$SECONDS
ended() { [ "$number" = 0 ] || printf '%s\t%s\n' "$((SECONDS - begun))" "$name" >> "$reports/seconds.tsv"; }
part() {
  ended
  number=$((number + 1)) name=$1 begun=$SECONDS
  step "[$number/$steps] $name"
}
# Tests by ctest in a build folder, with a line each as they end: ctests FOLDER REPORT arguments.
ctests() { ctest --test-dir "$1" --output-on-failure -j "$jobs" --output-junit "$PWD/$reports/$2.xml" "${@:3}"; }
trap 'status=$?; [ $status = 0 ] || { ended; python3 tests/summary.py "$reports"; echo "failed in: ${name:-the beginning}"; }' EXIT

part "Install and build"
deploy/setup.sh
python=build/venv/bin/python
export BUCKETD_BIN="$PWD/build/bin" BUCKETD_BINARY="$PWD/build/bin/bucketd" OMP_NUM_THREADS=1 BUCKETD_FULL=$full

part "Formatting, layers and locks"
git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 --dry-run --Werror || die "run: git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format-14 -i"
$python -m pytest -q tests/layering_test.py tests/deps_test.py
$python tests/locks_test.py
$python tests/spec_test.py

part "C++ tests"
ctests build cpp

pytests() {
  $python -m pytest tests --ignore=tests/client --ignore=tests/gpu_agent --ignore=tests/passes -q --junit-xml "$reports/$1.xml" "${@:2}"
}
which=${full:+(full or not full) and }
[ "$kind" != --fast ] || which="not slow and "
part "Python tests"
# A file is one worker's. What bounds a time comes afterwards, when nothing else runs; it waits most of its time, so
# two of its files share the cores. Under --full one of them compares times, and each is alone.
pytests python -n "$jobs" --dist loadfile --no-loadscope-reorder -m "${which}not quiet" --durations 10
if [ -n "$full" ]; then together=0; else together=2; fi
pytests quiet -n "$together" --dist loadfile -m "${which}quiet"

if [ "$kind" != --fast ]; then
  part "Build under address and undefined-behaviour sanitizers"
  [ -f build/asan/build.ninja ] || quietly cmake --preset asan
  if [ -n "$full" ]; then targets=(all); else targets=(sanitized_tests fuzz); fi
  cmake --build build/asan --target "${targets[@]}" 2>&1 | python3 deploy/progress.py

  part "Tests under sanitizers"
  if [ -n "$full" ]; then
    ctests build/asan asan -LE slow
    [ -f build/tsan/build.ninja ] || quietly cmake --preset tsan
    cmake --build build/tsan --target service_tests 2>&1 | python3 deploy/progress.py
    ctest --preset tsan -L service --output-junit "$PWD/$reports/tsan.xml"
  else
    ctests build/asan asan -L sanitized
  fi

  part "Fuzz targets"
  tests/fuzz/run.sh "${full:+60}" || die "a fuzz target found something"
fi

if [ -n "$full" ]; then
  part "C++ tests while threads and sockets are late"
  quietly cmake --build build --target delays
  (export LD_PRELOAD="$PWD/build/tests/libdelays.so" BUCKETD_FULL= && ctests build delays)  # of few seeds: all are above
  part "A thousand seeds of the simulation"
  $python tests/server/simulation/seeds.py 1000
  part "Benchmark programs"
  cmake --build build --target benchmarks 2>&1 | python3 deploy/progress.py
  part "Mutations"
  $python tests/mutate.py
fi

ended
python3 tests/summary.py "$reports"

#!/usr/bin/env bash
# Installs, builds and passes the suite: C++ tests, layers, formatting, Python tests with real gloo processes, sanitizers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  cat <<'HELP'
usage: tests/run.sh [--fast | --full]

Everything a change must pass, on a machine with two cores in about fifty minutes the first time (later less: ccache).
  --fast   without training, sanitizers and fuzzing: about five minutes on a built tree
  --full   also the whole proof of bits (every parallelism, mode, numerics and reduce dtype, on 4 and 6 processes;
           build/proof.txt is its table), every large graph under every profile, the server and the clients under
           sanitizers (threads too), and a minute of each fuzz target: about two hours more
HELP
  exit 0
fi
. deploy/lib.sh
deploy/setup.sh
python=build/venv/bin/python
export BUCKETD_BIN="$PWD/build/bin" BUCKETD_BINARY="$PWD/build/bin/bucketd" OMP_NUM_THREADS=1

step "Formatting and layers"
git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run --Werror || die "run: git ls-files '*.h' '*.cc' | xargs clang-format-14 -i"
$python tests/layering_test.py
$python tests/deps_test.py
$python tests/spec_test.py

full=
[ "${1:-}" != --full ] || full=1
export BUCKETD_FULL=$full

step "C++ tests"
ctest --test-dir build --output-on-failure -j "$(nproc)"

if [ "${1:-}" = --fast ]; then
  step "Python tests, without training"
  $python -m pytest tests --ignore=tests/client --ignore=tests/gpu_agent --ignore=tests/passes -q -m 'not slow'
  exit 0
fi

step "Python tests"
$python -m pytest tests --ignore=tests/client --ignore=tests/gpu_agent --ignore=tests/passes -q --durations 10 ${full:+-m 'full or not full'}

step "Address and undefined-behaviour sanitizers, and fuzz targets"
[ -f build/asan/build.ninja ] || quietly cmake --preset asan
if [ -n "$full" ]; then
  cmake --build build/asan 2>&1 | python3 deploy/progress.py
  ctest --test-dir build/asan --output-on-failure -j "$(nproc)" -LE slow
  [ -f build/tsan/build.ninja ] || quietly cmake --preset tsan
  cmake --build build/tsan --target service_tests 2>&1 | python3 deploy/progress.py
  ctest --preset tsan -L service
else
  cmake --build build/asan --target passes_tests pack_test executor_test fuzz 2>&1 | python3 deploy/progress.py
  ctest --test-dir build/asan --output-on-failure -j "$(nproc)" -L passes
  ctest --test-dir build/asan --output-on-failure -R '^(pack|executor)_test$'
fi
tests/fuzz/run.sh "${full:+60}" || die "a fuzz target found something"

step "Everything passed"

#!/usr/bin/env bash
# What a cached plan costs the server, against a bare echo server with the same reply, in turns: one table. Exit 1 when
# the server's CPU a request is above 1.25 times the echo server's. --help for more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case " $* " in *" --help "* | *" -h "*)
  cat <<'EOF'
tests/bench/service.sh [FLAGS]: what a cached plan costs the server, beside a bare echo server that sends the same bytes by
the same API. Builds both, runs them in turns and prints server CPU a request, latency and their ratios with an interval of
95 % at 1, 64 and 512 outstanding calls, for replies of 20 KiB and 200 KiB; Redis GET beside them; then a storm of fresh
connections for one new plan. Exits 1 when an interval lies above the limit. Ten minutes or so; needs a built tree (deploy/setup.sh).
  --rounds N=15          a cell; 6 at least for an interval of 95 %
  --seconds S=0.25       a server and round
  --limit RATIO=1.25     of CPU a request, over the echo server's
  --connections N=2000   of the storm
  --storms N=5           0: none
  --redis PROGRAM=redis-server, --no-redis
  --graphs FOLDER=tests/data/graphs
BUCKETD_BUILD names another build folder than build.
EOF
  exit 0 ;;
esac
build="${BUCKETD_BUILD:-build}"
[ -f "$build/build.ninja" ] || { echo "no $build/build.ninja: run deploy/setup.sh first, or set BUCKETD_BUILD" >&2; exit 1; }
cmake --build "$build" --target bucketd echo_server service_bench >&2
exec "$build/bin/service_bench" --bucketd "$build/bin/bucketd" --echo "$build/bin/echo_server" "$@"

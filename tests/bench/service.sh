#!/usr/bin/env bash
# What a cached plan costs the server, against a bare echo server with the same reply, in turns: one table. Exit 1 when
# the server's CPU a request is above 1.25 times the echo server's. --help for more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build="${BUCKETD_BUILD:-build}"
[ -f "$build/build.ninja" ] || { echo "no $build/build.ninja: run deploy/setup.sh first, or set BUCKETD_BUILD" >&2; exit 1; }
cmake --build "$build" --target bucketd echo_server service_bench >&2
exec "$build/bin/service_bench" --bucketd "$build/bin/bucketd" --echo "$build/bin/echo_server" "$@"

#!/usr/bin/env bash
# What a server on a shared store asks of its engine, and what mutual TLS costs: one table. Exit 1 when a wanted figure is
# missed. --help for more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case " $* " in *" --help "* | *" -h "*)
  cat <<'EOF'
tests/bench/cluster.sh [FLAGS]: trips to PostgreSQL for a hit, a cold plan and the start of a job, counted between real servers and
a PostgreSQL of its own; CPU of ranks that replicas forward; the last answer of three replicas beside one server's; then server CPU of a hit over mutual TLS beside a bare echo server with the same TLS, in turns,
and storms of fresh connections with mutual TLS. Four minutes or so; needs a built tree (deploy/setup.sh), PostgreSQL 15, openssl.
  --rounds N=9           a cell; 6 at least for an interval of 95 %
  --seconds S=0.25       a server and round
  --connections N=2000   of a storm
  --storms N=3           0: none
BUCKETD_BUILD names another build folder than build.
EOF
  exit 0 ;;
esac
build="${BUCKETD_BUILD:-build}"
[ -f "$build/build.ninja" ] || { echo "no $build/build.ninja: run deploy/setup.sh first, or set BUCKETD_BUILD" >&2; exit 1; }
cmake --build "$build" --target bucketd echo_server tls_bench >&2
tls="$(mktemp -d)"
trap 'rm -rf "$tls"' EXIT
certificate() { # NAME NAMES; `ca` signs itself and the others
  local signed=(-CA "$tls/ca.pem" -CAkey "$tls/ca.key" -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=${2:-}")
  [ "$1" != ca ] || signed=(-addext keyUsage=critical,keyCertSign,cRLSign)
  openssl req -x509 "${signed[@]}" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj "/CN=$1" \
    -keyout "$tls/$1.key" -out "$tls/$1.pem" 2>/dev/null
}
certificate ca
certificate server DNS:localhost
certificate client URI:spiffe://example.org/bench
printf '[[identity]]\nnames = ["URI:spiffe://example.org/bench"]\ntenant = "*"\nroles = ["plan"]\n' > "$tls/who.toml"
status=0
printf '| what | measured | wanted |\n|---|---|---|\n'
BUCKETD_BINARY="$PWD/$build/bin/bucketd" "$build/venv/bin/python" tests/bench/engine_trips.py || status=1
"$build/bin/tls_bench" --bucketd "$build/bin/bucketd" --echo "$build/bin/echo_server" --tls "$tls" "$@" || status=1
exit $status

#!/usr/bin/env bash
# The main job, from a clean clone: installs, builds, starts bucketd, trains a small Llama-style model on 4 processes with and
# without a plan, and says what happened. Leaves graphs, plans and a timeline in build/quickstart.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  cat <<'HELP'
usage: deploy/quickstart.sh [--steps N] [--mode MODE] [--numerics NUMERICS]

Installs what is missing (Debian packages as root, Python packages into build/venv), builds build/bin/bucketd and
build/bin/bucketctl, starts a planner service on a unix socket, and trains a small sharded Llama-style model with 4 gloo
processes on the CPU: eager FSDP2, compiled without a plan, compiled with a plan. No size of the model divides by 4, so that weights
equal eager's only if every payload lies where eager training puts it. First run: about ten minutes, most of it installing and
building; later runs: under two minutes.
HELP
  exit 0
fi
. deploy/lib.sh
deploy/setup.sh bucketd bucketctl

out=build/quickstart
rm -rf "$out" && mkdir -p "$out"
socket="$(mktemp -d)/bucketd.sock"

step "Planner service"
build/bin/bucketd --listen "unix:$socket" --http 127.0.0.1:0 --ready-file "$out/bucketd.json" >"$out/bucketd.log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$(dirname "$socket")"' EXIT
for _ in $(seq 100); do
  [ -s "$out/bucketd.json" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$out/bucketd.log" >&2; die "bucketd did not start"; }
  sleep 0.1
done
[ -s "$out/bucketd.json" ] || die "bucketd was not ready within 10 s; see $out/bucketd.log"
say "$(cat "$out/bucketd.json")"

step "Training with 4 gloo processes"
OMP_NUM_THREADS=1 build/venv/bin/torchrun --nproc-per-node 4 --log-dir "$out/logs" \
  client/python/examples/train_llama.py --ready-file "$out/bucketd.json" --out-dir "$out" "$@"

step "Predicted timeline"
for part in fw bw; do
  build/bin/bucketctl trace "$out/$part.graph.json.gz" "$out/$part.plan.json" --profile cpu_loopback --costs profile --out "$out/$part.trace.json"
done
say "open build/quickstart/bw.trace.json at https://ui.perfetto.dev (Open trace file), or in chrome://tracing"

step "Draining the service"
kill -TERM "$server"
wait "$server" && say "bucketd ended cleanly" || die "bucketd ended with $?; see $out/bucketd.log"

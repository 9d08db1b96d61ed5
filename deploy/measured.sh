#!/usr/bin/env bash
# Costs that come from training itself, from a clean clone: a job trains by a plan that wrong costs made, its buckets are measured
# while it trains, and its next generation gets a plan that is made with what was measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. deploy/lib.sh

steps=20 out=build/measured built=false
while [ $# -gt 0 ]; do
  case "$1" in
    --steps) steps="$2"; shift 2 ;;
    --out) out="$2"; shift 2 ;;
    --built) built=true; shift ;;
    --help | -h)
      cat <<'HELP'
usage: deploy/measured.sh [--steps N] [--out FOLDER] [--built]

Starts bucketd with a cost profile, "site", that knows the CPU only roughly; bucket-agent, which trainers report to; and Prometheus,
which scrapes both. Two gloo processes train a small Llama, N steps (20), with their buckets run by bucketd's executor. The agent
passes on what the buckets took, bucketctl makes site@2 of that and promotes it, and the job's next generation is planned anew.
--built: leave installing and building out. Ends with 0 if a plan was replaced.
HELP
      exit 0 ;;
    *) die "what is $1? deploy/measured.sh --help" ;;
  esac
done
$built || deploy/setup.sh bucketd bucketctl bucket-agent bucket_executor
command -v prometheus >/dev/null || die "prometheus is missing; as root: apt-get install --no-install-recommends prometheus"

rm -rf "$out" && mkdir -p "$out"
bin="${BUCKETD_BIN:-build/bin}" python="${PYTHON:-build/venv/bin/python}"
run="$(mktemp -d)" # sockets have short paths
planner="unix:$run/bucketd"
started_processes=()
trap 'kill "${started_processes[@]}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$run"' EXIT

# start NAME COMMAND...: until it has written NAME.json.
start() {
  local name="$1"
  shift
  "$@" --ready-file "$out/$name.json" >"$out/$name.log" 2>&1 &
  started_processes+=($!)
  for _ in $(seq 300); do
    [ -s "$out/$name.json" ] && return
    sleep 0.1
  done
  cat "$out/$name.log" >&2
  die "$name was not ready within 30 s"
}
http_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["http"])' "$out/$1.json"; }

step "Planner, with costs that are not this machine's"
# One reporter is a quorum here: this machine is the whole cluster. Any gain replaces a plan.
start bucketd "$bin/bucketd" --listen "$planner" --http 127.0.0.1:0 --cost-quorum 1 --cost-quorum-move-ppm 100000000 --replan-gain 1000
"$bin/bucketctl" costs show cpu_loopback --json --server "$planner" >"$out/cpu_loopback.json"
python3 - "$out" <<'PY'
import json, sys
profile = json.load(open(f"{sys.argv[1]}/cpu_loopback.json"))
# The latencies of gloo; the executor's launches cost the host next to nothing.
profile.update(name="site", about="latencies of gloo, for an executor that is not gloo", host_us_per_collective=0.0)
json.dump(profile, open(f"{sys.argv[1]}/site.json", "w"))
PY
say "$("$bin/bucketctl" costs import "$out/site.json" --name site --server "$planner")"

step "Agent and Prometheus"
start agent "$bin/bucket-agent" watch --telemetry "$run/trainers" --telemetry-job measured --telemetry-every 1s --planner "$planner" \
  --profile site --http 127.0.0.1:0
cp deploy/prometheus/rules.yml "$out/rules.yml"
sed -e "s/127.0.0.1:9461/$(http_of bucketd)/; s/127.0.0.1:9462/$(http_of agent)/; s/15s/1s/" deploy/prometheus/prometheus.yml >"$out/prometheus.yml"
port="$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')"
prometheus --config.file="$out/prometheus.yml" --storage.tsdb.path="$run/prometheus" --web.listen-address="127.0.0.1:$port" >"$out/prometheus.log" 2>&1 &
started_processes+=($!)
say "Prometheus at http://127.0.0.1:$port while this runs; the dashboard is deploy/grafana/buckets.json"

# train GENERATION
train() {
  OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 client/python/examples/train_job.py \
    --address "$planner" --job measured --generation "$1" --cost-profile site@latest --agent "$run/trainers" --layers 4 --steps "$steps" \
    --out-dir "$out" 2>&1 | tee "$out/train-$1.log" | sed -n 's/^\(start\|loss\)/   &/p'
}

# scraped GENERATION: once Prometheus has all of the generation.
scraped() {
  "$python" - "$1" "$port" "$out" "$(http_of agent)" <<'PY'
import json, pathlib, re, sys, time, urllib.parse, urllib.request
generation, port, out, agent = sys.argv[1:]
def ask(query):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    found = json.load(urllib.request.urlopen(url))["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0
of = '{training="measured"}'
page = urllib.request.urlopen(f"http://{agent}/metrics").read().decode()
served = sum(float(v) for v in re.findall(r'^bucket_agent_bucket_collectives_total\{.*training="measured".*\} (\S+)$', page, re.M))
until = time.monotonic() + 60
while ask(f"sum(bucket_agent_bucket_collectives_total{of})") < served or not served:
    assert time.monotonic() < until, f"Prometheus does not have the {served:g} buckets that the agent has"
    time.sleep(0.2)
buckets = ("bucket_collectives_total", "bucket_collective_seconds_total", "bucket_predicted_seconds_total")
plans = ("plan_runs_total", "plan_exposed_seconds_total", "plan_predicted_exposed_seconds_total")
now = {what: ask(f"sum(bucket_agent_{what}{of})") for what in plans}
for kind in ("all_gather", "reduce_scatter"):
    of_kind = f'{{training="measured",collective="{kind}"}}'
    now |= {f"{kind} {what}": ask(f"sum(bucket_agent_{what}{of_kind})") for what in buckets}
path = pathlib.Path(out, "prometheus.json")
before = json.loads(path.read_text()) if path.exists() else dict.fromkeys(now, 0.0)
path.write_text(json.dumps(now))
d = {what: now[what] - before[what] for what in now}
pathlib.Path(out, f"measured-{generation}.json").write_text(json.dumps(d))
us = lambda what, by: 1e6 * d[what] / d[by]
print(f"   generation {generation}, by Prometheus:")
for kind in ("all_gather", "reduce_scatter"):
    count, seconds, predicted = (f"{kind} {what}" for what in buckets)
    if d[count]:
        print(f"     a bucket of {kind} was predicted to take {us(predicted, count):.0f} us, it took {us(seconds, count):.0f} us")
print(f"     exposed a run {us(plans[2], plans[0]):.0f} us predicted, {us(plans[1], plans[0]):.0f} us measured")
PY
}

step "Generation 0 trains by site@1"
train 0
sleep 1.5 # the agent's report
scraped 0

step "Costs from training"
"$bin/bucketctl" costs propose site --server "$planner" | sed 's/^/   /'
say "$("$bin/bucketctl" costs promote site@2 --server "$planner")"

step "Generation 1 trains by what was measured"
train 1
sleep 1.5
scraped 1
replaced="$(python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' \
  "http://$(http_of bucketd)/metrics" | sed -n 's/^bucketd_replans_total{outcome="replaced"} //p')"

step "What came of it"
"$python" - "$out" <<'PY'
import json, re, statistics, sys
out = sys.argv[1]
def read(name):
    return json.load(open(f"{out}/{name}.json"))
def ratio(kind, generation):
    of = read(f"measured-{generation}")
    predicted, took = (of[f"{kind} bucket_{what}_seconds_total"] for what in ("predicted", "collective"))
    return f"{predicted / took:.1f}" if took else "no"
for kind in ("all_gather", "reduce_scatter"):
    print(f"   a bucket of {kind} was predicted to take {ratio(kind, 0)} times what it took, then {ratio(kind, 1)} times")
print("   (a part of the step whose plan would gain too little by another one keeps its plan, and with it what that predicts)")
for scope, old, new in re.findall(r"pinned plan replaced .*scope=(\S+) .*pinned_ms=(\S+) fresh_ms=(\S+)", open(f"{out}/bucketd.log").read()):
    print(f"   {scope}: by the measured costs the plan of generation 0 takes {float(old):.3f} ms, that of generation 1 {float(new):.3f} ms")
steps = [statistics.median(read(f"start-{g}")["step_ms"][2:]) for g in (0, 1)]
print(f"   a step took {steps[0]:.1f} ms in generation 0 and {steps[1]:.1f} ms in generation 1 (medians; on a machine that does other things, too, they say little)")
PY
say "$replaced of the job's plans are new; logs and figures are in $out"
[ "$replaced" -ge 1 ]

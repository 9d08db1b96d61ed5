#!/usr/bin/env bash
# Everything that one GPU can show, in one call of less than ten minutes, from a tree where `ninja -C build gpu_checks` has run.
# On a machine of its own the sources and build/gpu_checks are enough; where torch for CUDA is, its NCCL and operators are used.
# Every part has a limit of its own, and all limits together are within the whole; what a part says is in results.txt as soon as it says it.
# A check is a line with its figure and its bound; at the end they are gpu_agent/RESULTS.md, with what to do about each that is not right.
# Exit: 0 all right, 1 something is wrong, 2 right but slower than the goal, 3 no GPU here.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
checks="${GPU_CHECKS_PROGRAMS:-$PWD/build/gpu_checks}"
out="${1:-$checks/out}"
python="${PYTHON:-python3}"
whole="${GPU_CHECKS_SECONDS:-570}"
results="${GPU_CHECKS_RESULTS:-gpu_agent/RESULTS.md}"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  echo "usage: gpu_agent/gpu_checks.sh [FOLDER]     results.txt, RESULTS.md and copies.tsv go to FOLDER (build/gpu_checks/out)"
  exit 0
fi
if [ ! -x "$checks/gpu_checks" ]; then
  echo "gpu_checks: $checks/gpu_checks is absent; ninja -C build gpu_checks builds it (CMake says whether it found CUDA)"
  exit 1
fi
mkdir -p "$out" || exit 1
exec > >(tee "$out/results.txt") 2>&1
tee=$!
# Whoever takes the folder when this ends finds all of it.
trap 'exec >&- 2>&-; wait $tee' EXIT

worst=0
summary=""
rows=""
wrong=""
# A limit stands for so many seconds of the usual whole: GPU_CHECKS_SECONDS=1140 gives each part twice its time.
usual=570
scaled() { echo $((($1 * whole + usual - 1) / usual)); }
# Runs a command for at most so many seconds, the three in which it may be killed among them, and no longer than the whole may take.
limited() {
  local limit left=$((whole - SECONDS))
  limit="$(scaled "$1")"
  shift
  [ $left -gt 0 ] || return 125
  [ $left -gt "$limit" ] || limit=$left
  timeout -k 3 $((limit > 6 ? limit - 3 : limit)) "$@"
}
# row NAME TOOK LIMIT VERDICT: of a part.
row() {
  summary+="$(printf '%-28s %6s  %s' "$1" "$2" "$4")"$'\n'
  rows+="| **$1** | $2 | $3 | $4 |"$'\n'
}
# skip NAME WHY
skip() {
  echo
  echo "== $1"
  echo "-- skipped: $2"
  row "$1" - - "skipped: $2"
}
# checks_of NAME FILE: rows of what a part said: of its lines CHECK|what|figure|bound|verdict, of GoogleTest's tests, of what compute-sanitizer
# found, and of calibrate's columns, which are nccl-tests'.
checks_of() {
  awk -v part="$1" '
    function check(what, figure, bound, holds) { print "| " what " | " figure " | " bound " | " (holds ? "right" : "WRONG") " |" }
    /^CHECK\|/ { split($0, field, "|"); print "| " field[2] " | " field[3] " | " field[4] " | " field[5] " |" }
    /^\[==========\] [0-9]+ tests? from .* ran\./ { tests = $2 }
    /^\[  PASSED  \] [0-9]+ test/ { passed = $4 }
    /^\[  SKIPPED \] [0-9]+ test/ { skipped = $4 }
    /=+ (RACECHECK|ERROR) SUMMARY: / { sub(/.*SUMMARY: /, ""); check(part ", what it found", $1, "0", $1 == 0) }
    /^#.* #wrong/ { columns = 0; for (i = 1; i <= NF; ++i) if ($i == "#wrong") column[++columns] = i - 1 }
    columns && $1 ~ /^[0-9]+$/ && NF > 10 { ++rows; for (i = 1; i <= columns; ++i) wrong += $column[i] }
    END {
      if (tests) check(part ", tests", (passed + 0) " of " tests (skipped ? ", " skipped " of them not here" : ""), "all", passed + skipped == tests)
      if (rows) check(part ", elements that were wrong", wrong " in " rows " rows", "0", wrong == 0)
    }' "$2"
}
# part NAME SECONDS ADVICE command...: runs it and keeps its verdict and its checks. The advice is for whoever reads that it is not right.
part() {
  local name="$1" limit="$2" advice="$3" begin=$SECONDS rc verdict said="$out/part.txt"
  shift 3
  echo
  echo "== $name"
  limited "$limit" "$@" > >(tee "$said") 2>&1
  rc=$?
  wait $!
  case $rc in
    0) verdict=right ;;
    2) verdict="right, below the goal"; [ $worst -eq 0 ] && worst=2 ;;
    3) verdict="not here$(tail -n 1 "$said" | cut -c1-100 | sed 's/^/: /')" ;;
    124 | 137) verdict="WRONG: took too long"; worst=1 ;;
    125) verdict="WRONG: no time was left"; worst=1 ;;
    *) verdict="WRONG (exit $rc)"; worst=1 ;;
  esac
  echo "-- $verdict"
  row "$name" "$((SECONDS - begin)) s" "$(scaled "$limit") s" "$verdict"
  rows+="$(checks_of "$name" "$said")"$'\n'
  case $rc in
    0 | 3) ;;
    124 | 137 | 125) explain "$name" "$verdict" "It hung, or this machine is slow: GPU_CHECKS_SECONDS=1140 gives every part twice its time. If it hangs again: $advice" ;;
    *) explain "$name" "$verdict" "$advice" ;;
  esac
  rm -f "$said"
  return $rc
}
# explain NAME VERDICT ADVICE: here and in RESULTS.md, there with the last that the part said.
explain() {
  echo "   $3"
  wrong+=$'\n'"**$1**: $2. $3"$'\n\n'"$(grep -v '^CHECK|.*|right$' "$said" | tail -n 12 | cut -c1-200 | sed 's/^/    /')"$'\n'
}

# One that was put beside the programs, a newer one; else torch's own, before one of the system.
if [ -z "${BUCKETD_NCCL_LIB:-}" ] && [ -f "$checks/libnccl.so.2" ]; then
  export BUCKETD_NCCL_LIB="$checks/libnccl.so.2"
elif [ -z "${BUCKETD_NCCL_LIB:-}" ]; then
  wheel="$(limited 10 "$python" -c 'import importlib.util as u; print(*u.find_spec("nvidia.nccl").submodule_search_locations)' 2>/dev/null)"
  [ -n "$wheel" ] && [ -f "$wheel/lib/libnccl.so.2" ] && export BUCKETD_NCCL_LIB="$wheel/lib/libnccl.so.2"
fi

echo "== machine"
gpu="$(limited 10 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "nvidia-smi: not here")"
echo "$gpu"
backend="$(limited 20 "$checks/gpu_checks" backend)"
rc=$?
echo "$backend"
if [ $rc -eq 3 ]; then
  echo "gpu_checks: there is no GPU here, so nothing was checked"
  exit 3
elif [ $rc -ne 0 ]; then
  echo "gpu_checks: the GPU cannot be used (exit $rc), so nothing was checked: what stands above is CUDA's word. Another process may have all of"
  echo "its memory, or have it for itself (nvidia-smi), or the driver is older than the CUDA that the programs were built with wants"
  exit 1
fi

steps="$checks/gpu_steps --gtest_filter=NAME runs one alone, NCCL_DEBUG=INFO says what NCCL does. Until it is right here, trainers on this machine leave executor=\"bucketd\" out."
part "kernels bit for bit" 30 "The kernels copy other bytes than the processor: use no bucket here. The line above names the first segment that differs; report it with GPU and driver." \
  "$checks/gpu_checks" bits
part "copies" 60 "Wrong bits: use no bucket here, and report the line. Below the goal: nothing is wrong, but packing takes longer than it could; copies.tsv has every size and rival. Was the GPU busy with something else (nvidia-smi)?" \
  "$checks/gpu_checks" copies "$out/copies.tsv"
if [ -s "$out/copies.tsv" ]; then
  part "torch's FSDP operators" 20 "Nothing is wrong: torch's own copies are faster at the sizes above, so that packed buckets of these gain less than planned." \
    "$python" tests/gpu_agent/checks/torch_ops.py "$out/copies.tsv"
else
  skip "torch's FSDP operators" "there are no copies to compare with"
fi

# Several ranks on one GPU are refused before 2.30, and want small grids to run side by side.
nccl="$(grep -o 'NCCL 2\.[0-9]*' <<<"$backend" | head -1 | cut -d. -f2)"
several="several ranks on one GPU want NCCL 2.30 or newer: put its libnccl.so.2 into $checks"
# Streams of all of them want queues of their own, or one rank's kernel is held behind another's that waits for it.
[ "${nccl:-0}" -ge 30 ] && export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 GPU_CHECKS_RANKS=3 CUDA_DEVICE_MAX_CONNECTIONS=32
part "NCCL" 45 "A collective hung or gave other bits than the processor's: try another NCCL (BUCKETD_NCCL_LIB=FILE), then NCCL_MAX_CTAS=1; NCCL_DEBUG=INFO $checks/gpu_conformance --gtest_filter=NAME runs one alone." \
  "$checks/gpu_conformance"
[ "${nccl:-0}" -ge 30 ] || skip "NCCL, 2 and 3 ranks" "$several"
part "an executor on a GPU" 75 "$steps A goal that is missed is a figure to plan with, no fault." \
  env -u NCCL_LAUNCH_ORDER_IMPLICIT "$checks/gpu_steps" --gtest_filter='-*Graph*:ProfilerPlugin.*'
# Of two ranks each has its graph, and two graphs of one context did not run side by side: torch's part has two processes.
part "graphs of an executor" 15 "$steps" env GPU_CHECKS_RANKS=1 "$checks/gpu_steps" --gtest_filter='*Graph*'
if [ "${nccl:-0}" -ge 30 ]; then
  part "NCCL's profiler plugin" 15 "Leave NCCL_PROFILER_PLUGIN unset with this NCCL: its interface is another one, or the kernels' clock is. NCCL_DEBUG=INFO says what NCCL makes of the plugin. Nothing else is concerned." \
    env LD_LIBRARY_PATH="$checks:${LD_LIBRARY_PATH:-}" NCCL_PROFILER_PLUGIN="${GPU_CHECKS_PLUGIN:-$checks/libbucketd_nccl_profiler.so}" "$checks/gpu_steps" --gtest_brief=1 --gtest_filter='ProfilerPlugin.*'
else
  skip "NCCL's profiler plugin" "a communicator of one rank runs no kernel, and $several"
fi
# torch has its own NCCL already, of which its communicators are: one that was put beside the programs would be another.
part "torch's tensors" 30 "The Python client's part on GPUs (client/python/bucketd/on_device.py) gives other bits than torch.distributed, or fails: trainers on this machine leave executor=\"bucketd\" out. torch's version stands above." \
  env -u BUCKETD_NCCL_LIB LD_LIBRARY_PATH="$checks:${LD_LIBRARY_PATH:-}" "$python" tests/gpu_agent/checks/torch_buckets.py "$checks/libbucket_executor.so"
# Processes, as a trainer's ranks are, so that NCCL's order of launches is that of one rank: two that share a context hang by it.
# What torch's own NCCL would refuse, a newer one in its place takes.
two=(env -u BUCKETD_NCCL_LIB ${BUCKETD_NCCL_LIB:+LD_PRELOAD="$BUCKETD_NCCL_LIB"} NCCL_LAUNCH_ORDER_IMPLICIT=1 LD_LIBRARY_PATH="$checks:${LD_LIBRARY_PATH:-}" "$python")
if [ "${nccl:-0}" -ge 30 ]; then
  part "torch's tensors, 2 processes" 60 "Two ranks give other bits than torch.distributed, or hang: NCCL_DEBUG=INFO says what NCCL does. Until it is right here, trainers on this machine leave executor=\"bucketd\" out." \
    "${two[@]}" tests/gpu_agent/checks/torch_buckets.py --ranks 2 "$checks/libbucket_executor.so"
  part "a training" 60 "A training of two ranks has other bits than eager FSDP2, or fails: the line above says whether it is the plan's, or its buckets' by the executor. Until it is right here, trainers on this machine go without what is wrong." \
    "${two[@]}" tests/gpu_agent/checks/torch_training.py "$checks/libbucket_executor.so" "$checks/bucketd"
else
  skip "torch's tensors, 2 processes" "$several"
  skip "a training" "$several"
fi
part "shared bucket memory" 15 "Memory that one process exports to another does not outlive it, or is not given back: containers want one /dev/shm and may not forbid the driver's file descriptors. No trainer uses it yet." \
  "$checks/gpu_checks" sharing
if [ "${nccl:-0}" -ge 30 ]; then
  # Two processes on one GPU take turns, and others may compute there: slow, but every payload is verified.
  # Its exit codes are others than ours.
  # shellcheck disable=SC2016
  part "calibrate through NCCL" 20 "bucket-agent cannot measure with NCCL here; its last line says why. With --backend ring it measures the processor's." \
    env LD_LIBRARY_PATH="$checks:${LD_LIBRARY_PATH:-}" bash -c '"$0" "$@" || exit 1' \
    "$checks/bucket-agent" calibrate --backend nccl --ranks 2 --max-bytes 65536 --measure-when always --profile-out "$out/profile.json"
else
  skip "calibrate through NCCL" "$several"
fi
sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
found="compute-sanitizer found what stands above, in a kernel or a call that it names: a fault of ours, also where all bits are right. Report it, and use no bucket on a GPU."
for tool in memcheck initcheck racecheck; do
  if [ -z "$sanitizer" ]; then
    skip "kernels under $tool" "compute-sanitizer is not here; CUDA's toolkit has it"
  else
    part "kernels under $tool" 15 "$found" env GPU_CHECKS_TIMES=1 "$sanitizer" --tool $tool --error-exitcode 9 "$checks/gpu_checks" bits
  fi
done
if [ -z "$sanitizer" ]; then
  skip "closes under memcheck" "compute-sanitizer is not here; CUDA's toolkit has it"
else
  # NCCL tries out what a GPU has by calls that fail: they are no errors here.
  part "closes under memcheck" 40 "$found" env GPU_CHECKS_TIMES=1 "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$checks/gpu_steps" --gtest_brief=1 --gtest_filter='*Close*'
fi

case $worst in
  0) overall="All right." ;;
  2) overall="All right, with goals that were missed." ;;
  *) overall="Something is WRONG: see the end of RESULTS.md." ;;
esac
{
  echo "# What a GPU has shown"
  echo
  echo "$overall Written by \`gpu_agent/gpu_checks.sh\`; [what each check is](../tests/gpu_agent/checks/README.md). A part's line (bold) has the time that it took, its limit"
  echo "and its verdict; a check's has its figure, its bound or goal, and its verdict."
  echo
  printf '    %s\n' "$(date -u +%F), $SECONDS s, sources $(git describe --always --dirty 2>/dev/null || echo "without git")" "${gpu//$'\n'/; }"
  sed 's/^/    /' <<<"$backend"
  echo
  echo "| check | figure | bound | verdict |"
  echo "|---|---|---|---|"
  grep . <<<"$rows"
  [ -z "$wrong" ] || printf '\n## What is not right, and what to do\n%s' "$wrong"
} > "$out/RESULTS.md"
cp "$out/RESULTS.md" "$results" 2>/dev/null || echo "gpu_checks: $results cannot be written; $out/RESULTS.md has it"

echo
echo "== summary"
printf '%s' "$summary"
echo "$overall"
exit $worst

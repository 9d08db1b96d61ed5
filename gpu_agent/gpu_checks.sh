#!/usr/bin/env bash
# Everything that one GPU can show, in one call of less than ten minutes, from a tree where `ninja -C build gpu_checks` has run.
# On a machine of its own the sources and build/gpu_checks are enough; where torch for CUDA is, its NCCL and operators are used.
# Every part has a limit of its own and all of them one together; what a part says is in results.txt as soon as it says it. A check is a
# line with its figure and its bound; at the end they are gpu_agent/RESULTS.md.
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
# Runs a command for at most so many seconds, and no longer than the whole may take.
limited() {
  local limit="$1" left=$((whole - SECONDS))
  shift
  [ $left -gt 0 ] || return 125
  [ $left -gt "$limit" ] || limit=$left
  timeout -k 5 "$limit" "$@"
}
# part NAME SECONDS command...: runs it and keeps its verdict, and its lines CHECK|what|figure|bound|verdict.
part() {
  local name="$1" limit="$2" begin=$SECONDS rc verdict said="$out/part.txt"
  shift 2
  echo
  echo "== $name"
  limited "$limit" "$@" > >(tee "$said") 2>&1
  rc=$?
  wait $!
  case $rc in
    0) verdict=right ;;
    2) verdict="right, below the goal"; [ $worst -eq 0 ] && worst=2 ;;
    3) verdict="not here" ;;
    124 | 137) verdict="WRONG: took too long"; worst=1 ;;
    125) verdict="WRONG: no time was left"; worst=1 ;;
    *) verdict="WRONG (exit $rc)"; worst=1 ;;
  esac
  echo "-- $verdict"
  summary+="$(printf '%-28s %-28s %4d s' "$name" "$verdict" $((SECONDS - begin)))"$'\n'
  rows+="| **$name** | $((SECONDS - begin)) s | $limit s | $verdict |"$'\n'
  rows+="$(sed -n "s/^CHECK|\(.*\)|\(.*\)|\(.*\)|\(.*\)$/| \1 | \2 | \3 | \4 |/p" "$said")"$'\n'
  rm -f "$said"
  return $rc
}

# One that was put beside the programs, a newer one; else torch's own, before one of the system.
if [ -z "${BUCKETD_NCCL_LIB:-}" ] && [ -f "$checks/libnccl.so.2" ]; then
  export BUCKETD_NCCL_LIB="$checks/libnccl.so.2"
elif [ -z "${BUCKETD_NCCL_LIB:-}" ]; then
  wheel="$(limited 20 "$python" -c 'import importlib.util as u; print(*u.find_spec("nvidia.nccl").submodule_search_locations)' 2>/dev/null)"
  [ -n "$wheel" ] && [ -f "$wheel/lib/libnccl.so.2" ] && export BUCKETD_NCCL_LIB="$wheel/lib/libnccl.so.2"
fi

echo "== machine"
gpu="$(limited 20 nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "nvidia-smi: not here")"
echo "$gpu"
backend="$(limited 60 "$checks/gpu_checks" backend)"
rc=$?
echo "$backend"
if [ $rc -eq 3 ]; then
  echo "gpu_checks: there is no GPU here, so nothing was checked"
  exit 3
elif [ $rc -ne 0 ]; then
  echo "gpu_checks: the GPU cannot be used (exit $rc), so nothing was checked"
  exit 1
fi

part "kernels bit for bit" 60 "$checks/gpu_checks" bits
part "copies" 120 "$checks/gpu_checks" copies "$out/copies.tsv"
[ -s "$out/copies.tsv" ] && part "torch's FSDP operators" 60 "$python" tests/gpu_agent/checks/torch_ops.py "$out/copies.tsv"

# Several ranks on one GPU are refused before 2.30, and want small grids to run side by side.
nccl="$(grep -o 'NCCL 2\.[0-9]*' <<<"$backend" | head -1 | cut -d. -f2)"
[ "${nccl:-0}" -ge 30 ] && export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 GPU_CHECKS_RANKS=3
part "NCCL" 120 "$checks/gpu_conformance" --gtest_brief=1
part "an executor on a GPU" 120 env -u NCCL_LAUNCH_ORDER_IMPLICIT "$checks/gpu_steps" --gtest_brief=1
part "lanes in NCCL's launch order" 40 env NCCL_LAUNCH_ORDER_IMPLICIT=1 "$checks/gpu_steps" --gtest_brief=1 --gtest_filter='*Lanes*'
part "torch's tensors" 90 env LD_LIBRARY_PATH="$checks:${LD_LIBRARY_PATH:-}" "$python" tests/gpu_agent/checks/torch_buckets.py "$checks/libbucket_executor.so"
part "shared bucket memory" 60 "$checks/gpu_checks" sharing
if [ "${nccl:-0}" -ge 30 ]; then
  # Two processes on one GPU take turns: slow, but every payload is verified.
  # Its exit codes are others than ours.
  # shellcheck disable=SC2016
  part "calibrate through NCCL" 60 env LD_LIBRARY_PATH="$checks" bash -c '"$0" "$@" || exit 1' \
    "$checks/bucket-agent" calibrate --backend nccl --ranks 2 --max-bytes 65536 --profile-out "$out/profile.json"
else
  echo; echo "== one NCCL rank only: several on one GPU want 2.30 or newer"
fi
sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
if [ -n "$sanitizer" ]; then
  for tool in memcheck initcheck racecheck; do
    part "kernels under $tool" 60 env GPU_CHECKS_TIMES=1 "$sanitizer" --tool $tool --error-exitcode 9 "$checks/gpu_checks" bits
  done
  part "closes under memcheck" 60 env GPU_CHECKS_TIMES=2 "$sanitizer" --tool memcheck --error-exitcode 9 "$checks/gpu_steps" --gtest_brief=1 --gtest_filter='*Close*'
else
  echo; echo "== compute-sanitizer: not here"
fi

{
  echo "# What a GPU has shown"
  echo
  echo "Written by \`gpu_agent/gpu_checks.sh\`; [what each check is](../tests/gpu_agent/checks/README.md). A part's line has the time that it took and its limit,"
  echo "a check's its figure and its bound."
  echo
  printf '    %s\n' "$(date -u +%F)" "${gpu//$'\n'/; }"
  sed 's/^/    /' <<<"$backend"
  echo
  echo "| check | figure | bound | verdict |"
  echo "|---|---|---|---|"
  grep . <<<"$rows"
} > "$out/RESULTS.md"
cp "$out/RESULTS.md" "$results" 2>/dev/null || echo "gpu_checks: $results cannot be written; $out/RESULTS.md has it"

echo
echo "== summary"
printf '%s' "$summary"
exit $worst

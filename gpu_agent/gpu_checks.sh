#!/usr/bin/env bash
# Everything that one GPU can show, in one call of less than ten minutes, from a tree where `ninja -C build gpu_checks` has run.
# On a machine of its own the sources and build/gpu_checks are enough; where torch for CUDA is, its NCCL and operators are used.
# Exit: 0 all right, 1 something is wrong, 2 right but slower than the goal, 3 no GPU here.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checks="$PWD/build/gpu_checks"
out="${1:-$checks/out}"
python="${PYTHON:-python3}"

if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  echo "usage: gpu_agent/gpu_checks.sh [FOLDER]     results.txt and copies.tsv go to FOLDER (build/gpu_checks/out)"
  exit 0
fi
if [ ! -x "$checks/gpu_checks" ]; then
  echo "gpu_checks: $checks/gpu_checks is absent; ninja -C build gpu_checks builds it (CMake says whether it found CUDA)"
  exit 1
fi
mkdir -p "$out"
exec > >(tee "$out/results.txt") 2>&1

worst=0
summary=""
# part NAME SECONDS command...: runs it and keeps its verdict.
part() {
  local name="$1" limit="$2" begin rc verdict
  shift 2
  echo
  echo "== $name"
  begin=$SECONDS
  timeout -k 10 "$limit" "$@"
  rc=$?
  case $rc in
    0) verdict=right ;;
    2) verdict="right, below the goal"; [ $worst -eq 0 ] && worst=2 ;;
    3) verdict="not here" ;;
    124 | 137) verdict="WRONG: longer than $limit s"; worst=1 ;;
    *) verdict="WRONG (exit $rc)"; worst=1 ;;
  esac
  summary+="$(printf '%-28s %-28s %4d s' "$name" "$verdict" $((SECONDS - begin)))"$'\n'
  return $rc
}

# torch's own NCCL, before one of the system.
if [ -z "${BUCKETD_NCCL_LIB:-}" ]; then
  wheel="$("$python" -c 'import importlib.util as u; print(*u.find_spec("nvidia.nccl").submodule_search_locations)' 2>/dev/null)"
  [ -n "$wheel" ] && [ -f "$wheel/lib/libnccl.so.2" ] && export BUCKETD_NCCL_LIB="$wheel/lib/libnccl.so.2"
fi

echo "== machine"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
backend="$("$checks/gpu_checks" backend)"
rc=$?
echo "$backend"
if [ $rc -eq 3 ]; then
  echo "gpu_checks: there is no GPU here, so nothing was checked"
  exit 3
fi
[ $rc -eq 0 ] || exit 1

part "kernels bit for bit" 60 "$checks/gpu_checks" bits
sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
if [ -n "$sanitizer" ]; then
  part "compute-sanitizer memcheck" 100 "$sanitizer" --tool memcheck --error-exitcode 9 "$checks/gpu_checks" bits
else
  echo; echo "== compute-sanitizer: not here"
fi
part "copies" 120 "$checks/gpu_checks" copies "$out/copies.tsv"
[ -s "$out/copies.tsv" ] && part "torch's FSDP operators" 60 "$python" gpu_agent/cuda/checks/torch_ops.py "$out/copies.tsv"

# Several ranks on one GPU are refused before 2.30, and want small grids to run side by side.
nccl="$(grep -o 'NCCL 2\.[0-9]*' <<<"$backend" | head -1 | cut -d. -f2)"
if [ "${nccl:-0}" -ge 30 ]; then
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 GPU_CHECKS_RANKS=3
else
  echo; echo "== one NCCL rank only: several on one GPU want 2.30 or newer"
fi
part "NCCL" 180 "$checks/gpu_conformance" --gtest_brief=1
part "shared bucket memory" 60 "$checks/gpu_checks" sharing

echo
echo "== summary"
printf '%s' "$summary"
exit $worst

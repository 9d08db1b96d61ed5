# Shell helpers of the scripts beside this file; sourced, from the repository root.
started=$SECONDS
step() { printf '\n== %s  [%d s]\n' "$*" $((SECONDS - started)); }
say() { printf '   %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs a command, showing its output only if it fails.
quietly() {
  local log
  log="$(mktemp)"
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "failed: $*"
  fi
  rm -f "$log"
}

#!/usr/bin/env bash
# A Slurm prolog: measures this node's collectives before a job begins, at most once in EVERY_HOURS, and gives them to the planner as a
# new version of a cost profile. In slurm.conf: Prolog=/etc/bucketd/prolog.sh
# With NCCL nothing is measured while another job computes on a GPU of the node; as after any failure, a prolog tries again once
# RETRY_HOURS are over. The ring looks for nobody: its nodes are to be given out whole (OverSubscribe=EXCLUSIVE).
#
# It takes some ten seconds when it measures, never more than LIMIT (5 s beyond, where it does not end when told to), and ends well whatever happens: a prolog that fails takes its node away.
# Settings in /etc/bucketd/prolog.env (or the file that BUCKETD_PROLOG_ENV names):
#   PLANNER=planner:9460      required
#   RANKS=8                   GPUs of the node (default: 2)
#   BACKEND=nccl              or auto, ring (default: auto)
#   PROFILE=nodes             the profile's name (default: prolog); old versions go that were never promoted
#   MORE="--link-class nvlink --promote"
#   EVERY_HOURS=24            until this node is measured again
#   RETRY_HOURS=1             where that failed, or nobody took it
#   LIMIT=60                  seconds
# What bucket-agent reads (BUCKETD_CLIENT_CA and its kin) may stand there, too.
set -uo pipefail
trap 'exit 0' EXIT  # settings that are no good included

settings=${BUCKETD_PROLOG_ENV:-/etc/bucketd/prolog.env}
state=${BUCKETD_PROLOG_STATE:-/var/lib/bucketd-prolog}
say() { echo "bucketd prolog: $*" >&2; }

set -a
# shellcheck source=/dev/null
[ -r "$settings" ] && . "$settings"
set +a
[ -n "${PLANNER:-}" ] || { say "PLANNER is not set in $settings: nothing is measured"; exit 0; }
mkdir -p "$state" || { say "cannot make $state: nothing is measured"; exit 0; }

# One at a time: of several jobs that begin on a shared node the first one measures.
exec 9> "$state/lock"
flock --nonblock 9 || exit 0
stamp=$state/measured
failed=$state/failed
within() { [ -n "$(find "$1" -mmin "-$(($2 * 60))" 2>/dev/null)" ]; }
if within "$stamp" "${EVERY_HOURS:-24}" || within "$failed" "${RETRY_HOURS:-1}"; then exit 0; fi

# shellcheck disable=SC2086
if timeout --kill-after=5 "${LIMIT:-60}" "${BUCKET_AGENT:-bucket-agent}" calibrate --backend "${BACKEND:-auto}" --ranks "${RANKS:-2}" \
  --planner "$PLANNER" --name "${PROFILE:-prolog}" ${MORE:-} > "$state/log" 2> "$state/errors" 9>&-; then
  rm -f "$failed"
  touch "$stamp"
  say "measured, for $PLANNER; $state/log"
else
  said=$?
  touch "$failed"
  say "not measured, exit code $said; the job begins all the same: $(tail -n 1 "$state/errors")"
fi

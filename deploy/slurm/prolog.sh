#!/usr/bin/env bash
# A Slurm prolog: measures this node's collectives before a job begins, when nobody else computes here, at most once in EVERY_HOURS, and
# gives them to the planner as a new version of a cost profile. In slurm.conf: Prolog=/etc/bucketd/prolog.sh
#
# It takes some ten seconds when it measures, never more than LIMIT, and ends well whatever happens: a prolog that fails takes its node away.
# Settings in /etc/bucketd/prolog.env (or the file that BUCKETD_PROLOG_ENV names):
#   PLANNER=planner:9460      required
#   RANKS=8                   GPUs of the node (default: 2)
#   BACKEND=nccl              or auto, ring (default: auto)
#   PROFILE=nodes             the profile's name (default: prolog); old versions go that were never promoted
#   MORE="--link-class nvlink --promote"
#   EVERY_HOURS=24            until this node is measured again
#   LIMIT=60                  seconds
set -uo pipefail

settings=${BUCKETD_PROLOG_ENV:-/etc/bucketd/prolog.env}
state=${BUCKETD_PROLOG_STATE:-/var/lib/bucketd-prolog}
say() { echo "bucketd prolog: $*" >&2; }

# shellcheck source=/dev/null
[ -r "$settings" ] && . "$settings"
[ -n "${PLANNER:-}" ] || { say "PLANNER is not set in $settings: nothing is measured"; exit 0; }
mkdir -p "$state" || { say "cannot make $state: nothing is measured"; exit 0; }

# One at a time: of several jobs that begin on a shared node the first one measures.
exec 9> "$state/lock"
flock --nonblock 9 || exit 0
stamp=$state/measured
if [ -n "$(find "$stamp" -mmin "-$((${EVERY_HOURS:-24} * 60))" 2>/dev/null)" ]; then exit 0; fi

# shellcheck disable=SC2086
if timeout --kill-after=5 "${LIMIT:-60}" "${BUCKET_AGENT:-bucket-agent}" calibrate --backend "${BACKEND:-auto}" --ranks "${RANKS:-2}" \
  --planner "$PLANNER" --name "${PROFILE:-prolog}" ${MORE:-} > "$state/log" 2> "$state/errors" 9>&-; then
  touch "$stamp"
  say "measured, for $PLANNER; $state/log"
else
  say "not measured, exit code $?; the job begins all the same: $(tail -n 1 "$state/errors")"
fi
exit 0

#!/usr/bin/env bash
# Measures the collectives between the nodes of a Slurm job, as a step of it with one task on each node, when nobody computes there:
#   srun --ntasks-per-node=1 calibrate.sh --planner planner:9460 --interface eth0 --ranks 8 --name cluster
# --ranks: GPUs of a node. What else there is: bucket-agent calibrate --help
set -euo pipefail
nodes=${SLURM_STEP_NUM_NODES:-${SLURM_NNODES:?is run by srun}}
exec "${BUCKET_AGENT:-bucket-agent}" calibrate --nodes "$nodes" --node "${SLURM_NODEID:?is run by srun}" \
  --group "calibrate/${SLURM_JOB_ID:?is run by srun}.${SLURM_STEP_ID:-0}" "$@"

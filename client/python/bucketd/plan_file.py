"""Plan files: passes/plan/PLAN_FORMAT.md. What `bucketctl` and the referee read."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

from . import files
from .plan import Plan, Step, StepKind

if TYPE_CHECKING:
    from .session import Planned


def to_json(plan: Plan) -> dict:
    """Ids stay what they are: canonical ones, for a plan that came over the wire."""
    return {
        "format_version": 1,
        "graph": plan.graph_digest.hex(),
        "node_count": plan.node_count,
        "mode": plan.mode,
        "planner": plan.planner,
        "cost_profile": plan.cost_profile,
        "numerics": plan.numerics,
        "backend": plan.backend,
        "bits": plan.bits or "unsaid",
        "bits_text": plan.bits_text,
        "buckets": [_bucket(bucket) for bucket in plan.buckets],
        "order": [_step(step) for step in plan.order],
        "prediction": dataclasses.asdict(plan.prediction),
        "program_order": dataclasses.asdict(plan.program_order),
        "lower_bound_ps": plan.lower_bound_ps,
        "diagnostics": [dataclasses.asdict(diagnostic) for diagnostic in plan.diagnostics],
    }


def save_planned(planned: Planned, stem: str | os.PathLike[str]) -> tuple[str, str]:
    """Writes what an on_plan callback got as `<stem>.graph.json.gz` and `<stem>.plan.json`, whose ids agree: the graph is
    the normalised one. The same plan gives the same bytes. Returns both names."""
    names = f"{os.fspath(stem)}.graph.json.gz", f"{os.fspath(stem)}.plan.json"
    files.save_graph(planned.normalized.as_raw(planned.captured.raw), names[0])
    files.write_whole(names[1], json.dumps(to_json(planned.plan), separators=(",", ":")).encode() + b"\n")
    return names


def _bucket(bucket) -> dict:
    out = dataclasses.asdict(bucket)
    out["mode"] = "packed" if out.pop("packed") else "grouped"
    out["reduce_op"] = bucket.reduce_op or "none"
    return out


def _step(step: Step) -> int | str:
    if step.kind == StepKind.NODE:
        return step.id
    return f"{'start' if step.kind == StepKind.START else 'wait'}:{step.id}"

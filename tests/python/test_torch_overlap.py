"""`upstream on` beside PyTorch's own overlap pass, on captured steps of tests/data: equal costs, equal options, and then the same
buckets and the same order."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import torch.distributed as dist
from torch_overlap import Outcome, Step

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRAPHS = ROOT / "tests" / "data" / "graphs"
BINARY = pathlib.Path(os.environ.get("BUCKETD_BIN", ROOT / "build" / "bin")) / "bucketctl"

pytestmark = pytest.mark.slow

# 70B is not among them: PyTorch's order is another one there.
MODELS = ("llama3_debug_ddp8", "llama3_debug_fsdp8", "llama3_debug_fsdp4_tp2", "llama3_debug_hsdp2x4_rsar", "moe_debug_fsdp4_ep4",
          "llama3_8b_fsdp8", "llama3_8b_fsdp4_tp2")
EQUAL = tuple(f"{model}.{part}" for model in MODELS for part in ("fw", "bw", "joint"))
# `-m full` runs the rest.
FAST = ("llama3_debug_ddp8.bw", "llama3_debug_fsdp8.fw", "llama3_debug_fsdp4_tp2.fw", "llama3_debug_hsdp2x4_rsar.fw",
        "llama3_debug_hsdp2x4_rsar.joint", "moe_debug_fsdp4_ep4.fw")


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def planned(name: str, folder: pathlib.Path, *flags: str) -> Outcome:
    path = GRAPHS / f"{name}.json.gz"
    subprocess.run([BINARY, "plan", path, "--mode", "overlap", "--upstream", "on", "--numerics", "free", *flags,
                    "--memory-limit", "1000x", "--plan-out", folder / "plan.json"], check=True, capture_output=True)
    plan = json.loads((folder / "plan.json").read_text())
    nodes = Step.read(path)["nodes"]
    buckets = [bucket["members"] for bucket in plan["buckets"]]
    order = []
    for step in plan["order"]:
        if isinstance(step, str):
            kind, bucket = step.split(":")
            order += [min(buckets[int(bucket)])] if kind == "start" else []
        elif Step.orders(nodes[step]):
            order.append(step)
    return Outcome(frozenset(map(frozenset, buckets)), tuple(order))


def launches(outcome: Outcome, nodes) -> dict[str, int]:
    counts: dict[str, int] = {}
    for i in outcome.order:
        if "coll" in nodes[i]:
            counts[nodes[i]["coll"]["kind"]] = counts.get(nodes[i]["coll"]["kind"], 0) + 1
    return counts


def steps(names):
    return pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.full) for name in names])


@steps(EQUAL)
def test_without_buckets_the_order_is_pytorchs(name, tmp_path):
    theirs = Step(GRAPHS / f"{name}.json.gz").outcome(pre_bucketing_fsdp_collectives=False, collective_bucketing=False)
    assert planned(name, tmp_path, "--pre-bucketing", "off", "--overlap-bucketing", "off") == theirs


@steps(EQUAL)
def test_without_pre_bucketing_buckets_and_order_are_pytorchs(name, tmp_path):
    step = Step(GRAPHS / f"{name}.json.gz")
    theirs = step.outcome(pre_bucketing_fsdp_collectives=False)
    ours = planned(name, tmp_path, "--pre-bucketing", "off")
    assert launches(ours, step.file["nodes"]) == launches(theirs, step.file["nodes"])
    assert ours == theirs

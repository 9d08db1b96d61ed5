#!/usr/bin/env python3
"""Trainings with bucketd's plan beside the same without it: integrations x models x parallelisms, as a table.

    tests/bench/trainers.py [--steps N] [--only TEXT]

A line is one job of 4 gloo processes on this machine in which two trainers of one model take turns, a step each: one with a plan
by the private planner, one without. Under torchtitan (its Trainer, its debug models) that is one with torchtitan's own bucketing
pass; under torch.compile (the example Llama) collectives there go each alone. "bits" says whether all ranks end with the same losses
and weights, of "each alone", "its pass" and "planned" the launches of parameters' and gradients' collectives in the graphs that ran,
"guards" and "breaks" what Dynamo made, planned/without ("-": no Dynamo), "step" is the median over the pairs of steps of the planned
step's time through the other's, with a 95 % interval (bootstrap over the pairs).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import sys
import tempfile

from paired import interval

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "python")]

from ranks import run_ranks  # noqa: E402

WORLD = 4
# Settings of torchtitan's compile, and what its own run has besides.
COMPILE = {"aot_fx_trace": {}, "jit": {"mode": "jit"}, "Inductor": {"inductor_compilation": "full"}, "jit, Inductor": {"mode": "jit", "backend": "inductor"}}
OWN = {"jit": {"passes": ["transformer_block_bucketing"]}}
PARALLELISMS = {
    "FSDP": {},
    "HSDP 2x2": {"data_parallel_replicate_degree": 2},
    "FSDP + TP 2x2": {"tensor_parallel_degree": 2},
    "FSDP, experts on 2": {"expert_parallel_degree": 2},
}


@dataclasses.dataclass(frozen=True)
class Case:
    integration: str
    model: str
    parallelism: str
    mode: str = "auto"

    def __str__(self):
        return f"{self.integration}, {self.model}, {self.parallelism}, {self.mode}"


CASES = [
    Case("aot_fx_trace", "llama3", "FSDP"),
    Case("aot_fx_trace", "deepseek_v3", "FSDP, experts on 2"),
    Case("aot_fx_trace", "llama3", "HSDP 2x2"),
    Case("aot_fx_trace", "llama3", "FSDP + TP 2x2"),
    Case("aot_fx_trace", "deepseek_v3", "FSDP"),
    Case("aot_fx_trace", "qwen3", "FSDP"),
    Case("jit", "llama3", "FSDP"),
    Case("jit", "llama3", "HSDP 2x2"),
    Case("jit", "deepseek_v3", "FSDP, experts on 2"),
    Case("jit, Inductor", "llama3", "FSDP", "transformer_block"),
    Case("jit, Inductor", "deepseek_v3", "FSDP, experts on 2", "transformer_block"),
    # What Inductor fuses hangs on the order of nodes, and with it where bf16 is rounded; this mode leaves compute where it is.
    Case("Inductor", "llama3", "FSDP", "transformer_block"),
    Case("Inductor", "deepseek_v3", "FSDP, experts on 2", "transformer_block"),
    Case("torch.compile aot_eager", "example", "FSDP"),
    Case("torch.compile aot_eager", "example", "HSDP 2x2"),
    Case("torch.compile inductor", "example", "FSDP"),
    Case("torch.compile inductor", "example", "HSDP 2x2"),
]


def train(case: Case, steps: int, assets: pathlib.Path, patience: float = 900, **more) -> list[dict]:
    """What each rank saw of the runs "own" and "planned"; `assets` is a folder that titan_on_cpu.assets() filled. A step may take
    `patience` seconds, the first one compiles. `more` are options of bucketd beside the mode."""
    options = {"mode": case.mode, **more}
    if case.integration.startswith("torch.compile"):
        asked = {"compiler": case.integration.split()[1], "parallelism": case.parallelism.split()[0].lower(), "steps": steps, "bucketd": options}
        said = run_ranks("compile_worker.py", WORLD, json.dumps(asked), timeout=patience, by_line=True)
        return [json.loads(text.splitlines()[-1]) for text in said]
    common = {"model": case.model, "steps": steps, "parallelism": PARALLELISMS[case.parallelism]}
    asked = COMPILE[case.integration]
    runs = {"own": {**common, "compile": {**asked, **OWN.get(case.integration, {})}},
            "planned": {**common, "bucketd": options, "compile": {**asked, "pass_pipeline": "bucketd"}}}
    # Nothing is fetched, and what torchtitan's data set makes of our file stays beside it.
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(assets / "hf")}
    said = run_ranks("titan_worker.py", WORLD, json.dumps(dict(assets=str(assets), runs=runs, paired=True)), timeout=patience, by_line=True, **offline)
    return [json.loads(text.splitlines()[-1]) for text in said]


@dataclasses.dataclass(frozen=True)
class Row:
    same: bool
    alone: int  # launches of parameters' and gradients' collectives
    own: int | None  # None: torchtitan does not show its graph, or there is no other pass
    planned: int
    guards: tuple[int, int]  # with a plan, without
    breaks: tuple[int, int]
    ratio: tuple[float, float, float]  # median, and what it lies between

    def __str__(self):
        def of(pair):
            return "{}/{}".format(*pair) if any(self.guards) else "-"

        return (f"{'same' if self.same else 'other'} | {self.alone} | {self.own or ''} | {self.planned} | {of(self.guards)} | {of(self.breaks)} | "
                "{:.2f} [{:.2f}, {:.2f}]".format(*self.ratio))


def row(seen: list[dict]) -> Row:
    own, planned = seen[0]["own"], seen[0]["planned"]
    graphs = planned["planned"]
    alone = sum(graph["tagged"] for graph in graphs)
    merged = sum(members - 1 for graph in graphs for _, _, members in graph["buckets"])
    others = sum(graph["collectives"] - graph["tagged"] for graph in graphs)
    of_own = sum(own["launches"].values())
    pairs = list(zip(planned["seconds"], own["seconds"]))[1:]  # the first one compiles
    same = all(each["own"]["weights"] == each["planned"]["weights"] and each["own"]["losses"] == each["planned"]["losses"] for each in seen)
    guards, breaks = ((planned[what], own[what]) for what in ("guards", "graph_breaks"))
    return Row(same, alone, of_own - others if of_own else None, alone - merged, guards, breaks, interval([a / b for a, b in pairs]))


def _why(said: str) -> str:
    """Of all that the ranks said, the last line that names an error, short enough for a cell."""
    lines = said.strip().splitlines()
    named = [line for line in lines if re.search(r"\w+(Error|Failed|Refused)\b|still ran after", line)]
    return (named or lines)[-1].replace("|", "/").strip()[:160]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="of each trainer; the first one compiles, and is not timed")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    import titan_on_cpu

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| integration | model | parallelism | mode | bits | each alone | its pass | planned | guards | breaks | step |\n|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        titan_on_cpu.assets(pathlib.Path(folder))
        for case in CASES:
            if arguments.only not in str(case):
                continue
            try:
                made = str(row(train(case, arguments.steps, pathlib.Path(folder))))
            except (AssertionError, TimeoutError) as error:
                made = f"does not run: {_why(str(error))} | | | | | |"
            print(f"| {case.integration} | {case.model} | {case.parallelism} | {case.mode} | {made} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""CPU time of one rank from a compiled step's graph to the function that runs it by its plan, where the planner has the plan (a hit),
and of PyTorch's overlap pass with what it does to the graph, on the same graph in the same run.

    tests/bench/client_path.py [--layers 30] [--repeat 7]

The graph is overlap_vs_torch.py's: the backward of a Llama-3-8B-like step, 8 ranks, fake tensors. All of it is what a backend does
(Session.plan and boxed), on one core, threads of gRPC counted. What else a machine does makes CPU time longer, never shorter, so the
fastest run is what counts: exit 1 where it takes longer than GOAL.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import statistics
import sys
import time
from unittest import mock

import overlap_vs_torch as other
import torch

from bucketd import apply, canonical, capture, normalize, plan, session
from bucketd.boxed import boxed
from bucketd.client import PlannerClient
from bucketd.reshard import copy_module
from bucketd.settings import Settings

GOAL = 0.4  # seconds
PARTS = (
    ("capture", capture, "capture_graph"),
    ("normalise", normalize, "normalize"),
    ("encode and digest", canonical, "encode"),
    ("ask the planner", PlannerClient, "get_plan"),
    ("read the plan", plan, "parse"),
    ("verify", apply, "prepare"),
    ("rewrite the graph", apply.Edit, "apply"),
    ("write the code", sys.modules[__name__], "boxed"),
)


class Timers:
    def __init__(self):
        self.seconds: dict[str, float] = collections.defaultdict(float)

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for name, holder, function in PARTS:
                stack.enter_context(mock.patch.object(holder, function, self._timed(name, getattr(holder, function))))
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._undo.close()

    def _timed(self, name, call):
        def run(*args, **kwargs):
            begin = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += time.process_time() - begin

        return run


def once(gm, context) -> tuple[dict[str, float], session.Planned]:
    """Seconds by part, and "all"; of a backend that is new, so that nothing was agreed on before."""
    made, plans, gm = session.Session(Settings(cost_profile="h100_nvlink", numerics="free")), [], copy_module(gm)
    with Timers() as timers:
        begin = time.process_time()
        boxed(made.plan(gm, context, "bw", made.next_ordinal(), (), plans.append, recompile=False))
        took = time.process_time() - begin
    return {**timers.seconds, "all": took}, plans[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gm, captured, context = other.trace_backward(arguments.layers, 8192)
    once(gm, context)  # the planner has none yet
    runs, made = zip(*(once(gm, context) for _ in range(arguments.repeat)))
    assert {planned.source for planned in made} == {"hit"}
    theirs = other.TorchPasses(gm, captured, arguments.layers).run("overlap", 3)
    launches = [sum(other.collectives(each).values()) for each in (gm, made[0].module)]
    print(f"{len(captured.nodes)} nodes, torch {torch.__version__}, one core; collectives {launches[0]}, planned {launches[1]}, "
          f"by PyTorch's pass {sum(theirs['collectives'].values())}\n")
    print("| part | CPU ms, median | fastest | slowest |\n|---|---|---|---|")
    for name in (*(name for name, _, _ in PARTS), "all"):
        took = [1000 * run[name] for run in runs]
        print(f"| {name} | {statistics.median(took):.0f} | {min(took):.0f} | {max(took):.0f} |")
    took = [1000 * seconds for seconds in theirs["runs"]]
    print(f"| PyTorch's overlap pass, applied | {statistics.median(took):.0f} | {min(took):.0f} | {max(took):.0f} |")
    return 0 if min(run["all"] for run in runs) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())

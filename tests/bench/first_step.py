#!/usr/bin/env python3
"""The first step of the quickstart's model, which compiles it, with a plan and without: in new processes each time, 4 on gloo.

    tests/bench/first_step.py [--pairs 7]

A pair is two jobs, in turns the planned one first or last; its planner has been started, has no plan yet, and has served nobody. The step
is the slowest rank's. Exit 1: the median of the differences is above GOAL.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys

from paired import interval

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "python")]

from planners import planner  # noqa: E402
from ranks import run_ranks  # noqa: E402

GOAL = 0.3  # seconds


def steps(how: str) -> list[float]:
    """Seconds of the first step and of the second."""
    with planner() as one:
        said = run_ranks("first_step_worker.py", 4, how, one.address, timeout=300)
    return [max(each) for each in zip(*(json.loads(text.splitlines()[-1]) for text in said))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    steps("unplanned")  # warms what the ranks are born of
    took = {"unplanned": [], "planned": []}
    for pair in range(arguments.pairs):
        for how in list(took)[:: -1 if pair % 2 else 1]:
            took[how].append(steps(how)[0])
    print("| first step, s | median | fastest | slowest |\n|---|---|---|---|")
    for how, seconds in took.items():
        print(f"| {how} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |")
    middle, low, high = interval([b - a for a, b in zip(*took.values())])
    print(f"\nplanned minus unplanned, of pairs: {middle:+.2f} s [{low:+.2f}, {high:+.2f}]")
    return 0 if middle <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Many seeds of the simulation, one process each, on all cores: what they add up to, and which ones found something.

    tests/server/simulation/seeds.py 1000
    tests/bench/record.py simulation -- tests/server/simulation/seeds.py 1000 --minutes 120
    LD_PRELOAD=libjemalloc.so.2 tests/server/simulation/seeds.py 1000     # two thirds of the time

Exit 1 when a seed found something; its output stands in build/seeds.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEST = ROOT / "build" / "tests" / "server_simulation_test"
FOUND = ROOT / "build" / "seeds"
LIMIT = 600  # seconds of CPU for a seed
LINE = re.compile(r"seed \d+: (?P<jobs>\d+) jobs, (?P<calls>\d+) calls, (?P<plans>\d+) plans, (?P<unplanned>\d+) unplanned, "
                  r"(?P<computations>\d+) computations, (?P<unleased>\d+) of them without a lease, errors:(?P<errors>.*); "
                  r"(?P<events>\d+) events, .*, (?P<seconds>[\d.]+) s of CPU")
ROWS = (("jobs", "jobs"), ("calls", "calls of ranks"), ("plans", "answered with a plan"), ("unplanned", "told to run without"),
        ("computations", "computations"), ("unleased", "computations without a lease, the store away"), ("events", "events"))


def run(seed: int, ranks: int) -> re.Match | None:
    """What it said at its end; None: it found something, or did not get there."""
    environment = {"BUCKETD_TEST_DATA": str(ROOT / "tests" / "data"), **os.environ, "BUCKETD_SEED": str(seed), "BUCKETD_RANKS": str(ranks)}
    with open(FOUND / f"{seed}.txt", "w+") as output:
        ended = subprocess.run(["prlimit", f"--cpu={LIMIT}", TEST, "--gtest_filter=*WhateverBreaks*"], env=environment, stdout=output,
                               stderr=subprocess.STDOUT)
        output.seek(0)
        said = LINE.search(output.read())
    if ended.returncode != 0 or said is None:
        return None
    (FOUND / f"{seed}.txt").unlink()
    return said


def run_all(first: int, count: int, ranks: int, until: float) -> dict[int, re.Match | None]:
    ended: dict[int, re.Match | None] = {}

    def turn(seed: int) -> None:
        if time.monotonic() > until:
            return
        ended[seed] = run(seed, ranks)
        if len(ended) % 20 == 0 or ended[seed] is None:
            failed = [seed for seed, said in ended.items() if said is None]
            print(f"{len(ended)} of {count} seeds; found something: {failed or 'none'}", file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(turn, range(first, first + count)))
    return ended


def table(ended: dict[int, re.Match | None], ranks: int) -> None:
    said = [match for match in ended.values() if match is not None]
    errors: collections.Counter[str] = collections.Counter()
    for match in said:
        for number, reason in re.findall(r"(\d+) (\S+)", match["errors"]):
            errors[reason] += int(number)
    print("| | |\n|---|--:|")
    print(f"| seeds | {len(ended)}: {min(ended)} to {max(ended)} |\n| ranks of each, and replicas | {ranks:,}, 5 |")
    for name, what in ROWS:
        print(f"| {what} | {sum(int(match[name]) for match in said):,} |")
    for reason, number in sorted(errors.items()):
        print(f"| told {reason} | {number:,} |")
    if seconds := [float(match["seconds"]) for match in said]:
        print(f"| CPU of a seed, s: median, most | {statistics.median(seconds):.1f}, {max(seconds):.1f} |")
    failed = sorted(seed for seed, match in ended.items() if match is None)
    print(f"| seeds that found something | {', '.join(map(str, failed)) or 0} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, help="how many")
    parser.add_argument("--ranks", type=int, default=100_000, help="of each seed (100,000)")
    parser.add_argument("--first", type=int, default=1, help="the first one (1)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after that")
    args = parser.parse_args()
    if not TEST.exists():
        parser.error(f"no {TEST.relative_to(ROOT)}: cmake --build build --target server_simulation_test")
    FOUND.mkdir(parents=True, exist_ok=True)
    ended = run_all(args.first, args.seeds, args.ranks, time.monotonic() + args.minutes * 60)
    if not ended:
        parser.error("not a single seed was run: more seeds, or more --minutes")
    table(ended, args.ranks)
    return 1 if None in ended.values() else 0


if __name__ == "__main__":
    sys.exit(main())

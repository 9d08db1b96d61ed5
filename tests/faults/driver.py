"""Runs the scenarios: `rounds` rounds of all of them, everything that is random drawn from `seed`."""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in (ROOT / "client" / "python", ROOT / "tests" / "python", pathlib.Path(__file__).resolve().parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import generate_wire  # noqa: E402

generate_wire.main()

import cluster_scenarios  # noqa: E402
import harness  # noqa: E402
import refusals  # noqa: E402
import scenarios  # noqa: E402

ALL = {scenario.__name__: scenario for scenario in (*scenarios.SCENARIOS, *cluster_scenarios.CLUSTER_SCENARIOS, *refusals.REFUSALS)}
NAMES = list(ALL)


def run(name: str, seed: int, round_number: int, reference: harness.Reference, out=print) -> None:
    """One scenario; what it does follows from the three."""
    begin = time.monotonic()

    def say(text: str) -> None:
        out(f"  {name}: {text}")

    ALL[name](random.Random(f"{seed}/{round_number}/{name}"), say, reference)
    out(f"  {name}: passed in {time.monotonic() - begin:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults under load, against real processes.")
    parser.add_argument("seed", type=int, nargs="?", default=int(time.time()))
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    parser.add_argument("--only", choices=NAMES, help="one scenario")
    parser.add_argument("--round", type=int, help="this round alone")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {harness.BINARY}", flush=True)
    rounds = range(arguments.rounds) if arguments.round is None else [arguments.round]
    with harness.Reference() as reference:
        for number in rounds:
            print(f"round {number}", flush=True)
            for name in [arguments.only] if arguments.only else NAMES:
                try:
                    run(name, arguments.seed, number, reference, lambda text: print(text, flush=True))
                except Exception as error:
                    print(f"FAILED {name}: {type(error).__name__}: {error}", file=sys.stderr)
                    print(f"again: tests/faults/run.sh {arguments.seed} --only {name} --round {number}", file=sys.stderr)
                    if not isinstance(error, harness.Finding):
                        raise
                    return 1
    print("no findings")
    return 0


if __name__ == "__main__":
    sys.exit(main())

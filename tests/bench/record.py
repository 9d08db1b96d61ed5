#!/usr/bin/env python3
"""Runs a bench, shows what it prints, and keeps that as a results file: tests/bench/results/NAME.md.

    tests/bench/record.py planning -- build/bin/plan_bench --benchmark_filter=auto

The file says what ran, on which machine and commit, and with how much other work beside it; nothing in it is written by hand. The exit
code is the bench's own: one that misses its goals is recorded all the same, with that code.
"""
import argparse
import datetime
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests" / "bench" / "results"


def machine() -> str:
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return f"{os.cpu_count()} cores, {model[1].strip() if model else 'unknown processor'}"


def commit() -> str:
    run = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def body_of(output: str) -> str:
    """Markdown tables as they are, everything else as it was printed."""
    if re.search(r"^\|[ :-]+\|", output, re.MULTILINE):
        return output.strip() + "\n"
    return f"```\n{output.strip()}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the results file, without .md")
    parser.add_argument("command", nargs="+", help="the bench, behind --")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    began = time.monotonic()
    environment = {"BUCKETD_TEST_DATA": str(ROOT / "tests" / "data"), **os.environ}
    output = ""
    with subprocess.Popen(args.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            print(line, end="", flush=True)
            output += line
    lines = (
        f"# {args.name}",
        "",
        f"`{shlex.join(args.command)}`, {datetime.date.today()}, commit {commit()}",
        "",
        f"{machine()}; load average {load:.1f} when it began; took {time.monotonic() - began:.0f} s; exit code {run.returncode}.",
        "",
        body_of(output),
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{args.name}.md").write_text("\n".join(lines))
    print(f"wrote {(RESULTS / f'{args.name}.md').relative_to(ROOT)}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())

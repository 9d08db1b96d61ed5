#!/usr/bin/env python3
"""Locks are held where their members are used: clang's -Wthread-safety over every unit of server/ that a build has compiled.

    tests/locks_test.py [BUILD]

The suite's compiler is gcc, which does not know these contracts (ABSL_GUARDED_BY and the like). Nothing is compiled anew, only read, and a
compiler cache remembers what was found right. Exit code 1, with clang's own words, where a member is used without its lock.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLANG = "clang++-14"
ROOMS = ("server",)  # where locks are annotated


def commands(build: pathlib.Path):
    """(unit, command) of each unit of these rooms: a source file, or what puts several of them together."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        unit = pathlib.Path(entry["directory"], entry["file"]).resolve()
        base = build if unit.is_relative_to(build) else ROOT
        if unit.relative_to(base).parts[0] not in ROOMS:
            continue
        words = shlex.split(entry["command"])
        kept = [word for word in words[1 : words.index("-o")] if not word.startswith("-W")]
        launcher = [shutil.which("ccache")] if shutil.which("ccache") else []
        yield unit, [*launcher, CLANG, *kept, "-Wthread-safety", "-Werror=thread-safety", "-fsyntax-only", "-c", str(unit)]


def main() -> int:
    build = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    environment = dict(os.environ, CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1")
    found = list(commands(build))
    assert found, f"{build} has compiled nothing of {', '.join(ROOMS)}"

    def check(of):
        return of[0], subprocess.run(of[1], cwd=build, env=environment, capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [(unit, run) for unit, run in pool.map(check, found) if run.returncode]
    for unit, run in wrong:
        print(f"{unit}:\n{run.stderr}")
    print(f"Locks of {len(found) - len(wrong)} of {len(found)} units are held where they have to be.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

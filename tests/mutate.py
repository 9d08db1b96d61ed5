"""Breaks the code on purpose, one line at a time, and sees the tests fail that say they hold it.

tests/mutations.json has the mutations: a file, a text that stands in it once, what to write instead, and what must then fail:
numbered cases of the specification (tests/spec_test.py), or tests by file and name. Each one is applied, the test programs of its
cases alone are built, their tests alone are run, and the file is put back. A mutation whose tests pass is an error, as is one that
does not compile.

    tests/mutate.py             every mutation
    tests/mutate.py T3 T7.1     those that break a case whose number begins so
    tests/mutate.py tests/server/pins    or a test whose file does
    tests/mutate.py --table     writes tests/MUTATIONS.md
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import spec_test  # noqa: E402

TABLE = ROOT / "tests" / "MUTATIONS.md"
BUILD = ROOT / "build"
# What Python's tests run of a room.
PROGRAMS = {"passes": ["bucketd"], "server": ["bucketd"], "client": ["bucketctl", "steady_load"], "gpu_agent": ["bucket-agent", "bucket_executor"]}


def mutations() -> list[dict]:
    return json.loads((ROOT / "tests" / "mutations.json").read_text())


def cases() -> list[str]:
    return [f"T{section}.{number}" for section, numbers in spec_test.CASES.items() for number in numbers]


def faults(all_of_them: list[dict]) -> list[str]:
    """What is wrong with the mutations themselves, and which cases have none."""
    found, known = [], {*cases(), *spec_test.all_tests()}
    for one in all_of_them:
        name = f"{one['file']}: {one['old']!r}"
        path = ROOT / one["file"]
        count = path.read_text().count(one["old"]) if path.exists() else 0
        if count != 1:
            found.append(f"{name} stands there {count} times, not once")
        found += [f"{name}: there is no case {case}" for case in one["breaks"] if case not in known]
    broken = {case for one in all_of_them for case in one["breaks"]}
    return found + [f"{case} has no mutation" for case in cases() if case not in {*broken, *spec_test.NOT_HERE}]


def programs() -> dict[str, str]:
    """By source the C++ test program that it is part of."""
    found = {}
    for folder in ("passes", "gpu_agent", "gpu_agent/cudasim", "server", "client"):
        text = re.sub(r"foreach\((\w+) IN ITEMS (.*?)\)\n(.*?)endforeach\(\)", _unrolled,
                      (ROOT / "tests" / folder / "CMakeLists.txt").read_text(), flags=re.DOTALL)
        for name, body in re.findall(r"bucketd_test\(\s*(\w+)(.*?)\)", text, re.DOTALL):
            found.update({f"tests/{folder}/{word}": name for word in body.split() if word.endswith(".cc")})
    return found


def _unrolled(loop: re.Match) -> str:
    name, items, body = loop.groups()
    return "".join(body.replace(f"${{{name}}}", item) for item in items.split())


def _pytest_id(source: str, name: str) -> str:
    """A method stands below its class."""
    above, indent, _ = re.split(rf"^( *)def {name}\b", (ROOT / source).read_text(), maxsplit=1, flags=re.MULTILINE)
    classes = re.findall(r"^class (\w+)", above, re.MULTILINE) if indent else []
    return "::".join([source, *classes[-1:], name])


class Tests:
    """The tests of one case."""

    def __init__(self, tests: list[str], program_of: dict[str, str]):
        self.cpp, self.python = collections.defaultdict(list), []
        for test in tests:
            source, name = test.split(": ")
            if source.endswith(".py"):
                self.python.append(_pytest_id(source, name))
            else:
                self.cpp[program_of[source]].append(name)

    def build(self, changed: str) -> None:
        targets = [*self.cpp]
        if self.python and changed.endswith((".cc", ".h")):
            targets += PROGRAMS[changed.partition("/")[0]]
        if targets:
            done = subprocess.run(["cmake", "--build", BUILD, "--target", *targets], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"it does not compile\n{done.stdout[-3000:]}")

    def pass_(self) -> bool:
        environment = dict(os.environ, BUCKETD_TEST_DATA=str(ROOT / "tests/data"), BUCKETD_SOURCE_DIR=str(ROOT), BUCKETD_BIN=str(BUILD / "bin"),
                           PYTHONDONTWRITEBYTECODE="1")
        commands = [[BUILD / "tests" / program, f"--gtest_filter={':'.join(f'{name}:*/{name}/*' for name in names)}"] for program, names in self.cpp.items()]
        if self.python:
            commands.append([sys.executable, "-m", "pytest", "-q", "-x", *self.python])
        for command in commands:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace", timeout=600)
            if done.returncode:
                if done.returncode > 0 and "FAILED" not in done.stdout + done.stderr:
                    raise RuntimeError(f"it ended without a test that failed\n{(done.stdout + done.stderr)[-3000:]}")
                return False
        return True


def survived(one: dict, tests_of: dict[str, list[str]]) -> list[str]:
    """The cases that do not notice."""
    program_of = programs()
    path = ROOT / one["file"]
    before = path.read_text()
    try:
        path.write_text(before.replace(one["old"], one["new"]))
        tests = {case: Tests(tests_of.get(case, [case]), program_of) for case in one["breaks"]}
        for each in tests.values():
            each.build(one["file"])
        return [case for case, each in tests.items() if each.pass_()]
    finally:
        path.write_text(before)


def table() -> str:
    tests_of, by_case = spec_test.cases_with_tests(), collections.defaultdict(list)
    for one in mutations():
        for case in one["breaks"]:
            by_case[case].append(one)
    covered, by_name = [case for case in cases() if by_case[case]], [name for name in by_case if ": " in name]
    lines = ["# What breaks which case", "",
             "Written by `tests/mutate.py --table` from `tests/mutations.json`; `tests/mutate.py` applies each mutation and sees the",
             "tests of its cases fail.", "",
             f"{len(covered)} of {len(cases())} cases have a mutation; {len(spec_test.NOT_HERE)} have no place in this design.", "",
             "| Case | Tests | Mutation |", "| --- | --- | --- |"]
    for case in cases():
        tests = "<br>".join(test.split(": ")[1] for test in tests_of.get(case, [])) or spec_test.NOT_HERE[case]
        changes = "<br>".join(f"{one['file']}: `{_cell(one['old'])}` becomes `{_cell(one['new'])}`" for one in by_case[case])
        lines.append(f"| {case} | {tests} | {changes} |")
    lines += ["", "What no numbered case speaks of:", "", "| Test | Mutation |", "| --- | --- |"]
    for name in sorted(by_name):
        changes = "<br>".join(f"{one['file']}: `{_cell(one['old'])}` becomes `{_cell(one['new'])}`" for one in by_case[name])
        lines.append(f"| {name.split(': ')[1]} | {changes} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|") or " "


def main() -> int:
    if sys.argv[1:] == ["--table"]:
        TABLE.write_text(table())
        return 0
    if set(sys.argv[1:]) & {"--help", "-h"}:
        print(__doc__)
        return 0
    all_of_them = mutations()
    if found := faults(all_of_them):
        print(*found, sep="\n")
        return 1
    wanted = [one for one in all_of_them if not sys.argv[1:] or any(case.startswith(begin) for case in one["breaks"] for begin in sys.argv[1:])]
    if not wanted:
        print(f"no mutation breaks a case that begins with {' or '.join(sys.argv[1:])}; tests/MUTATIONS.md lists them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is mutated is put back
    tests_of, bad = spec_test.cases_with_tests(), 0
    for i, one in enumerate(wanted):
        try:
            said = ", ".join(survived(one, tests_of))
            said = f"NOT NOTICED by {said}" if said else ""
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            said = str(error)
        bad += bool(said)
        print(f"[{i + 1}/{len(wanted)}] {one['file']}, {' '.join(one['breaks'])}: {said or 'seen'}", flush=True)
    print(f"{len(wanted) - bad} of {len(wanted)} mutations are seen by every case that they are to break")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
